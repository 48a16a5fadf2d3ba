"""Mutators that put chosen values in some places: the edges of dtypes, of rounding and of special functions."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.base import AtPlaces, FiniteFloat, InputMutator, free_float, register, whole
from fuzzer.mutate.floats import REAL_DTYPES, edited, saturated, ulp_step
from fuzzer.mutate.where import Place, propose_where
from fuzzer.seeds.schema import InputSpec, Seed

Ulps = Annotated[int, Field(ge=-1024, le=1024)]


class PlacedParams(AtPlaces):
    values: Annotated[list[FiniteFloat], Field(min_length=1, max_length=64)]  # put there in turn
    ulps: Ulps = 0  # each moved by so many representable numbers


def placed(count: int, values: Sequence[float], ulps: int, dtype: torch.dtype) -> Tensor:
    """`count` elements that run through `values` in turn, rounded to `dtype` and then moved by `ulps`."""
    turn = torch.tensor(values, dtype=torch.float64)[torch.arange(count) % len(values)]
    return ulp_step(saturated(turn, dtype), ulps)


class PlacedValues(InputMutator[PlacedParams]):
    """Puts one to four values of a pool in some places. Subclasses name the pool."""

    params_type = PlacedParams
    places: Sequence[Place] = ("some", "some", "line", "row", "window", "tail", "all", "all")
    ulps: Sequence[int] = (0,)

    @abstractmethod
    def pool(self, dtype: torch.dtype) -> list[float]:
        """The values from which to choose, for a real dtype."""

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def replaces(self, params: PlacedParams) -> str | None:
        return whole(params)

    def values(self, dtype: torch.dtype, rng: random.Random) -> list[float]:
        pool = self.pool(dtype)
        return rng.sample(pool, min(rng.choice((1, 1, 2, 4)), len(pool)))

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> PlacedParams:
        dtype = REAL_DTYPES[seed.inputs[name].dtype_name]
        where = propose_where(shape, rng, self.places)
        return PlacedParams(input=name, where=where, values=self.values(dtype, rng), ulps=rng.choice(self.ulps))

    def alter(self, spec: InputSpec, tensor: Tensor, params: PlacedParams) -> Tensor:
        return edited(tensor, params.where, lambda at: placed(len(at), params.values, params.ulps, at.dtype))


@register
class Subnormals(PlacedValues):
    """Values below the smallest normal number. `scale` with an extreme factor makes whole tensors so."""

    name = "subnormals"

    def pool(self, dtype: torch.dtype) -> list[float]:
        info = torch.finfo(dtype)
        smallest = info.smallest_normal * info.eps
        positive = [smallest, 3 * smallest, info.smallest_normal / 2, info.smallest_normal - smallest]
        return [sign * value for value in positive for sign in (1.0, -1.0)]


@register
class SignedZeros(PlacedValues):
    """Negative and positive zeros."""

    name = "signed_zeros"

    def pool(self, dtype: torch.dtype) -> list[float]:
        return [-0.0, 0.0]

    def values(self, dtype: torch.dtype, rng: random.Random) -> list[float]:
        return rng.choice(([-0.0], [-0.0], [0.0], [-0.0, 0.0]))


@register
class DtypeExtremes(PlacedValues):
    """The largest, smallest and finest numbers of the dtype, and those where narrower ones give up."""

    name = "dtype_extremes"
    ulps = (0, 0, 1, -1)

    def pool(self, dtype: torch.dtype) -> list[float]:
        info = torch.finfo(dtype)
        own = [
            info.max,
            info.max / 2,
            info.max**0.5,
            info.smallest_normal,
            info.smallest_normal**0.5,
            info.eps,
            1 + info.eps,
        ]
        half = [65504.0, 65519.0, 65520.0, 65536.0, 2.0**-14, 2.0**-24, 2.0**-25, 2049.0]  # float16's range and steps
        bfloat = [1.00390625, 1.01171875, 257.0, 3.4e38]  # halfway between two of bfloat16, and past its largest
        exact = [
            2.0**24,
            2.0**24 + 2,
            2.0**31,
            2.0**32,
            2.0**53,
            2.0**63,
        ]  # where counting by ones ends, integers overflow
        values = [value for value in own + half + bfloat + exact if value <= info.max]
        return values + [-value for value in values]


@register
class RoundHalf(PlacedValues):
    """k + ½, where rules of rounding differ, and the neighbours of these."""

    name = "round_half"
    ulps = (0, 0, 1, -1)

    def pool(self, dtype: torch.dtype) -> list[float]:
        return [sign * (k + 0.5) for k in (0, 1, 2, 3, 4, 7, 126, 127, 254, 255, 1023) for sign in (1.0, -1.0)]


#: Arguments near which implementations of exp, sigmoid, tanh, erf, gelu, expm1, log1p and the like change formula,
#: saturate or cancel; then multiples of a tenth, whose quotients are integers in decimal only.
EDGE_GROUPS: tuple[tuple[float, ...], ...] = (
    (88.0, 88.7, 88.73, 89.0, 87.3, 87.4, 87.5, 95.0, 103.9, 104.0),
    (9.7, 11.09, 12.0, 709.7, 708.4, 745.1),
    (16.0, 16.7, 17.0, 17.3, 18.0, 20.0, 30.0, 40.0, 80.0),
    (2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 0.25, 0.46875, 0.5, 0.625, 0.84375, 1.0, 1.25, 1.41421356),
    (1e-10, 1e-9, 1e-8, 1e-7, 1.2e-7, 1e-5, 1e-4, 1e-3, 1e-20),
    (0.69314718, 1.57079633, 3.14159265, 6.28318531, 1e5),
    (3.83, 3.92, 4.5, 8.32, 8.67, 9.01, 16.64, 17.33, 19.06, 36.74),  # erf, tanh and sigmoid round to 1 from here on
    (1e13, 1.8e19, 1.9e19, 1e20, 1e25, 1e30, 3e38),  # cubes and squares overflow from here on, and sums in the end
    (1e-38, 1e-30, 1e-23, 1e-19, 1e-13),  # as they underflow
)


def edge(rng: random.Random) -> float:
    """One of the edges above, of either sign, each group as likely as the others."""
    return rng.choice((1.0, -1.0)) * rng.choice(rng.choice(EDGE_GROUPS))


_TENTHS = (0.1, 0.2, 0.3, 0.6, 0.7, 0.9, 1.1, 1.3, 6.0, 10.0)


#: Where floats stop fitting into integer dtypes, and the halves on which conversion and rounding turn.
_LIMITS = (
    *(1.0, 127.0, 127.5, 128.0, 128.5, 254.5, 255.0, 255.5, 256.0, 256.5, 32767.0, 32767.5, 32768.0, 65535.0),
    *(65535.5, 65536.0, 2.0**24 - 1, 2.0**24, 2.0**24 + 2, 2.0**31 - 128, 2.0**31, 2.0**31 + 256, 2.0**32, 2.0**53),
    *(2.0**63 - 2.0**39, 2.0**63, 2.0**64, 1e10, 1e20, 3e38),
)


@register
class IntegerLimits(PlacedValues):
    """The ends of integer dtypes as floats, and what lies just inside and outside of them."""

    name = "integer_limits"
    ulps = (0, 0, 0, 1, -1)

    def pool(self, dtype: torch.dtype) -> list[float]:
        most = torch.finfo(dtype).max
        return [sign * value for value in _LIMITS if value <= most for sign in (1.0, -1.0)]


@register
class PowersOfTwo(PlacedValues):
    """±2^k and its neighbours, over the whole range of exponents, small ones more often."""

    name = "powers_of_two"
    ulps = (0, 0, 1, -1)

    def pool(self, dtype: torch.dtype) -> list[float]:
        info = torch.finfo(dtype)
        near = [2.0**k for k in range(-12, 13)]
        far = [2.0**k for k in range(-148, 128, 6)]
        kept = [value for value in near + far if info.smallest_normal * info.eps <= value <= info.max]
        return [sign * value for value in kept for sign in (1.0, -1.0)]


@register
class FunctionEdges(PlacedValues):
    """Values near which special functions change formula, saturate or cancel."""

    name = "function_edges"
    places = ("some", "line", "row", "window", "tail", "all", "all", "all", "all")
    ulps = (0, 0, 0, 1, -1)

    def pool(self, dtype: torch.dtype) -> list[float]:
        return [sign * value for group in (*EDGE_GROUPS, _TENTHS) for value in group for sign in (1.0, -1.0)]

    def values(self, dtype: torch.dtype, rng: random.Random) -> list[float]:
        if rng.random() < 0.2:
            return super().values(dtype, rng)
        count = rng.choice((1, 1, 2, 4))
        if rng.random() < 0.5:  # all on one side of one edge: what a whole output must be near to show is then shown
            sign, group = rng.choice((1.0, -1.0)), rng.choice(EDGE_GROUPS)
            return [sign * rng.choice(group) for _ in range(count)]
        return [edge(rng) for _ in range(count)]


@register
class Cancellation(PlacedValues):
    """Large numbers that cancel in a sum, or whose product overflows in one order only."""

    name = "cancellation"
    places = ("line", "row", "all", "all")

    def pool(self, dtype: torch.dtype) -> list[float]:
        limit: float = torch.finfo(dtype).max
        return [value for value in (1e3, 1e4, 1e8, 1e15, 1e20, 1e30, 1e200) if value < limit]

    def values(self, dtype: torch.dtype, rng: random.Random) -> list[float]:
        big = rng.choice(self.pool(dtype))
        return rng.choice(([big, 1.0, -big, 1.0], [big, big, 1 / big, 1 / big], [big, 1.0, 1.0, -big], [big, -big]))


NonFinite = Literal["nan", "inf", "-inf"]


class NonFiniteParams(AtPlaces):
    values: Annotated[list[NonFinite], Field(min_length=1, max_length=8)]


@register
class NonFinites(InputMutator[NonFiniteParams]):
    """NaN and infinities, at one place, a few, a row, a window or everywhere."""

    name = "nonfinite"
    params_type = NonFiniteParams
    weight = 2.0  # each operator has rules of its own for them

    def fits(self, seed: Seed) -> bool:
        return seed.allow.nonfinite and super().fits(seed)

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> NonFiniteParams:
        where = propose_where(
            shape, rng, ("some", "some", "some", "line", "row", "row", "window", "all"), (1, 1, 1, 2, 3, 8)
        )
        one: list[NonFinite] = [rng.choice(("nan", "inf", "-inf"))]
        mixed: list[NonFinite] = ["nan", "inf", "-inf"]
        return NonFiniteParams(input=name, where=where, values=rng.choice((one, one, one, mixed)))

    def alter(self, spec: InputSpec, tensor: Tensor, params: NonFiniteParams) -> Tensor:
        values = torch.tensor([float(value) for value in params.values], dtype=torch.float64)
        return edited(tensor, params.where, lambda at: values[torch.arange(len(at)) % len(values)].to(at.dtype))
