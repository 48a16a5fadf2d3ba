"""Where a reduction may go: which axes of the inputs belong together and how short they may be, which values may stand.

A reduced input is one that the seed allows, so that a maintainer is not sent an input that the owner rules out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fuzzer.inputs.dtypes import DTYPES, whole_range
from fuzzer.mutate.resize import sizes
from fuzzer.seeds.schema import InputSpec, Seed


@dataclass(frozen=True)
class Axes:
    """A named dimension: the (input, axis) pairs that have it, and its least size."""

    name: str
    places: tuple[tuple[str, int], ...]
    least: int


@dataclass(frozen=True)
class Values:
    """What may stand in an input. `low` and `high`, both inclusive, or None; `middle`: a plain value of its range."""

    low: float | None = None
    high: float | None = None
    middle: float | None = None


@dataclass(frozen=True)
class Space:
    """The axes that can be shortened, and what values may stand in which input (any, where it is not named).

    `boxes`: inputs that hold corners x1, y1, x2, y2 in their last dimension.
    """

    axes: tuple[Axes, ...] = ()
    values: dict[str, Values] = field(default_factory=dict)
    boxes: tuple[str, ...] = ()

    def disordered(self, sample: Mapping[str, Tensor]) -> int:
        """How many boxes have a corner on the wrong side of the other: another fault than most that boxes show."""
        corners = [sample[name] for name in self.boxes]
        return sum(int((box[..., :2] > box[..., 2:]).any(-1).sum()) for box in corners)


def space_of(seed: Seed) -> Space:
    """The space of a seed's inputs."""
    axes = []
    for name, dim in seed.dims.items():
        places = [(key, i) for key, spec in seed.inputs.items() for i, side in enumerate(spec.shape) if side == name]
        allowed = sizes(dim, seed.allow)
        if places and len(allowed) > 0:
            axes.append(Axes(name, tuple(places), allowed[0]))
    values = {name: _values(seed, spec) for name, spec in seed.inputs.items()}
    return Space(tuple(axes), values, tuple(name for name, spec in seed.inputs.items() if spec.kind == "boxes"))


def _values(seed: Seed, spec: InputSpec) -> Values:
    low, high = spec.range or (None, None)
    if spec.mean is not None or spec.std is not None:
        return Values()  # the range is that before normalising
    if spec.kind in ("tokens", "integers") and not seed.allow.out_of_range_integers:
        first, end = whole_range(
            DTYPES[spec.dtype_name], *(spec.range or ((0, 1000) if spec.kind == "tokens" else (-8, 8)))
        )
        return Values(first, end - 1)
    middle = None if low is None or high is None else (low + high) / 2
    if seed.allow.beyond_range or low is None:
        return Values(middle=middle)
    return Values(low, high, middle)
