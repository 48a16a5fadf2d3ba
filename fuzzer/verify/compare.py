"""Tier 1: two sets of output leaves, compared leaf by leaf and element by element.

Nothing is averaged before it is decided, nothing is skipped without a difference that says so, and nothing raises:
whatever cannot be compared is itself a difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaf, Leaves
from fuzzer.verify.ulp import FORMATS, is_nan, raw_bits, ulp_distance
from fuzzer.verify.verdict import Difference, Kind, LeafStats

#: The published study's tolerances: ‖t − r‖∞ ≤ atol + STUDY_RTOL·‖r‖∞.
STUDY_ATOLS = {"1e-6": 1e-6, "1e-5": 1e-5, "1e-4": 1e-4, "1e-3": 1e-3}
STUDY_RTOL = 1e-5
#: The name under which the same norm criterion at the seed's own tolerance stands beside them.
SEED_NORM = "seed"

#: A gap that nobody would call rounding at sight, in units of the dtype's epsilon times the leaf's largest value.
LARGE_GAP = 1000.0

#: The dtypes whose elements are compared exactly, and those compared as pairs of floats.
INTEGERS = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
}
COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_COMPARABLE = INTEGERS | FORMATS.keys() | COMPLEX
_MOST_DENSE = 1 << 28  # elements of a sparse leaf made dense: 2 GiB in float64
_LONGEST_TEXT = 200


class Screen(Protocol):
    """How far elements may be apart before they are worth judging, where the seed has no tolerance of its own."""

    def allowance(self, path: str, reference: Tensor) -> Tensor | None:
        """Allowed |t − r| for each element of `reference`, as float64 that broadcasts to its shape.

        `reference` is what `as_real` gives. None, or NaN at an element: not one step of the dtype is allowed.
        """


@dataclass
class Comparison:
    """What tier 1 saw. `compared` counts elements; a complex one counts as two, its real and its imaginary part.

    `masks` holds, for each float leaf with a VALUE difference, where its elements fail; `nonfinite` the same for
    NONFINITE. Both have the shape of `as_real` of the leaf.
    """

    differences: list[Difference] = field(default_factory=list)
    stats: list[LeafStats] = field(default_factory=list)
    compared: int = 0
    masks: dict[str, Tensor] = field(default_factory=dict)
    nonfinite: dict[str, Tensor] = field(default_factory=dict)

    def add(self, other: Comparison) -> None:
        self.differences += other.differences
        self.stats += other.stats
        self.compared += other.compared
        self.masks |= other.masks
        self.nonfinite |= other.nonfinite


class _ScreenError(Exception):
    pass


@dataclass(frozen=True)
class _Rules:
    tolerance: Tolerance | None
    signed_zero: bool
    screen: Screen | None


def compare(
    reference: Leaves,
    target: Leaves,
    *,
    tolerance: Tolerance | None = None,
    signed_zero: bool = False,
    screen: Screen | None = None,
) -> Comparison:
    """Compare every leaf of `target` with the one at the same path in `reference`; never raises on their account.

    Float elements that are finite on both sides fail where |t − r| > atol + rtol·|r| (a `tolerance` decides alone),
    else where they exceed the `screen`'s allowance, else where one step of the dtype or more lies between them.
    Integers, bools and non-tensors compare exactly. Leaves whose dtypes differ are a DTYPE difference and are still
    compared in a dtype that holds both (an integer against a float: in float64). An error of the screen's own passes.
    """
    rules = _Rules(tolerance, signed_zero, screen)
    found = Comparison()
    for path, value in reference.items():
        if path in target:
            found.add(_leaf(path, value, target[path], rules))
        else:
            found.differences.append(Difference(path, Kind.ARITY, "missing from the target", reference=_brief(value)))
    for path, value in target.items():
        if path not in reference:
            found.differences.append(Difference(path, Kind.ARITY, "not in the reference", target=_brief(value)))
    return found


def as_real(leaf: Tensor) -> Tensor:
    """`leaf` as it is compared: detached, dense, on the CPU; complex numbers as a last dimension of two real ones.

    Raises TypeError where the tensor is quantised, ValueError where a sparse one is too large to be made dense, and
    whatever torch raises on tensors without values (meta, nested).
    """
    value = leaf.detach()
    if value.is_quantized:
        raise TypeError("quantised tensors have no elements of their own")
    if value.layout != torch.strided:
        if value.numel() > _MOST_DENSE:
            raise ValueError(f"{value.numel()} elements are too many to make dense")
        value = value.to_dense()
    value = value.to("cpu").resolve_conj().resolve_neg()
    return torch.view_as_real(value) if value.is_complex() else value


def _leaf(path: str, reference: Leaf, target: Leaf, rules: _Rules) -> Comparison:
    try:
        if isinstance(reference, Tensor) and isinstance(target, Tensor):
            return _tensors(path, reference, target, rules)
        return _objects(path, reference, target, rules)
    except _ScreenError:
        raise
    except Exception as error:  # recorded as what it is: this pair cannot be compared
        line = (str(error).splitlines() or [""])[0]
        reason = f"cannot be compared: {type(error).__name__}: {line}"
        return _one(Difference(path, Kind.OBJECT, reason, 0, 0, None, _brief(reference), _brief(target)))


def _one(difference: Difference, compared: int = 0) -> Comparison:
    return Comparison([difference], compared=compared)


def _objects(path: str, reference: Leaf, target: Leaf, rules: _Rules) -> Comparison:
    """Python values. Numbers count as one element; text and None are checked, but no elements."""
    if type(reference) is not type(target):
        message = f"{_type(reference)} against {_type(target)}"
        return _one(Difference(path, Kind.OBJECT, message, 0, 0, None, _brief(reference), _brief(target)))
    if isinstance(reference, float) and isinstance(target, float):
        r, t = (torch.tensor(side, dtype=torch.float64) for side in (reference, target))
        return _floats(path, r, t, rules)
    number = isinstance(reference, int)
    if bool(reference == target):
        return Comparison(compared=int(number))
    kind = Kind.INTEGER if number else Kind.OBJECT
    message = f"{_type(reference)} {_brief(reference)} against {_brief(target)}"
    return _one(Difference(path, kind, message, 1, 1, None, _brief(reference), _brief(target)), int(number))


def _tensors(path: str, reference: Tensor, target: Tensor, rules: _Rules) -> Comparison:
    if reference.shape != target.shape:
        sizes = str(tuple(reference.shape)), str(tuple(target.shape))
        return _one(Difference(path, Kind.SHAPE, f"{sizes[0]} against {sizes[1]}", 0, 0, None, *sizes))
    found = Comparison()
    formats = _format(reference), _format(target)
    if formats[0] != formats[1]:
        message = f"{formats[0]} against {formats[1]}"
        found.differences.append(Difference(path, Kind.DTYPE, message, 0, 0, None, *formats))
    elif reference.dtype not in _COMPARABLE and _same_content(reference, target):
        found.compared = reference.numel()
        return found
    r, t = as_real(reference), as_real(target)
    if r.dim() != t.dim():  # a complex leaf against a real one: the real one has no imaginary part
        r, t = (side if side.dim() > reference.dim() else _with_zero_imaginary(side) for side in (r, t))
    for side in (r, t):
        if side.dtype not in _COMPARABLE:
            raise TypeError(f"no comparison for {_name(side.dtype)}")
    if r.dtype in INTEGERS and t.dtype in INTEGERS:
        found.add(_integers(path, r, t))
    else:
        found.add(_floats(path, r, t, rules))
    return found


def _same_content(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one dtype that cannot be compared by element are at least identical."""
    if a.is_quantized:
        return torch.equal(a, b)  # checks scale and zero point too
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _with_zero_imaginary(x: Tensor) -> Tensor:
    real = x.to(torch.float64)
    return torch.stack([real, torch.zeros_like(real)], dim=-1)


