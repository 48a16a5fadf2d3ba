"""The planted self-test: known faults put into a good output, each of which a verdict must notice.

A comparison that misses one of them, scaled to the very output it is to guard, is not worth a campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaf, Leaves
from fuzzer.verify.compare import COMPLEX, INTEGERS
from fuzzer.verify.ulp import FORMATS, is_nan, ulp
from fuzzer.verify.unanswered import OracleDown
from fuzzer.verify.verdict import Outcome, Verdict

_SMALLEST_MOVE = 64  # ulp: past the rounding that a judge forgives, where a leaf hardly spreads
_SHARE_OF_SPREAD = 1e-3
#: Times a leaf's own distance from float64: further than any right way to compute it goes. Known without the judge's
#: noise floor, which planted faults are to test.
BEYOND_ERROR = 32.0


@dataclass(frozen=True)
class Corruption:
    """One planted fault. Where it is not applicable, `leaves` are the output as it was and `why_not` says why."""

    name: str
    leaves: Leaves
    applicable: bool
    path: str = ""
    why_not: str = ""


@dataclass
class SelfTest:
    """What a verdict made of the corruptions, by their names, and of the uncorrupted output (`false_alarm`)."""

    caught: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    not_applicable: dict[str, str] = field(default_factory=dict)
    false_alarm: bool = False

    @property
    def ok(self) -> bool:
        """Something was planted, all of it was caught, and the clean output was not called a mismatch."""
        return bool(self.caught) and not self.missed and not self.false_alarm


class _NotApplicable(Exception):
    pass


def self_test(
    outputs: Leaves,
    verdict_of: Callable[[Leaves], Verdict],
    rng: torch.Generator | None = None,
    *,
    informative: Collection[str] | None = None,
    tolerance: Tolerance | None = None,
    truth: Callable[[], Leaves | None] | None = None,
) -> SelfTest:
    """Ask `verdict_of` about every corruption of `outputs`, and about `outputs` themselves; its errors pass through.

    Without `rng` the elements are drawn from a generator seeded with 0. `tolerance` is the seed's own, `truth`
    gives what float64 answers: see `corruptions`.
    """
    try:
        known = None if truth is None else truth()
    except OracleDown:  # the verdicts on the corruptions then say so
        known = None
    result = SelfTest(false_alarm=verdict_of(outputs).outcome is Outcome.MISMATCH)
    rng = rng or torch.Generator().manual_seed(0)
    for corruption in corruptions(outputs, rng, informative=informative, tolerance=tolerance, truth=known):
        if not corruption.applicable:
            result.not_applicable[corruption.name] = corruption.why_not
        elif verdict_of(corruption.leaves).outcome is Outcome.MISMATCH:
            result.caught.append(corruption.name)
        else:
            result.missed.append(corruption.name)
    return result


def corruptions(
    outputs: Leaves,
    rng: torch.Generator,
    *,
    informative: Collection[str] | None = None,
    tolerance: Tolerance | None = None,
    truth: Leaves | None = None,
) -> list[Corruption]:
    """Seven faults, each in the largest leaf that can have it; `outputs` are not touched.

    The one element moves by a thousandth of its leaf's spread, or by twice what `tolerance` allows there: an owner who
    asks for a wide tolerance is not to be told that it is wide (what is wider than the spread is vacuous anyway). Where
    the outputs are far from `truth`, so that a thousandth is what the model's rounding does by itself, it moves by
    `BEYOND_ERROR` times that distance, but by no more than the spread.
    Only leaves in `informative` are taken, where it is given. Leaves that are sparse or quantised can only be dropped.
    """
    leaves = {
        path: leaf
        for path, leaf in outputs.items()
        if isinstance(leaf, Tensor) and (informative is None or path in informative)
    }
    leaves = dict(sorted(leaves.items(), key=lambda item: -item[1].numel()))
    dense = {path: leaf for path, leaf in leaves.items() if leaf.layout == torch.strided and not leaf.is_quantized}
    floats = {path: leaf for path, leaf in dense.items() if leaf.dtype in FORMATS or leaf.dtype in COMPLEX}
    integers = {path: leaf for path, leaf in dense.items() if leaf.dtype in INTEGERS}
    numbers = {path: leaf for path, leaf in dense.items() if path in floats or path in integers}
    far = {path: distance(leaf, (truth or {}).get(path)) for path, leaf in floats.items()}
    return [
        _plant_at("one element moved", outputs, floats, lambda path, leaf: _moved(leaf, rng, tolerance, far[path])),
        _plant("two elements swapped", outputs, numbers, _swapped),
        _plant("a leaf zeroed", outputs, numbers, _zeroed),
        _plant("a NaN set", outputs, floats, lambda leaf: _with_nan(leaf, rng)),
        _plant("a shape transposed", outputs, dense, _transposed),
        _plant("an integer off by one", outputs, integers, lambda leaf: _off_by_one(leaf, rng)),
        _plant("a leaf dropped", outputs, leaves, None),
    ]


def _plant(
    name: str, outputs: Leaves, candidates: dict[str, Tensor], fault: Callable[[Tensor], Tensor] | None
) -> Corruption:
    """`fault` (None: the leaf is left out) in the first candidate that can have it, which is the largest."""
    return _plant_at(name, outputs, candidates, None if fault is None else lambda path, leaf: fault(leaf))


def _plant_at(
    name: str, outputs: Leaves, candidates: dict[str, Tensor], fault: Callable[[str, Tensor], Tensor] | None
) -> Corruption:
    """As `_plant`, where the fault depends on the leaf's path."""
    reasons = []
    for path, leaf in candidates.items():
        try:
            if fault is None:
                return Corruption(name, {key: value for key, value in outputs.items() if key != path}, True, path)
            return Corruption(name, {**outputs, path: fault(path, leaf.detach().to("cpu"))}, True, path)
        except _NotApplicable as reason:
            reasons.append(f"{path}: {reason}")
    return Corruption(name, outputs, False, why_not="; ".join(reasons) or "no leaf of that kind")


