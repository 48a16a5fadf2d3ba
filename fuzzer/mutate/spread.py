"""Mutators that give a whole region new values of one scale: a band of magnitudes, or a narrow span around a point."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.base import AtPlaces, FiniteFloat, InputMutator, free_float, register, whole
from fuzzer.mutate.floats import REAL_DTYPES, edited, saturated
from fuzzer.mutate.randomness import draws, new_key
from fuzzer.mutate.uniform import valid_range
from fuzzer.mutate.values import EDGE_GROUPS, edge
from fuzzer.mutate.where import Key, Place, propose_where
from fuzzer.seeds.schema import InputSpec, Seed

#: How likely each group of edges gives a regime: where exponentials end, tails begin and formulas change, twice.
_LIKELY = (2, 1, 2, 2, 1, 1, 2, 1, 1)
REGIONS: tuple[Place, ...] = ("all", "all", "all", "slab", "row", "window", "some", "tail")
Signs = Literal["plus", "minus", "both"]
Exponent = Annotated[int, Field(ge=-1074, le=1023)]


def unit(key: int, count: int) -> Tensor:
    """`count` float64 numbers in [0, 1), multiples of 2⁻⁵³."""
    return torch.from_numpy((draws(key, count) >> np.uint64(11)).astype(np.float64) / 2.0**53)


class MagnitudeParams(AtPlaces):
    low: Exponent  # values from 2^low
    high: Exponent  # to below 2^(high + 1)
    signs: Signs
    key: Key


@register
class Magnitudes(InputMutator[MagnitudeParams]):
    """Values whose exponents are uniform in a band, narrow or as wide as the dtype, of one sign or both."""

    name = "magnitudes"
    params_type = MagnitudeParams

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def replaces(self, params: MagnitudeParams) -> str | None:
        return whole(params)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> MagnitudeParams:
        info = torch.finfo(REAL_DTYPES[seed.inputs[name].dtype_name])
        top = round(torch.tensor(info.max, dtype=torch.float64).frexp().exponent.item()) - 1
        bottom = -(top - 1) - round(-torch.tensor(info.eps, dtype=torch.float64).log2().item())
        centre = rng.choice(
            (rng.randint(-8, 8), rng.randint(-8, 8), rng.randint(-30, 30), rng.randint(bottom, top), bottom + 20, top)
        )
        width = rng.choice((0, 0, 1, 2, 4, 8, 24, top - bottom))
        low = max(bottom, min(centre - width // 2, top))
        return MagnitudeParams(
            input=name,
            where=propose_where(shape, rng, REGIONS),
            low=low,
            high=max(low, min(low + width, top)),
            signs=rng.choice(("plus", "minus", "both", "both")),
            key=new_key(rng),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: MagnitudeParams) -> Tensor:
        def values(at: Tensor) -> Tensor:
            words = draws(params.key, 2 * len(at))
            bands = max(params.high - params.low, 0) + 1
            exponents = (words[: len(at)] % np.uint64(bands)).astype(np.int64) + params.low
            mantissas = 1.0 + (words[len(at) :] >> np.uint64(12)).astype(np.float64) / 2.0**52
            out = torch.from_numpy(np.ldexp(mantissas, exponents))  # torch's takes a power, which may be inexact
            if params.signs == "both":
                out = torch.where(torch.from_numpy((words[len(at) :] & np.uint64(1)) == 1), -out, out)
            return saturated(-out if params.signs == "minus" else out, at.dtype)

        return edited(tensor, params.where, values)


class SpanParams(AtPlaces):
    centre: FiniteFloat
    width: Annotated[FiniteFloat, Field(ge=0)]
    even: bool  # evenly spaced in the order of elements, else random
    key: Key


@register
class Spans(InputMutator[SpanParams]):
    """Values within `width` of a point: a part of the valid range, or the neighbourhood of a value that is an edge."""

    name = "spans"
    params_type = SpanParams

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def replaces(self, params: SpanParams) -> str | None:
        return whole(params)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> SpanParams:
        low, high = valid_range(seed.inputs[name])
        inside = (low, high, (low + high) / 2, low + (high - low) * rng.random())
        centre = rng.choice((*inside, edge(rng), edge(rng), edge(rng), edge(rng), 0.0, 2.0 ** rng.randint(-24, 24)))
        scale = max(abs(centre), high - low if centre in inside else 1.0)
        width = rng.choice((1.0, scale, scale / 10, scale * 2.0 ** -rng.randint(1, 24)))
        where = propose_where(shape, rng, REGIONS)
        return SpanParams(
            input=name, where=where, centre=centre, width=width, even=rng.random() < 0.25, key=new_key(rng)
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: SpanParams) -> Tensor:
        def values(at: Tensor) -> Tensor:
            if params.even:
                part = torch.arange(len(at), dtype=torch.float64) / max(len(at) - 1, 1)
            else:
                part = unit(params.key, len(at))
            return saturated(params.centre + params.width * (2 * part - 1), at.dtype)

        return edited(tensor, params.where, values)


@register
class Regimes(Spans):
    """Values between two edges of a special function that are near each other, of one sign, mostly in the whole input.

    Where all of an output lies in one regime (all subnormal, all saturated, all cancelled), no larger element hides it.
    """

    name = "regimes"
    weight = 2.0

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> SpanParams:
        edges = sorted(rng.choices(EDGE_GROUPS, _LIKELY)[0])
        edges.append(1.25 * edges[-1])
        first = rng.randrange(len(edges) - 1)
        low, high = edges[first], edges[min(first + rng.choice((1, 1, 2, 4)), len(edges) - 1)]
        where = propose_where(shape, rng, ("all", "all", "all", "all", "slab", "row"))
        return SpanParams(
            input=name,
            where=where,
            centre=rng.choice((1.0, -1.0)) * (low + high) / 2,
            width=(high - low) / 2,
            even=rng.random() < 0.25,
            key=new_key(rng),
        )