def _integers(path: str, r: Tensor, t: Tensor) -> Comparison:
    n = r.numel()
    unequal = _unequal_integers(r, t)
    count = int(unequal.sum())
    if not count:
        return Comparison(compared=n)
    gap = (r.to(torch.float64) - t.to(torch.float64)).abs().masked_fill_(~unequal, -1.0)
    at = _index(int(gap.argmax()), r.shape)
    sides = str(r[at].item()), str(t[at].item())
    message = f"{count} of {n} elements differ, such as {sides[0]} against {sides[1]}"
    return _one(Difference(path, Kind.INTEGER, message, n, count, at, *sides), n)


def _unequal_integers(r: Tensor, t: Tensor) -> Tensor:
    """Where the mathematical values differ, whatever the two integer dtypes."""
    if r.dtype == t.dtype:
        return r != t
    wide = [side.view(torch.int64) if side.dtype == torch.uint64 else side.to(torch.int64) for side in (r, t)]
    unequal = wide[0] != wide[1]
    if torch.uint64 in (r.dtype, t.dtype):  # the other side's negative numbers look like its upper half
        unequal |= wide[0] < 0
    return unequal


def _floats(path: str, r: Tensor, t: Tensor, rules: _Rules) -> Comparison:
    n = r.numel()
    stats = LeafStats(path, n)
    found = Comparison(stats=[stats], compared=n)
    if r.dtype == t.dtype and torch.equal(raw_bits(r), raw_bits(t)):
        stats.finite = int(torch.isfinite(r.to(torch.float32) if r.dtype.itemsize == 1 else r).sum())
        if stats.finite:
            stats.norm_ok = {name: True for name, _, _ in _norms(rules.tolerance)}
        return found
    r64, t64 = r.to(torch.float64), t.to(torch.float64)  # exact, but for 64-bit integers
    finite = torch.isfinite(r64) & torch.isfinite(t64)
    odd = ~finite & (r64 != t64) & ~(torch.isnan(r64) & torch.isnan(t64))
    common = _common(r.dtype, t.dtype)
    steps = ulp_distance(r.to(common), t.to(common)).masked_fill_(~finite, 0)
    gap = (t64 - r64).abs_().masked_fill_(~finite, 0.0)
    allowed = _allowance(path, r, r64, rules)
    fails = steps > 0
    if allowed is not None:
        fails &= ~((gap <= allowed) & torch.isfinite(gap))  # written so that a NaN allowance fails
    _fill(stats, r64, gap, steps, finite, bool(odd.any()), rules.tolerance)
    if bool(odd.any()):
        found.nonfinite[path] = odd
        found.differences.append(_at(path, Kind.NONFINITE, _odd_message(r64, t64, odd), odd, odd, r64, t64))
    if bool(fails.any()):
        found.masks[path] = fails
        excess = gap if allowed is None else torch.nan_to_num(gap - allowed, nan=math.inf, posinf=math.inf)
        worst = _at(path, Kind.VALUE, "", fails, excess.masked_fill(~fails, -math.inf), r64, t64)
        at = worst.index or ()
        limit = f", over {rules.tolerance}" if rules.tolerance else ""
        worst.message = f"{worst.mismatched} of {n} elements differ{limit}; the worst by {gap[at]:.6g}"
        worst.message += f" ({steps[at]} ulp of {_name(common)})"
        found.differences.append(worst)
    if rules.signed_zero:
        signs = (r64 == 0) & (t64 == 0) & (torch.signbit(r64) != torch.signbit(t64))
        if bool(signs.any()):
            message = f"{int(signs.sum())} of {n} elements are zeros of the other sign"
            found.differences.append(_at(path, Kind.SIGNED_ZERO, message, signs, signs, r64, t64))
    return found