def _copy(leaf: Tensor) -> tuple[Tensor, Tensor]:
    """A contiguous copy of `leaf`, and the same memory as one row of real numbers."""
    copy = leaf.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return copy, (torch.view_as_real(copy) if copy.is_complex() else copy).reshape(-1)


def distance(leaf: Tensor, truth: Leaf) -> float:
    """The distance from float64 that nine of ten elements keep (some rows may have changed places); 0 without one."""
    if not isinstance(truth, Tensor) or truth.shape != leaf.shape or leaf.numel() == 0:
        return 0.0
    wide = torch.complex128 if leaf.is_complex() or truth.is_complex() else torch.float64
    apart = (leaf.detach().to("cpu", wide) - truth.to("cpu", wide)).abs().nan_to_num(0.0, 0.0, 0.0).flatten()
    return float(apart.kthvalue((9 * len(apart) + 9) // 10).values)


def _moved(leaf: Tensor, rng: torch.Generator, tolerance: Tolerance | None, error: float = 0.0) -> Tensor:
    copy, row = _copy(leaf)
    values = row.to(torch.float64)
    finite = torch.isfinite(values)
    if not bool(finite.any()):
        raise _NotApplicable("no finite element")
    known = values[finite]
    scale = float(known.abs().max()) or 1.0
    spread = float((known / scale).std(correction=0)) * scale
    step = torch.clamp(
        _SMALLEST_MOVE * ulp(values, row.dtype), min=max(_SHARE_OF_SPREAD * spread, min(BEYOND_ERROR * error, spread))
    )
    allowed = torch.zeros_like(values)
    if tolerance is not None:
        allowed = tolerance.atol + tolerance.rtol * values.abs()
        step = torch.maximum(step, 2 * allowed)
    for direction in (step, -step):
        moved = (values + direction).to(row.dtype)
        # a narrow dtype may saturate, overflow or round the step away
        reached = (moved.to(torch.float64) - values).abs()
        fits = finite & torch.isfinite(moved.to(torch.float64)) & (reached >= step / 2) & (reached > allowed)
        if bool(fits.any()):
            i = _draw(fits, rng)
            row[i] = moved[i]
            return copy
    raise _NotApplicable(f"{leaf.dtype} has no room for the step")


def _swapped(leaf: Tensor) -> Tensor:
    copy, _ = _copy(leaf)
    flat = copy.reshape(-1)
    values = (torch.view_as_real(flat)[:, 0] if flat.is_complex() else flat).to(torch.float64)
    values = values.masked_fill(~torch.isfinite(values), torch.nan)
    if bool(torch.isnan(values).all()):
        raise _NotApplicable("no finite element")
    i = int(values.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argmax())
    j = int(values.nan_to_num(nan=torch.inf, posinf=torch.inf).argmin())
    if not bool(values[i] > values[j]):
        raise _NotApplicable("all elements are equal")
    first = flat[i].clone()
    flat[i] = flat[j]
    flat[j] = first
    return copy


def _zeroed(leaf: Tensor) -> Tensor:
    copy, row = _copy(leaf)
    if not bool((row.to(torch.float64) != 0).any()):
        raise _NotApplicable("no element other than zero")
    copy.zero_()
    return copy


def _with_nan(leaf: Tensor, rng: torch.Generator) -> Tensor:
    copy, row = _copy(leaf)
    numbers = ~is_nan(row)
    if not bool(numbers.any()):
        raise _NotApplicable("no element other than NaN")
    row[_draw(numbers, rng)] = torch.nan
    return copy


def _transposed(leaf: Tensor) -> Tensor:
    """Two dimensions of different sizes exchanged; where there are none, a dimension of size 1 more."""
    first = next((i for i, size in enumerate(leaf.shape) if size != leaf.shape[0]), None)
    return leaf.unsqueeze(-1).clone() if first is None else leaf.transpose(0, first).contiguous()


def _off_by_one(leaf: Tensor, rng: torch.Generator) -> Tensor:
    copy, row = _copy(leaf)
    if not row.numel():
        raise _NotApplicable("no element")
    i = _draw(torch.ones(row.numel(), dtype=torch.bool), rng)
    value = int(row[i].item())
    most = 1 if leaf.dtype == torch.bool else torch.iinfo(leaf.dtype).max
    row[i] = value - 1 if value == most else value + 1
    return copy


def _draw(mask: Tensor, rng: torch.Generator) -> int:
    """The index of one element of `mask`, each as likely."""
    places = mask.nonzero().reshape(-1)
    return int(places[int(torch.randint(len(places), (1,), generator=rng))])
