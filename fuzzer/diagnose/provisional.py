"""A first label by symptom, before any intervention: the class is what is seen, the cause is suspected.

Each rule looks at the facts of the primary difference and either names a label with its evidence or passes. The first
that speaks wins, so their order in `RULES` is from the most to the least specific.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.diagnose import facts
from fuzzer.diagnose.label import Diagnosis, suspected
from fuzzer.diagnose.primary import primary
from fuzzer.trees import ROOT, Leaf, Leaves
from fuzzer.verify.verdict import Blame, Difference, Kind, Verdict

#: Inputs this small or this far out are where formulas of special functions (expm1, a sigmoid's tail) lose accuracy.
_TINY_INPUT = 2.0**-10
_TAIL = (8.0, 128.0)


@dataclass(frozen=True)
class _Case:
    """What a rule may look at: the primary difference, its leaf on both sides, and all around it."""

    difference: Difference
    verdict: Verdict
    reference: Leaves
    target: Leaves
    truth: Leaves
    sample: Mapping[str, Tensor]

    def leaf(self, leaves: Leaves) -> Leaf:
        return leaves.get(self.difference.path)

    @property
    def pair(self) -> tuple[Tensor, Tensor] | None:
        """Both sides' tensors at the leaf, where both are tensors of one shape, and complex together or not at all."""
        left, right = self.leaf(self.reference), self.leaf(self.target)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            return None
        if left.shape == right.shape and left.is_complex() == right.is_complex():
            return left, right
        return None

    def siblings(self) -> list[tuple[str, Tensor, Tensor]]:
        """Other leaves of the same parent (`[0].scores` beside `[0].boxes`) that are tensors on both sides."""
        parent = _parent(self.difference.path)
        found = []
        for path, left in self.reference.items():
            right = self.target.get(path)
            if path == self.difference.path or _parent(path) != parent:
                continue
            if isinstance(left, Tensor) and isinstance(right, Tensor):
                found.append((path, left, right))
        return found

    def has_boxes(self) -> bool:
        """Is there a list of boxes about: a leaf called `boxes`, or an input whose last dimension is 4."""
        named = any(path.endswith(".boxes") for path in self.reference)
        return named or any(t.dim() >= 2 and t.shape[-1] == 4 and t.is_floating_point() for t in self.sample.values())


Rule = Callable[[_Case], tuple[str, str] | None]


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
    case = _Case(difference, verdict, left, right, exact, inputs)
    name, why = _first(case)
    label = suspected(name)
    if reproduced and name == "execution/crash":
        label = dataclasses.replace(label, confirmed=True)
    return Diagnosis(label, [why, *_common(case, spec)])


def _dense(leaves: Leaves) -> Leaves:
    return {path: facts.dense(leaf) if isinstance(leaf, Tensor) else leaf for path, leaf in leaves.items()}


def _first(case: _Case) -> tuple[str, str]:
    for rule in RULES[case.difference.kind]:
        found = rule(case)
        if found is not None:
            return found
    return "numeric/unknown", case.difference.message


def _common(case: _Case, spec: str) -> list[str]:
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


def _parent(path: str) -> str:
    if path == ROOT:
        return ROOT
    return path[: max(path.rfind("."), path.rfind("["))]


def _always(name: str) -> Rule:
    return lambda case: (name, case.difference.message or name)


def _near_tie(case: _Case) -> tuple[str, str] | None:
    if not case.difference.near_tie:
        return None
    return "order/near-tie", "the decision hangs on a margin within the noise of the reference itself"


def _kept_boxes(case: _Case) -> tuple[str, str] | None:
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


def _object(case: _Case) -> tuple[str, str] | None:
    left, right = case.leaf(case.reference), case.leaf(case.target)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return "numeric/wrong-value", f"the reference returns {left!r}, the target {right!r}"
    return "structure/dtype", case.difference.message


