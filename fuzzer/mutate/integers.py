"""Mutators of tokens and integers: the edges of their range, and what lies beyond where the seed allows it."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.base import INTEGER_DTYPES, AtPlaces, InputMutator, Shapes, register
from fuzzer.mutate.floats import edited
from fuzzer.mutate.randomness import draws, new_key
from fuzzer.mutate.where import Key, propose_where
from fuzzer.seeds.schema import InputSpec, Seed

Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def is_integer(spec: InputSpec) -> bool:
    return spec.kind in ("tokens", "integers") and spec.dtype_name in INTEGER_DTYPES


def limits(dtype_name: str) -> tuple[int, int]:
    """The smallest and the largest number of an integer dtype."""
    info = torch.iinfo(getattr(torch, dtype_name))
    return info.min, info.max


def declared(spec: InputSpec) -> tuple[int, int]:
    """The smallest and the largest value inside the declared range (tokens 0 to 999, integers −8 to 7 by default)."""
    low, high = spec.range or ((0, 1000) if spec.kind == "tokens" else (-8, 8))
    least, most = limits(spec.dtype_name)
    return max(math.ceil(low), least), min(math.ceil(high) - 1, most)


class IntegerParams(AtPlaces):
    value: Int64 | None  # None: the first element of the place


class PlacedInteger(InputMutator[IntegerParams]):
    """Puts one integer in some places."""

    params_type = IntegerParams

    def suits(self, spec: InputSpec) -> bool:
        return is_integer(spec)

    @abstractmethod
    def pool(self, spec: InputSpec) -> list[int | None]:
        """The values from which to choose."""

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> IntegerParams:
        return IntegerParams(
            input=name,
            where=propose_where(shape, rng, ("some", "some", "line", "row", "all")),
            value=rng.choice(self.pool(seed.inputs[name])),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: IntegerParams) -> Tensor:
        least, most = limits(spec.dtype_name)

        def constant(at: Tensor) -> Tensor:
            if params.value is None:
                return at[:1].expand_as(at)
            return torch.full_like(at, min(max(params.value, least), most))

        return edited(tensor, params.where, constant)


@register
class IntegerEdges(PlacedInteger):
    """The ends of the declared range, zero, and duplicates."""

    name = "integer_edges"

    def pool(self, spec: InputSpec) -> list[int | None]:
        low, high = declared(spec)
        return [None, None, *(value for value in {low, high, 0, low + 1} if low <= value <= high)]


@register
class IntegersOutOfRange(PlacedInteger):
    """Values outside the declared range: −1, the first too large, the dtype's ends, where floats stop counting."""

    name = "integers_out_of_range"

    def fits(self, seed: Seed) -> bool:
        return seed.allow.out_of_range_integers and super().fits(seed)

    def pool(self, spec: InputSpec) -> list[int | None]:
        low, high = declared(spec)
        least, most = limits(spec.dtype_name)
        widths = (31, 32, 63, 64)  # from which on a shift has nothing left to give
        wanted = (-1, -2, low - 1, high + 1, least, most, *widths, 2**24 + 1, 2**31, 2**53 + 1)
        return [value for value in wanted if least <= value <= most and not low <= value <= high]

    def suits(self, spec: InputSpec) -> bool:
        return is_integer(spec) and bool(self.pool(spec))


class BesideParams(AtPlaces):
    source: Literal["max", "min"]
    plus: Annotated[int, Field(ge=-2, le=2)]
    from_end: bool  # counted from the end, as a negative index of what holds one more than the largest


