"""Which operator it is: the model's graph is cut, its beginning runs in eager mode, the rest on the target.

With none of the operators in eager mode the disagreement is there, with all of them it is gone; a binary search finds
the one at which it goes. That this operator alone, in eager mode while all others stay on the target, makes it go away
is the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.operators import EXACT
from fuzzer.diagnose import facts
from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.rerun import Change, Rerun

#: Graphs with more operators are not searched: each step prepares the target anew.
MOST_OPERATORS = 2000
#: Operators computed by formulas of limited accuracy, by their ATen names.
SPECIAL = frozenset(
    """exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 asinh acosh atanh sigmoid
    log_sigmoid softplus gelu elu selu celu silu mish hardswish erf erfc erfinv lgamma digamma pow rsqrt sqrt softmax
    log_softmax logaddexp logsumexp""".split()
)
#: A special function that is off by more than this share of its value is not approximated: it is wrong.
SLIGHT = 2.0**-4
#: Operators whose result is one of few: a rounding to integers, an order, a kept box.
CHOOSES = frozenset("round floor ceil trunc sign sort topk max min argsort max_pool2d_with_indices nms".split())


@register
class Operator(Intervention):
    name = "operator"
    most: ClassVar[int] = MOST_OPERATORS
    changed = "one operator in eager mode, the others on the target"
    confirms: ClassVar[tuple[str, ...]] = (
        "numeric/wrong-value",
        "numeric/approximation",
        "numeric/nonfinite",
        "numeric/overflow",
        "numeric/subnormal",
        "numeric/integer",
        "numeric/reduced-precision",
        "numeric/signed-zero",
        "order/nms",
        "execution/exception",
    )

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=_cut(finding, Adaptation(prefix=0)), words="none")

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        before = size(finding.examined)
        (none,) = self.variants(finding)
        baseline = self._run(finding, rerun, none)
        names = [str(name) for name in rerun.evidence.get("operators", [])]
        if baseline.seen is Seen.NOTHING:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=baseline.detail)
        if baseline.gone or not names:
            detail = "the captured graph of the model does not show it"
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=detail)
        if len(names) > self.most:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=f"{len(names)} operators are too many")
        at = self._first_gone(finding, rerun, len(names))
        return self._proof(finding, rerun, names, at)

    def _first_gone(self, finding: Finding, rerun: Rerun, count: int) -> int:
        """The number of the operator that has to be in eager mode, where all before it are."""
        low, high = 0, count  # with `low` operators in eager mode it is there, with `high` it is gone
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._run(finding, rerun, Variant(change=_cut(finding, Adaptation(prefix=middle))))
            low, high = (low, middle) if trial.gone else (middle, high)
        return high - 1

    def _proof(self, finding: Finding, rerun: Rerun, names: list[str], at: int) -> Trial:
        name = names[at]
        alike = tuple(i for i, other in enumerate(names) if other == name)
        trial = Trial(self.name, self.changed, Seen.NOTHING)
        for kept in dict.fromkeys([(at,), alike]):
            which = f"{name}, number {at + 1} of {len(names)}" if len(kept) == 1 else f"all {len(kept)} calls of {name}"
            words = Variant(change=_cut(finding, Adaptation(eager=kept)), words=which)
            trial = self._run(finding, rerun, words)
            if trial.gone:
                return replace(trial, label=_relabelled(finding, name))
        return trial


def _relabelled(finding: Finding, operator: str) -> str:
    """A special function that is a little off is an approximation, whatever its errors look like."""
    name = finding.label.name
    if name not in ("numeric/wrong-value", "numeric/reduced-precision") or operator.split(".")[1] not in SPECIAL:
        return ""
    difference = finding.difference
    sides = [(side.leaves or {}).get(difference.path) for side in (finding.examined.reference, finding.examined.target)]
    left, right = sides
    if isinstance(left, Tensor) and isinstance(right, Tensor) and facts.shorter(right, left) is not None:
        return ""  # its values are rounded to 16 bits, however they are computed
    try:
        target, truth = float(difference.target), float(difference.truth)
    except ValueError:
        return ""
    return "numeric/approximation" if abs(target - truth) <= SLIGHT * abs(truth) else ""


@register
class ExactOperator(Operator):
    """A decision that the target takes otherwise from the very same bits hangs on no noise: its rule is another.

    Only for operators that compute nothing, only choose, and for small graphs: near-ties are many.
    """

    name = "exact-operator"
    changed = "one operator that rounds nothing in eager mode, the others on the target"
    confirms = ("numeric/wrong-value",)
    most = 16

    def _proof(self, finding: Finding, rerun: Rerun, names: list[str], at: int) -> Trial:
        trial = super()._proof(finding, rerun, names, at)
        if not trial.gone or names[at].split(".")[1] in EXACT & CHOOSES:
            return trial
        detail = f"{names[at]} computes values, which may differ by noise"
        return replace(trial, seen=Seen.NOTHING, detail=detail)


def _cut(finding: Finding, adaptation: Adaptation) -> Change:
    return Change(example=finding.sample, adaptation=adaptation)


def operator_of(trial: Trial) -> str:
    """The operator that an `operator` trial names, or an empty text."""
    if trial.name not in ("operator", "exact-operator") or not trial.gone:
        return ""
    inside = trial.changed.rpartition("(")[2].rstrip(")")
    return inside.rpartition(" of ")[2] if inside.startswith("all ") else inside.partition(",")[0]
