"""Rules of symptoms for numbers: what a difference of values, NaN, infinities or signs looks like."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fuzzer.diagnose import facts
from fuzzer.diagnose.symptom import Case
from fuzzer.verify.verdict import Blame, Kind

#: Inputs this small or this far out are where formulas of special functions (expm1, a sigmoid's tail) lose accuracy.
_TINY_INPUT = 2.0**-10
_TAIL = (8.0, 128.0)
#: A sum is long where so many elements of an input go to one of the leaf's.
_LONG = 256
#: Accumulated rounding is a small share of the sum, and about the same in each.
_SMALL_SHARE, _ALIKE = 2.0**-4, 8.0
#: What an overflow leaves finite is off by rounding alone, at most by this share.
_NEAR = 2.0**-10


def signed_zero(case: Case) -> tuple[str, str] | None:
    """+inf against −inf, with a −0 among the inputs: a reciprocal or the like of a zero that changed its sign."""
    pair = case.pair
    if pair is None or not facts.has_negative_zero(case.sample.values()):
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    differs = (left != right) & ~(left.isnan() & right.isnan())
    if not bool(differs.any()) or not bool((left[differs] == -right[differs]).all()):
        return None
    return "numeric/signed-zero", "the inputs hold −0 and the answers differ in sign only"


def precision(case: Case) -> tuple[str, str] | None:
    """One side is the other rounded to a narrower float, or its relative errors are those of one."""
    pair = case.pair
    if pair is None or not (pair[0].is_floating_point() and pair[1].is_floating_point()):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        for fine, coarse, which in ((pair[0], pair[1], "target"), (pair[1], pair[0], "reference")):
            if facts.rounds_to(fine, coarse, dtype):
                return "numeric/reduced-precision", f"the {which}'s values are the other side's, rounded to {name}"
    for fine, coarse, which in ((*pair, "target"), (pair[1], pair[0], "reference")):
        held = facts.shorter(coarse, fine)
        if held is not None:
            name = str(held).removeprefix("torch.")
            return (
                "numeric/reduced-precision",
                f"the {which}'s values that differ are all {name}, the other side's are not",
            )
    truth = case.leaf(case.truth)
    judge = truth if isinstance(truth, Tensor) and truth.shape == pair[0].shape else pair[0]
    blamed = isinstance(truth, Tensor) and case.difference.blame is Blame.REFERENCE
    side = pair[0] if blamed else pair[1]
    errors = facts.relative_errors(side, judge)
    if errors.numel() < 4 or not bool(torch.isfinite(errors).all()) or facts.one_way(side, judge):
        return None
    for found in (errors, facts.errors_of_scale(side, judge)):  # sums that cancel are off by a share of their terms
        named = _of_size(facts.median(found), float(found.max()), pair[0].dtype == pair[1].dtype == torch.float64)
        if named is not None:
            return "numeric/reduced-precision", named
    return None


def _of_size(middle: float, most: float, wide: bool) -> str | None:
    """The narrower float that has errors of this size."""
    sizes = f"relative errors about {middle:.2g}, at most {most:.2g}"
    if wide and facts.of_float32(middle, most):
        return f"{sizes}: float32"
    if 2.0**-14 < middle < 2.0**-10 and most < 2.0**-9:
        return f"{sizes}: TF32 or float16"
    if 2.0**-11 < middle < 2.0**-7 and most < 2.0**-6:
        return f"{sizes}: bfloat16"
    return None


def overflow(case: Case) -> tuple[str, str] | None:
    """An infinity on one side, not on the other, from finite inputs, or where float64 is finite too; or what is left of
    one: NaN, and zeros, from inputs whose squares or exponentials are beyond the dtype."""
    pair = case.pair
    if pair is None:
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    truth = case.leaf(case.truth)
    exact = facts.wide(truth) if isinstance(truth, Tensor) and truth.shape == pair[0].shape else None
    finite = facts.finite(case.sample.values())
    largest = facts.largest_magnitude(case.sample.values())
    at = (left.isinf() | right.isinf()) & (left != right)
    if bool(at.any()):
        if not finite and (exact is None or not bool(exact[at].isfinite().all())):
            return None
        what = f"{int(at.sum())} elements overflow on one side"
        return "numeric/overflow", f"{what}; the inputs are finite up to {largest:.3g}"
    if exact is None or not finite or not _squares_or_powers_overflow(case, largest):
        return None
    lost = (left.isnan() ^ right.isnan()) | ((left == 0) ^ (right == 0))
    kept = left.isfinite() & right.isfinite() & ~lost
    slack = _NEAR if case.difference.kind is Kind.NONFINITE else 0.0  # a zero alone is weak evidence
    near = (left - right).abs()[kept] <= slack * left.abs()[kept]
    if not bool(lost.any()) or not bool(near.all()) or not bool((exact.isfinite() & (exact != 0))[lost].all()):
        return None
    what = f"{int(lost.sum())} elements are NaN or 0 on one side, and neither in float64"
    return "numeric/overflow", f"{what}; the inputs reach {largest:.3g}, where a square or an exponential overflows"


def _squares_or_powers_overflow(case: Case, largest: float) -> bool:
    floats = [t for t in case.sample.values() if t.is_floating_point()]
    most = min((torch.finfo(t.dtype).max for t in floats), default=math.inf)
    return largest > min(math.sqrt(most), math.log(most))


def nonfinite(case: Case) -> tuple[str, str] | None:
    given = "finite" if facts.finite(case.sample.values()) else "NaN or infinite in places"
    pair = case.pair
    if pair is None:
        return "numeric/nonfinite", f"the inputs are {given}"
    left, right = (int((~facts.wide(side).isfinite()).sum()) for side in pair)
    counts = f"{left} elements of the reference, {right} of the target"
    return "numeric/nonfinite", f"not finite: {counts}; the inputs are {given}"


def wrong_beside_nonfinite(case: Case) -> tuple[str, str] | None:
    """NaN where float64 is finite, from finite inputs, and beside it finite values that are wrong as well."""
    truth = case.leaf(case.truth)
    if not facts.finite(case.sample.values()) or not isinstance(truth, Tensor) or not facts.finite([truth]):
        return None
    path, blamed = case.difference.path, (Blame.TARGET, Blame.REFERENCE, Blame.BOTH)
    beside = [d for d in case.verdict.differences if d.path == path and d.kind is Kind.VALUE and d.blame in blamed]
    if not beside:
        return None
    return "numeric/wrong-value", f"{beside[0].mismatched} finite elements are wrong beside those that are not finite"


def subnormal(case: Case) -> tuple[str, str] | None:
    if case.pair is None or not facts.all_subnormal(*case.pair):
        return None
    return "numeric/subnormal", "every mismatch lies below the smallest normal number"


def special_function(case: Case) -> tuple[str, str] | None:
    """Total loss at elements whose own inputs are tiny, or in the tail of an exponential."""
    pair = case.pair
    if pair is None or pair[0].is_complex() or case.difference.blame is Blame.NEITHER:
        return None
    left, right = facts.wide(pair[0]), facts.wide(pair[1])
    differs = (left != right) & ~(left.isnan() & right.isnan())
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


def accumulation(case: Case) -> tuple[str, str] | None:
    """A long reduction that is off by a small share of itself, everywhere by about the same and in one direction."""
    pair, truth = case.pair, case.leaf(case.truth)
    if pair is None or not isinstance(truth, Tensor) or truth.shape != pair[0].shape or pair[0].is_complex():
        return None
    if case.difference.blame not in (Blame.TARGET, Blame.REFERENCE, Blame.BOTH) or not facts.finite(pair):
        return None
    terms = max((t.numel() for t in case.sample.values() if t.is_floating_point()), default=0) / max(truth.numel(), 1)
    side, exact = facts.wide(pair[case.difference.blame is not Blame.REFERENCE]), facts.wide(truth)
    at = (facts.wide(pair[0]) != facts.wide(pair[1])) & (exact != 0)
    share = ((side - exact) / exact)[at]
    if terms < _LONG or not share.numel() or not (bool((share > 0).all()) or bool((share < 0).all())):
        return None
    sizes = share.abs()
    if float(sizes.max()) > min(_SMALL_SHARE, _ALIKE * facts.median(sizes)):
        return None
    less = "less" if float(share[0]) < 0 else "more"
    return (
        "numeric/accumulation",
        f"about {terms:.0f} terms give {float(sizes.max()):.2g} of themselves {less} than float64",
    )


def rounding(case: Case) -> tuple[str, str] | None:
    if case.difference.blame is not Blame.NEITHER:
        return None
    return "numeric/rounding", "both sides are within the model's own noise of float64"


def wrong_value(case: Case) -> tuple[str, str] | None:
    if case.difference.blame is Blame.UNKNOWN:
        return None
    if not facts.finite(case.sample.values()):
        return "numeric/nonfinite", "finite answers differ, from inputs that are NaN or infinite in places"
    who = {Blame.BOTH: "both sides are", Blame.TARGET: "the target is", Blame.REFERENCE: "the reference is"}
    return "numeric/wrong-value", f"{who.get(case.difference.blame, 'a side is')} further from float64 than any noise"
