"""The value passes: elements to a fill value in blocks, then what is left to simpler values.

Equal values move together, so that a tie stays a tie; values within a few ULP of each other move together and keep
their distance, so that a near-tie stays one. Both are tried apart only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fuzzer.reduce.bits import at_ordinals, from_bits, ordinals, plain, rebuilt, to_bits
from fuzzer.reduce.engine import Changes, Pass, Sample
from fuzzer.reduce.simpler import TARGETS, Simpler
from fuzzer.reduce.size import costs
from fuzzer.reduce.space import Space, Values

#: Floats this many steps apart, or fewer, are near-equal.
NEAR = 4
_NOTHING: Changes[Sample] = Changes(0, lambda which: None)


def fill_passes(space: Space, names: Sequence[str]) -> list[Pass]:
    """Elements to a fill value: all inputs at once, then each: to 0 or the allowed value next to it, to the input's
    most common value, to the middle of its range."""
    every = [partial(_to_fill, space, tuple(names), fill) for fill in (_zero, _most_common, _middle)]
    single = [partial(_to_fill, space, (name,), fill) for name in names for fill in (_zero, _most_common, _middle)]
    return [*every, *(single if len(names) > 1 else [])]


def survivor_passes(space: Space, names: Sequence[str]) -> list[Pass]:
    """What is left to simpler values: groups of near-equal values, then of equal ones, then single elements."""
    return [
        partial(_to_simpler, space, name, simpler, grouped)
        for grouped in (_near, _equal, _single)
        for name in names
        for simpler in TARGETS
    ]


Fill = Callable[[Tensor, Values], float | None]


def _zero(value: Tensor, allowed: Values) -> float | None:
    low = 0.0 if allowed.low is None else max(allowed.low, 0.0)
    return low if allowed.high is None else min(low, allowed.high)


def _middle(value: Tensor, allowed: Values) -> float | None:
    return allowed.middle


def _most_common(value: Tensor, allowed: Values) -> float | None:
    finite = value[torch.isfinite(value.double())]
    if finite.numel() == 0:
        return None
    found, counts = torch.unique(finite, return_counts=True)
    return float(found[counts.argmax()]) if int(counts.max()) > 1 else None


def _to_fill(space: Space, names: Sequence[str], fill: Fill, sample: Sample) -> Changes[Sample]:
    """A change is one element that becomes the fill value; those of all inputs in one row, in memory order."""
    flat = {name: plain(sample[name]).reshape(-1) for name in names}
    filled: dict[str, Tensor] = {}
    places: list[tuple[str, Tensor]] = []
    for name, value in flat.items():
        number = fill(value, space.values.get(name, Values()))
        if number is not None:
            filled[name] = torch.tensor(number, dtype=torch.float64).to(value.dtype)
            same = to_bits(value) == to_bits(filled[name])
            places.append((name, (~same).nonzero().flatten()))
    count = sum(len(found) for _, found in places)
    if count == 0:
        return _NOTHING

    def apply(which: Sequence[int]) -> Sample:
        chosen = torch.tensor(which, dtype=torch.int64)
        changed, start = dict(sample), 0
        for name, found in places:
            here = chosen[(chosen >= start) & (chosen < start + len(found))] - start
            start += len(found)
            value = flat[name].clone()
            value[found[here]] = filled[name]
            changed[name] = rebuilt(value, sample[name])
        return changed

    return Changes(count, apply)


@dataclass(frozen=True)
class Groups:
    """Which elements move together: `label` of each element (flat), −1 for none; `base`: an element of each group."""

    label: Tensor
    base: Tensor


def _near(value: Tensor) -> Groups:
    """Groups with more than one value in them: finite floats, in order at most NEAR steps apart, zeros aside."""
    label = torch.full((value.numel(),), -1, dtype=torch.int64)
    if not value.is_floating_point():
        return Groups(label, label[:0])
    places = ordinals(value)
    able = (torch.isfinite(value) & (places != 0)).nonzero().flatten()
    order = able[places[able].argsort(stable=True)]
    gaps = places[order].diff()
    group = torch.cat([torch.zeros(min(len(order), 1), dtype=torch.int64), (gaps > NEAR).cumsum(0)])
    mixed = torch.unique(group[1:][(gaps > 0) & (gaps <= NEAR)])
    place = torch.searchsorted(mixed, group)
    inside = torch.isin(group, mixed)
    label[order[inside]] = place[inside]
    first = torch.cat([torch.ones(min(len(order), 1), dtype=torch.bool), gaps > NEAR])
    return Groups(label, order[first & inside])


def _equal(value: Tensor) -> Groups:
    distinct, label = torch.unique(to_bits(value), return_inverse=True)
    base = torch.zeros(len(distinct), dtype=torch.int64)
    base[label] = torch.arange(len(label))
    return Groups(label, base)


def _single(value: Tensor) -> Groups:
    """Each element whose value others have too (`_equal` has tried the rest), the most common value aside."""
    _, group, counts = torch.unique(to_bits(value), return_inverse=True, return_counts=True)
    alone = (counts > 1) & (torch.arange(len(counts)) != counts.argmax()) if len(counts) else counts > 1
    base = alone[group].nonzero().flatten()
    label = torch.full((value.numel(),), -1, dtype=torch.int64)
    label[base] = torch.arange(len(base))
    return Groups(label, base)


def _to_simpler(
    space: Space, name: str, simpler: Simpler, grouped: Callable[[Tensor], Groups], sample: Sample
) -> Changes[Sample]:
    """A change is one group whose base becomes simpler; the others keep their distance to it in steps."""
    value = plain(sample[name]).reshape(-1)
    groups = grouped(value)
    base = value[groups.base]
    new, able = _simplified(base, simpler)
    member = groups.label >= 0
    label = groups.label.clamp(min=0)
    if not bool(able.any()):
        return _NOTHING
    offset = torch.where(member, ordinals(value) - ordinals(base)[label], 0)
    shifted = at_ordinals(ordinals(new)[label] + offset, value.dtype)
    moved = from_bits(torch.where(offset == 0, to_bits(new)[label], to_bits(shifted)), value.dtype)
    allowed = space.values.get(name, Values())
    bad = _further_out(moved, allowed) > _further_out(value, allowed)
    bad |= (offset != 0) & ((new == 0)[label] | ~torch.isfinite(moved.double()))  # beside 0 lie the subnormals
    able[label[bad & member]] = False
    chosen = able.nonzero().flatten()

    def apply(which: Sequence[int]) -> Sample:
        picked = torch.zeros(len(able), dtype=torch.bool)
        picked[chosen[torch.tensor(which, dtype=torch.int64)]] = True
        mask = member & picked[label]
        bits = torch.where(mask, to_bits(moved), to_bits(value))
        return {**sample, name: rebuilt(from_bits(bits, value.dtype), sample[name])}

    return Changes(len(chosen), apply)


def _simplified(base: Tensor, simpler: Simpler) -> tuple[Tensor, Tensor]:
    """The simpler value of each of `base`, and where there is one that costs less."""
    found = [simpler(number, base.dtype) for number in base.tolist()]
    fits = _fits(base.dtype)
    able = torch.tensor([number is not None and fits(number) for number in found], dtype=torch.bool)
    numbers = [number if ok and number is not None else 0 for number, ok in zip(found, able.tolist(), strict=True)]
    kind = torch.float64 if base.dtype.is_floating_point else torch.int64
    new = torch.tensor(numbers, dtype=torch.float64).to(kind).to(base.dtype)
    return new, able & (costs(new) < costs(base))


def _fits(dtype: torch.dtype) -> Callable[[float], bool]:
    """Whether a number can be put into `dtype` at all."""
    if dtype.is_floating_point:
        return lambda number: True
    if dtype == torch.bool:
        return lambda number: number in (0, 1)
    info = torch.iinfo(dtype)
    return lambda number: number == number and info.min <= number <= info.max and abs(number) < 2**62


def _further_out(values: Tensor, allowed: Values) -> Tensor:
    """How far beyond what is allowed each value lies: float64, 0 inside, infinite for NaN."""
    wide = values.double()
    low = -torch.inf if allowed.low is None else allowed.low
    high = torch.inf if allowed.high is None else allowed.high
    beyond = torch.maximum((low - wide).clamp(min=0), (wide - high).clamp(min=0))
    return torch.where(torch.isnan(wide), torch.inf, beyond.nan_to_num(nan=0.0, posinf=1e308))