@register
class IntegersBeside(InputMutator[BesideParams]):
    """The largest or smallest integer that the input holds, one more or less, or as an index from the end.

    Where integers are indices, the largest one is often the last that is valid, which the seed need not know.
    """

    name = "integers_beside"
    params_type = BesideParams

    def fits(self, seed: Seed) -> bool:
        return seed.allow.out_of_range_integers and super().fits(seed)

    def suits(self, spec: InputSpec) -> bool:
        return is_integer(spec) and not spec.exact

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> BesideParams:
        return BesideParams(
            input=name,
            where=propose_where(shape, rng, ("some", "some", "some", "line", "row"), (1, 1, 1, 2, 4)),
            source=rng.choice(("max", "max", "max", "min")),
            plus=rng.choice((1, 1, 0, -1, 2)),
            from_end=rng.random() < 0.4,
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: BesideParams) -> Tensor:
        if tensor.numel() == 0:
            return tensor.clone()
        held = int(tensor.max() if params.source == "max" else tensor.min())
        beside = -(held + 1) - params.plus if params.from_end else held + params.plus
        least, most = limits(spec.dtype_name)
        return edited(tensor, params.where, lambda at: torch.full_like(at, min(max(beside, least), most)))


class IntegerScaleParams(AtPlaces):
    factor: Int64
    plus: Annotated[int, Field(ge=-1024, le=1024)] = 0


@register
class IntegerScale(InputMutator[IntegerScaleParams]):
    """Multiplies by ±2^k and adds 0 or ±1, wrapping around. Integers with a declared range need the seed's leave."""

    name = "integer_scale"
    params_type = IntegerScaleParams

    def fits(self, seed: Seed) -> bool:
        return bool(self._willing(seed))

    def suits(self, spec: InputSpec) -> bool:
        return spec.kind == "integers" and is_integer(spec) and not spec.exact

    def _willing(self, seed: Seed) -> list[str]:
        anything = seed.allow.out_of_range_integers
        return [name for name in self.targets(seed) if anything or seed.inputs[name].range is None]

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> IntegerScaleParams:
        name = rng.choice(self._willing(seed))
        return self.pick(seed, name, shapes[name], rng)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> IntegerScaleParams:
        bits = torch.iinfo(getattr(torch, seed.inputs[name].dtype_name)).bits
        power: int = 2 ** rng.randrange(bits - 1)
        return IntegerScaleParams(
            input=name,
            where=propose_where(shape, rng, ("some", "row", "slab", "all", "all")),
            factor=rng.choice((-1, power, power, -power)),
            plus=rng.choice((0, 0, 1, -1)),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: IntegerScaleParams) -> Tensor:
        return edited(tensor, params.where, lambda at: (at.long() * params.factor + params.plus).to(at.dtype))


class IntegerMagnitudeParams(AtPlaces):
    low: Int64
    high: Int64  # inclusive
    key: Key


@register
class IntegerMagnitudes(InputMutator[IntegerMagnitudeParams]):
    """Integers whose numbers of bits are uniform, of both signs, inside the declared range or, with leave, anywhere."""

    name = "integer_magnitudes"
    params_type = IntegerMagnitudeParams

    def suits(self, spec: InputSpec) -> bool:
        return spec.kind == "integers" and is_integer(spec) and not spec.exact

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> IntegerMagnitudeParams:
        spec = seed.inputs[name]
        wide = spec.range is None or seed.allow.out_of_range_integers
        low, high = limits(spec.dtype_name) if wide and rng.random() < 0.7 else declared(spec)
        return IntegerMagnitudeParams(
            input=name,
            where=propose_where(shape, rng, ("some", "some", "row", "slab", "all", "all")),
            low=low,
            high=high,
            key=new_key(rng),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: IntegerMagnitudeParams) -> Tensor:
        least, most = limits(spec.dtype_name)
        low, high = max(params.low, least), min(params.high, most)

        def values(at: Tensor) -> Tensor:
            words = [int(word) for word in draws(params.key, 2 * len(at))]
            found = []
            for first, second in zip(words[::2], words[1::2], strict=True):
                span = high if first & 1 or low >= 0 else low
                size = second & ((1 << (first >> 1) % (abs(span).bit_length() + 1)) - 1)
                near = size + (1 if first >> 60 & 1 else 0)
                found.append(min(max(near if span >= 0 else -near, low), high))
            return torch.tensor(found, dtype=torch.int64).to(at.dtype)

        return edited(tensor, params.where, values)