def _common(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype in which steps are counted: their own where it is one, else the smallest of float32 and float64."""
    if a == b:
        return a
    narrow = all(dtype in FORMATS and dtype != torch.float64 for dtype in (a, b))
    return torch.float32 if narrow else torch.float64


def _allowance(path: str, r: Tensor, r64: Tensor, rules: _Rules) -> Tensor | None:
    if rules.tolerance is not None:
        return rules.tolerance.atol + rules.tolerance.rtol * r64.abs()
    if rules.screen is None:
        return None
    try:
        allowed = rules.screen.allowance(path, r)
        return None if allowed is None else allowed.expand(r.shape)
    except Exception as error:  # our fault, not the leaf's: it must not look like a difference
        raise _ScreenError(f"screening {path}: {type(error).__name__}: {error}") from error


def _norms(tolerance: Tolerance | None) -> list[tuple[str, float, float]]:
    norms = [(name, atol, STUDY_RTOL) for name, atol in STUDY_ATOLS.items()]
    return norms if tolerance is None else [*norms, (SEED_NORM, tolerance.atol, tolerance.rtol)]


def _fill(
    stats: LeafStats, r64: Tensor, gap: Tensor, steps: Tensor, finite: Tensor, odd: bool, tolerance: Tolerance | None
) -> None:
    """Statistics over the `finite` elements. The 95th percentile is the nearest rank; a relative error at 0 is ∞.

    A norm criterion is not met where a non-finite value differs, and stays out where no element could be compared.
    """
    stats.finite = int(finite.sum())
    if not stats.finite:
        stats.norm_ok = {name: False for name, _, _ in _norms(tolerance)} if odd else {}
        return
    whole = stats.finite == stats.elements
    d, size = (x.reshape(-1) if whole else x[finite] for x in (gap, r64.abs()))
    worst = float(d.max())
    stats.max_abs = worst
    # scaled by the largest, so that the sum of a million gaps of 1e308 does not overflow
    stats.mean_abs = worst * float((d / worst).mean()) if 0 < worst < math.inf else worst
    stats.p95_abs = float(d.kthvalue((95 * stats.finite + 99) // 100).values)
    stats.max_rel = float((d / size).masked_fill_(d == 0, 0.0).max())
    stats.max_ulp = int(steps.max())
    largest = stats.largest = float(size.max())
    stats.norm_ok = {
        name: not odd and worst < math.inf and worst <= atol + rtol * largest for name, atol, rtol in _norms(tolerance)
    }


def _odd_message(r: Tensor, t: Tensor, odd: Tensor) -> str:
    nan_r, nan_t = is_nan(r), is_nan(t)
    counts = {
        "NaN only in the target": int((odd & nan_t).sum()),
        "NaN only in the reference": int((odd & nan_r).sum()),
        "infinite on one side or of other signs": int((odd & ~nan_r & ~nan_t).sum()),
    }
    facts = "; ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{int(odd.sum())} of {odd.numel()} elements are not finite alike: {facts}"


def _at(path: str, kind: Kind, message: str, mask: Tensor, weight: Tensor, r: Tensor, t: Tensor) -> Difference:
    """A difference at the elements of `mask`, shown at the first one of the largest `weight`."""
    heaviest = weight.to(torch.uint8) if weight.dtype == torch.bool else weight
    at = _index(int(heaviest.argmax()), r.shape)
    sides = repr(float(r[at])), repr(float(t[at]))  # exact in float64: shortest text that tells every value apart
    return Difference(path, kind, message, mask.numel(), int(mask.sum()), at, *sides)


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.append(i)
    return tuple(reversed(index))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _format(x: Tensor) -> str:
    layout = "" if x.layout == torch.strided else f" {str(x.layout).removeprefix('torch.')}"
    return _name(x.dtype) + layout


def _type(leaf: Leaf) -> str:
    return "a tensor" if isinstance(leaf, Tensor) else type(leaf).__name__


def _brief(leaf: Leaf) -> str:
    """A leaf in a few words; must not fail, whatever the leaf."""
    try:
        text = f"{_format(leaf)} {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)
    except Exception as error:  # recorded as what it is: a leaf that cannot even be shown
        return f"<{type(leaf).__name__}: {type(error).__name__}>"
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"
