"""Mutators of two inputs at once: where two operands are compared, divided or multiplied, they matter together."""

from __future__ import annotations

import random
from collections.abc import Mapping

from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.base import Mutator, Sample, Shapes, free, free_float, register
from fuzzer.mutate.floats import copy_of, ulp_step
from fuzzer.mutate.values import Ulps
from fuzzer.mutate.where import Where, positions, propose_where
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import Seed, Strict


class TwinParams(Strict):
    source: Name
    input: Name
    where: Where
    ulps: Ulps = 0  # float inputs: the copy moved by so many representable numbers
    negated: bool = False


@register
class Twins(Mutator[TwinParams]):
    """Copies elements of one input to the same places of another of its shape and dtype, or their negatives."""

    name = "twins"
    params_type = TwinParams

    def pairs(self, seed: Seed) -> list[tuple[str, str]]:
        """Inputs of one shape and dtype whose values may be moved about, as (source, input)."""
        able = [(name, spec) for name, spec in seed.inputs.items() if free(spec) and spec.dtype_name != "bool"]
        return [
            (a, b)
            for a, one in able
            for b, other in able
            if a != b and one.shape == other.shape and one.dtype_name == other.dtype_name
        ]

    def fits(self, seed: Seed) -> bool:
        return bool(self.pairs(seed))

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> TwinParams:
        source, name = rng.choice(self.pairs(seed))
        moves = free_float(seed.inputs[name]) and seed.inputs[name].dtype_name != "complex64"
        return TwinParams(
            source=source,
            input=name,
            where=propose_where(shapes[name], rng, ("some", "line", "row", "window", "all", "all")),
            ulps=rng.choice((0, 0, 0, 1, -1)) if moves else 0,
            negated=moves and rng.random() < 0.25,
        )

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: TwinParams) -> Sample:
        if (params.source, params.input) not in self.pairs(seed):
            raise InputError(
                f"mutator {self.name}: {params.source!r} and {params.input!r} are no two inputs of one kind"
            )
        out = copy_of(sample[params.input])
        at = positions(params.where, out.shape)
        if at.numel():
            values = sample[params.source].reshape(-1)[at]
            if params.negated and values.is_floating_point():
                values = -values
            if params.ulps and values.is_floating_point():
                values = ulp_step(values, params.ulps)
            out.reshape(-1)[at] = values
        return {params.input: out}