def _signed_zero(case: _Case) -> tuple[str, str] | None:
    """+inf against −inf, with a −0 among the inputs: a reciprocal or the like of a zero that changed its sign."""
    pair = case.pair
    if pair is None or not facts.has_negative_zero(case.sample.values()):
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    differs = (left != right) & ~(left.isnan() & right.isnan())
    if not bool(differs.any()) or not bool((left[differs] == -right[differs]).all()):
        return None
    return "numeric/signed-zero", "the inputs hold −0 and the answers differ in sign only"


def _precision(case: _Case) -> tuple[str, str] | None:
    """One side is the other rounded to a narrower float, or its relative errors are those of one."""
    pair = case.pair
    if pair is None or not (pair[0].is_floating_point() and pair[1].is_floating_point()):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        for fine, coarse, which in ((pair[0], pair[1], "target"), (pair[1], pair[0], "reference")):
            if facts.rounds_to(fine, coarse, dtype):
                return "numeric/reduced-precision", f"the {which}'s values are the other side's, rounded to {name}"
    truth = case.leaf(case.truth)
    judge = truth if isinstance(truth, Tensor) and truth.shape == pair[0].shape else pair[0]
    errors = facts.relative_errors(pair[1], judge)
    if isinstance(truth, Tensor) and case.difference.blame is Blame.REFERENCE:
        errors = facts.relative_errors(pair[0], judge)
    if errors.numel() < 4 or not bool(torch.isfinite(errors).all()):
        return None
    middle, most = facts.median(errors), float(errors.max())
    if 2.0**-14 < middle < 2.0**-10 and most < 2.0**-9:
        return "numeric/reduced-precision", f"relative errors about {middle:.2g}, at most {most:.2g}: TF32 or float16"
    if 2.0**-11 < middle < 2.0**-7 and most < 2.0**-6:
        return "numeric/reduced-precision", f"relative errors about {middle:.2g}, at most {most:.2g}: bfloat16"
    return None


def _overflow(case: _Case) -> tuple[str, str] | None:
    """An infinity on one side, not on the other, from finite inputs, or where float64 is finite too."""
    pair = case.pair
    if pair is None:
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    at = (left.isinf() | right.isinf()) & (left != right)
    if not bool(at.any()):
        return None
    truth = case.leaf(case.truth)
    if not facts.finite(case.sample.values()):
        if not isinstance(truth, Tensor) or truth.shape != pair[0].shape:
            return None
        if not bool(facts.wide(truth)[at].isfinite().all()):
            return None
    largest = facts.largest_magnitude(case.sample.values())
    return (
        "numeric/overflow",
        f"{int(at.sum())} elements overflow on one side; the inputs are finite up to {largest:.3g}",
    )


def _nonfinite(case: _Case) -> tuple[str, str] | None:
    given = "finite" if facts.finite(case.sample.values()) else "NaN or infinite in places"
    pair = case.pair
    if pair is None:
        return "numeric/nonfinite", f"the inputs are {given}"
    left, right = (int((~facts.wide(side).isfinite()).sum()) for side in pair)
    counts = f"{left} elements of the reference, {right} of the target"
    return "numeric/nonfinite", f"not finite: {counts}; the inputs are {given}"


def _gathered_tie(case: _Case) -> tuple[str, str] | None:
    """An index leaf that differs, while what it points at is equal: an exact tie, broken another way."""
    pair = case.pair
    if pair is None or not facts.is_index(*pair):
        return None
    for name, source in case.sample.items():
        if facts.gathers_alike(*pair, source):
            return "order/tie", f"the indices differ, the values that they pick from input {name} are equal"
    for path, left, right in case.siblings():
        agrees = left.is_floating_point() and left.shape == pair[0].shape and torch.equal(left, right)
        if agrees and (facts.has_ties(left) or any(facts.has_ties(t) for t in case.sample.values())):
            return "order/tie", f"the indices differ, {path} beside them agrees exactly, and there are exact ties"
    return None


