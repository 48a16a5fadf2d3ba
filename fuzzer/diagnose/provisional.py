"""A first label by symptom, before any intervention: the class is what is seen, the cause is suspected.

Each rule looks at the facts of the primary difference and either names a label with its evidence or passes. The first
that speaks wins, so their order in `RULES` is from the most to the least specific.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from fuzzer.diagnose import facts, value_rules
from fuzzer.diagnose.label import Diagnosis, suspected
from fuzzer.diagnose.primary import primary
from fuzzer.diagnose.symptom import Case, Rule
from fuzzer.trees import Leaves
from fuzzer.verify.verdict import Kind, Verdict


def provisional(
    verdict: Verdict,
    reference: Leaves | None,
    target: Leaves | None,
    truth: Leaves | None,
    sample: Mapping[str, Tensor],
    spec: str = "",
    *,
    reproduced: bool = False,
) -> Diagnosis:
    """The label of a failed verdict by what is seen, with evidence.

    `reference`, `target`, `truth` (float64) are outputs, None where that side gave none. `spec` names the target in
    the evidence. `reproduced`: the finding was seen again in fresh processes, which is what confirms a crash.
    Raises ValueError on a verdict without differences.
    """
    difference = primary(verdict)
    if difference is None:
        raise ValueError("a verdict without differences has nothing to diagnose")
    left, right, exact = (_dense(side or {}) for side in (reference, target, truth))
    inputs = {name: facts.dense(tensor) for name, tensor in sample.items()}
    case = Case(difference, verdict, left, right, exact, inputs)
    name, why = _first(case)
    label = suspected(name)
    if reproduced and name == "execution/crash":
        label = dataclasses.replace(label, confirmed=True)
    return Diagnosis(label, [why, *_common(case, spec)])


def _dense(leaves: Leaves) -> Leaves:
    return {path: facts.dense(leaf) if isinstance(leaf, Tensor) else leaf for path, leaf in leaves.items()}


def _first(case: Case) -> tuple[str, str]:
    for rule in RULES[case.difference.kind]:
        found = rule(case)
        if found is not None:
            return found
    return "numeric/unknown", case.difference.message


def _common(case: Case, spec: str) -> list[str]:
    found = []
    difference = case.difference
    if difference.compared:
        share = f"{difference.mismatched} of {difference.compared} elements differ"
        found.append(f"{share} at {difference.path}" + (f" on {spec}" if spec else ""))
    if difference.drift_target is not None and difference.drift_reference is not None:
        drift = f"target {difference.drift_target:.3g}, reference {difference.drift_reference:.3g}"
        found.append(f"distance from float64 in noise floors: {drift}")
    others = sorted({d.path for d in case.verdict.differences} - {difference.path})
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        found.append(f"other leaves that differ: {shown}")
    return found


def _always(name: str) -> Rule:
    return lambda case: (name, case.difference.message or name)


def _near_tie(case: Case) -> tuple[str, str] | None:
    if not case.difference.near_tie:
        return None
    return "order/near-tie", "the decision hangs on a margin within the noise of the reference itself"


def _kept_boxes(case: Case) -> tuple[str, str] | None:
    """The rows kept differ in number: several leaves with the same new length, or an index list beside boxes."""
    left, right = case.leaf(case.reference), case.leaf(case.target)
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and case.has_boxes()):
        return None
    if left.dim() == 0 or left.dim() != right.dim() or left.shape[1:] != right.shape[1:]:
        return None
    beside = any(a.shape[:1] == left.shape[:1] and b.shape[:1] == right.shape[:1] for _, a, b in case.siblings())
    if not (beside or facts.is_index(left, right)):
        return None
    return "order/nms", f"the reference keeps {left.shape[0]} boxes, the target {right.shape[0]}"


def _object(case: Case) -> tuple[str, str] | None:
    left, right = case.leaf(case.reference), case.leaf(case.target)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return "numeric/wrong-value", f"the reference returns {left!r}, the target {right!r}"
    return "structure/dtype", case.difference.message


def _gathered_tie(case: Case) -> tuple[str, str] | None:
    """An index leaf that differs, while what it points at is equal: an exact tie, broken another way."""
    pair = case.pair
    if pair is None or not facts.is_index(*pair):
        return None
    for name, source in case.sample.items():
        if facts.gathers_alike(*pair, source):
            return "order/tie", f"the indices differ, the values that they pick from input {name} are equal"
    for path, left, right in case.siblings():
        agrees = left.is_floating_point() and left.shape == pair[0].shape and facts.same(left, right)
        if agrees and (facts.has_ties(left) or any(facts.has_ties(t) for t in case.sample.values())):
            return "order/tie", f"the indices differ, {path} beside them agrees exactly, and there are exact ties"
    return None


def _permuted(case: Case) -> tuple[str, str] | None:
    """The same rows in another order: a tie broken another way, or boxes kept in another order."""
    pair = case.pair
    if pair is None:
        return None
    rows = facts.same_rows(*pair)
    if not rows and not (facts.is_index(*pair) and facts.same_values_along_last(*pair)):
        return None
    if not rows and not any(left.is_floating_point() for _, left, _ in case.siblings()):
        return None
    for path, left, right in case.siblings():
        if left.is_floating_point() and facts.same(left, right) and facts.has_ties(left):
            return "order/tie", f"the same rows in another order, {path} agrees exactly and holds ties"
    if case.has_boxes():
        return "order/nms", "the same rows in another order, from boxes"
    if any(facts.has_ties(t) for t in case.sample.values() if t.is_floating_point()):
        return "order/tie", "the same rows in another order, and the inputs hold exact ties"
    return "order/unknown", "the same rows in another order"


def _integer(case: Case) -> tuple[str, str] | None:
    pair = case.pair
    if pair is None or torch.bool in (pair[0].dtype, pair[1].dtype):
        return None
    floats = [t for t in case.sample.values() if t.is_floating_point() or t.is_complex()]
    if not floats:
        return "numeric/integer", "an integer leaf computed from integer inputs"
    if not facts.is_index(*pair):
        return "numeric/integer", "an integer leaf that is no index: a conversion or integer arithmetic"
    return None


def _index_of_nonfinite(case: Case) -> tuple[str, str] | None:
    if facts.finite(case.sample.values()):
        return None
    if case.pair is not None and case.pair[0].dtype != torch.bool and not facts.is_index(*case.pair):
        return None  # a conversion to integers, which chose nothing
    if case.has_boxes():
        return "order/nms", "other boxes are kept, with inputs that are NaN or infinite in places"
    return "numeric/nonfinite", "a decision over inputs that are NaN or infinite in places"


def _wrong_decision(case: Case) -> tuple[str, str] | None:
    return "numeric/wrong-value", "a discrete value differs by more than the noise explains"


RULES: dict[Kind, tuple[Rule, ...]] = {
    Kind.CRASH: (_always("execution/crash"),),
    Kind.HANG: (_always("execution/hang"),),
    Kind.MEMORY: (_always("execution/out-of-memory"),),
    Kind.EXCEPTION: (_always("execution/exception"),),
    Kind.ARITY: (_always("structure/arity"),),
    Kind.OBJECT: (_object,),
    Kind.SHAPE: (_near_tie, _kept_boxes, _always("structure/shape")),
    Kind.DTYPE: (_always("structure/dtype"),),
    Kind.NONFINITE: (
        value_rules.signed_zero,
        value_rules.precision,
        value_rules.overflow,
        value_rules.wrong_beside_nonfinite,
        value_rules.nonfinite,
    ),
    Kind.INTEGER: (_gathered_tie, _near_tie, _index_of_nonfinite, _permuted, _integer, _wrong_decision),
    Kind.VALUE: (
        _permuted,
        _near_tie,
        value_rules.subnormal,
        value_rules.signed_zero,
        value_rules.rounding,
        value_rules.precision,
        value_rules.overflow,
        value_rules.special_function,
        value_rules.accumulation,
        value_rules.wrong_value,
    ),
    Kind.SIGNED_ZERO: (_always("numeric/signed-zero"),),
    Kind.NONDETERMINISM: (_always("state/nondeterminism"),),
    Kind.MUTATION: (_always("state/mutation"),),
    Kind.TASK: (_near_tie,),
}
