"""Which interventions are tried for a suspected label, in order: what else it may be, what proves it, what is left.

Changes of the input come before changes of the backend, and what would make any disagreement go away (an operator in
eager mode) comes last, so that it does not hide a more telling cause.
"""

from __future__ import annotations

from fuzzer.diagnose import facts
from fuzzer.diagnose.finding import Finding
from fuzzer.diagnose.interventions import Intervention
from fuzzer.verify.verdict import Kind

#: For each suspected label, its own interventions; a cause found by another one than the label's names the label anew.
OWN: dict[str, tuple[str, ...]] = {
    "execution/exception": ("finite", "positive-zeros", "ordinary-range", "in-range", "ordinary"),
    "execution/hang": ("longer-deadline",),
    "execution/out-of-memory": ("ordinary",),
    "structure/shape": ("example",),
    "structure/dtype": ("example",),
    "structure/specialisation": ("example",),
    "numeric/rounding": ("perturbed-reference", "float64"),
    "numeric/accumulation": ("half-the-terms", "float64", "operator"),
    "numeric/reduced-precision": ("full-precision", "short-inputs", "operator"),
    "numeric/approximation": ("operator",),
    "numeric/subnormal": ("flush", "scale-up", "operator"),
    "numeric/nonfinite": ("finite", "full-precision", "operator"),
    "numeric/overflow": ("scale-down", "full-precision", "operator"),
    "numeric/integer": ("in-range", "operator"),
    "numeric/signed-zero": ("positive-zeros", "operator"),
    "numeric/wrong-value": ("operator",),
    "order/tie": ("ties", "stable-order"),
    "order/near-tie": ("margin",),
    "order/nms": ("order-before-nms", "operator"),
    "order/duplicate-index": ("unique-indices",),
    "state/nondeterminism": ("reference-generator", "fresh-process", "deterministic"),
    "state/rng": ("reference-generator",),
    "state/batch": ("alone",),
    "state/recompile": ("fresh-process",),
    "state/mutation": ("copies",),
}

#: Where an intervention leaves the disagreement as it is, this label is ruled out, and what would prove it by more than
#: one cause (an operator in eager mode) proves what is left.
RULED_OUT: dict[str, tuple[str, str]] = {"numeric/overflow": ("scale-down", "numeric/nonfinite")}

#: Tried before OWN where a label is given to what no rule explains: causes that can be seen in the input.
FIRST: dict[str, tuple[str, ...]] = {
    "numeric/wrong-value": (
        "example",
        "alone",
        "positive-zeros",
        "unique-indices",
        "reference-generator",
        "ties",
        "short-inputs",
    ),
    "numeric/unknown": (
        "example",
        "alone",
        "positive-zeros",
        "unique-indices",
        "reference-generator",
        "finite",
        "ties",
    ),
    "order/unknown": ("ties", "stable-order", "unique-indices"),
    "numeric/approximation": ("example", "alone", "reference-generator"),
    "numeric/reduced-precision": ("example", "alone", "unique-indices", "reference-generator"),
    "numeric/nonfinite": ("example", "alone"),
    "numeric/overflow": ("example", "alone"),
    "order/tie": ("order-before-nms",),
    "numeric/rounding": ("unique-indices",),
    "order/near-tie": ("positive-zeros", "unique-indices", "order-before-nms", "exact-operator"),
}
#: Tried after OWN has failed.
THEN: dict[str, tuple[str, ...]] = {
    "execution/exception": ("operator",),
    "order/tie": ("operator",),
    "numeric/unknown": ("operator",),
    "numeric/nonfinite": ("scale-down",),
}
#: Interventions that say nothing of an input that has the shape that the target was prepared with, beside a structure.
_RESHAPED = ("example",)


def plan(finding: Finding, known: dict[str, Intervention]) -> list[Intervention]:
    """The interventions for a finding, in order, each once; those of plug-ins come after the built-in ones."""
    name = finding.label.name
    more = [one.name for one in known.values() if name in one.confirms and one.name not in built_in()]
    own = OWN.get(name, ())
    sooner = (one for one in own if one != "operator")  # a plug-in's cause is more telling than that it is an operator
    names = dict.fromkeys((*FIRST.get(name, ()), *sooner, *more, *own, *THEN.get(name, ())))
    return [known[one] for one in names if one in known and _sensible(one, finding) and known[one].applies(finding)]


def built_in() -> set[str]:
    """The names of the interventions that are in the tables; all others are plug-ins'."""
    return {name for table in (OWN, FIRST, THEN) for names in table.values() for name in names}


def _sensible(name: str, finding: Finding) -> bool:
    if name in _RESHAPED:
        return finding.resized or finding.difference.kind in (Kind.SHAPE, Kind.DTYPE)
    if name == "full-precision" and finding.label.name == "numeric/nonfinite":
        return finding.difference.kind is Kind.NONFINITE and facts.finite(finding.sample.values())
    return True