def _permuted(case: _Case) -> tuple[str, str] | None:
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
        if left.is_floating_point() and torch.equal(left, right) and facts.has_ties(left):
            return "order/tie", f"the same rows in another order, {path} agrees exactly and holds ties"
    if case.has_boxes():
        return "order/nms", "the same rows in another order, from boxes"
    if any(facts.has_ties(t) for t in case.sample.values() if t.is_floating_point()):
        return "order/tie", "the same rows in another order, and the inputs hold exact ties"
    return "order/unknown", "the same rows in another order"


def _integer(case: _Case) -> tuple[str, str] | None:
    pair = case.pair
    if pair is None or torch.bool in (pair[0].dtype, pair[1].dtype):
        return None
    floats = [t for t in case.sample.values() if t.is_floating_point() or t.is_complex()]
    if not floats:
        return "numeric/integer", "an integer leaf computed from integer inputs"
    if not facts.is_index(*pair):
        return "numeric/integer", "an integer leaf that is no index: a conversion or integer arithmetic"
    return None


def _index_of_nonfinite(case: _Case) -> tuple[str, str] | None:
    if facts.finite(case.sample.values()):
        return None
    if case.pair is not None and case.pair[0].dtype != torch.bool and not facts.is_index(*case.pair):
        return None  # a conversion to integers, which chose nothing
    if case.has_boxes():
        return "order/nms", "other boxes are kept, with inputs that are NaN or infinite in places"
    return "numeric/nonfinite", "a decision over inputs that are NaN or infinite in places"


def _subnormal(case: _Case) -> tuple[str, str] | None:
    if case.pair is None or not facts.all_subnormal(*case.pair):
        return None
    return "numeric/subnormal", "every mismatch lies below the smallest normal number"


def _special_function(case: _Case) -> tuple[str, str] | None:
    """Total loss at elements whose own inputs are tiny, or in the tail of an exponential."""
    pair = case.pair
    if pair is None or pair[0].is_complex() or case.difference.blame is Blame.NEITHER:
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    differs = left != right
    if not bool(differs.any()):
        return None
    for name, tensor in case.sample.items():
        if tensor.shape != pair[0].shape or not tensor.is_floating_point():
            continue
        at = facts.wide(tensor)[differs].abs()
        if bool(((at > 0) & (at < _TINY_INPUT)).all()):
            return (
                "numeric/approximation",
                f"every mismatch has an input of {name} at most {float(at.max()):.2g} in size",
            )
        if bool(((at > _TAIL[0]) & (at < _TAIL[1])).all()):
            span = f"{float(at.min()):.3g} to {float(at.max()):.3g}"
            return (
                "numeric/approximation",
                f"every mismatch has an input of {name} of size {span}, an exponential's tail",
            )
    return None


def _rounding(case: _Case) -> tuple[str, str] | None:
    if case.difference.blame is not Blame.NEITHER:
        return None
    return "numeric/rounding", "both sides are within the model's own noise of float64"


def _wrong_value(case: _Case) -> tuple[str, str] | None:
    if case.difference.blame is Blame.UNKNOWN:
        return None
    if not facts.finite(case.sample.values()):
        return "numeric/nonfinite", "finite answers differ, from inputs that are NaN or infinite in places"
    who = {Blame.BOTH: "both sides are", Blame.TARGET: "the target is", Blame.REFERENCE: "the reference is"}
    return "numeric/wrong-value", f"{who.get(case.difference.blame, 'a side is')} further from float64 than any noise"


def _wrong_decision(case: _Case) -> tuple[str, str] | None:
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
    Kind.NONFINITE: (_signed_zero, _precision, _overflow, _nonfinite),
    Kind.INTEGER: (_gathered_tie, _near_tie, _index_of_nonfinite, _permuted, _integer, _wrong_decision),
    Kind.VALUE: (
        _permuted,
        _near_tie,
        _subnormal,
        _signed_zero,
        _rounding,
        _precision,
        _special_function,
        _wrong_value,
    ),
    Kind.SIGNED_ZERO: (_always("numeric/signed-zero"),),
    Kind.NONDETERMINISM: (_always("state/nondeterminism"),),
    Kind.MUTATION: (_always("state/mutation"),),
    Kind.TASK: (_near_tie,),
}
