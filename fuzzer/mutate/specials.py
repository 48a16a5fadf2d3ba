"""The values at which arithmetic has its exceptions, in every combination: across the elements, and across operands."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.inputs.dtypes import DTYPES
from fuzzer.mutate.base import Mutator, Sample, Shapes, free, register
from fuzzer.mutate.floats import edited, saturated
from fuzzer.mutate.integers import declared, is_integer, limits
from fuzzer.mutate.randomness import KEY_LIMIT, draws, new_key
from fuzzer.mutate.where import Key, Where, propose_where
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import InputSpec, Seed, Strict


class SpecialParams(Strict):
    inputs: Annotated[list[Name], Field(min_length=1, max_length=64)]
    where: Where
    key: Key
    few: Annotated[int, Field(ge=1, le=64)]  # so many of the special values are used, picked by `key`
    core: bool = False  # only those whose products, powers and logarithms have rules of their own


#: Two operands of these are where IEEE 754, and each function's own rules, make exceptions: 0·∞, 0/0, 0·log NaN, 1^NaN.
CORE = (0.0, -0.0, 1.0, -1.0)


def core_integers(spec: InputSpec, *, beyond: bool) -> list[int]:
    """−1, 0, 1, 2 and the dtype's ends, as far as they are allowed: what division, powers and shifts have rules for."""
    least, most = limits(spec.dtype_name)
    return sorted({-1, 0, 1, 2, least, most} & set(integer_specials(spec, beyond=beyond)))


def core_specials(*, nonfinite: bool) -> list[float]:
    """Zeros and ones; NaN and infinities with leave."""
    return [*CORE, math.nan, math.inf, -math.inf, math.nan] if nonfinite else [*CORE]


def float_specials(dtype: torch.dtype, *, nonfinite: bool) -> list[float]:
    """Zeros, ones, small whole numbers, halves, the ends of the dtype; NaN and infinities with leave."""
    info = torch.finfo(dtype)
    finite = [
        0.0,
        1.0,
        0.5,
        2.0,
        3.0,
        1.5,
        info.eps,
        1e-3,
        100.0,
        info.smallest_normal,
        info.smallest_normal * info.eps,
    ]
    finite += [info.max, math.sqrt(info.max)]
    values = [sign * value for value in finite for sign in (1.0, -1.0)]
    return [*values, math.nan, math.inf, -math.inf, math.nan] if nonfinite else values


def integer_specials(spec: InputSpec, *, beyond: bool) -> list[int]:
    """Zero, ±1, ±2, the ends of the declared range and the middle; with leave also the dtype's ends and beside both."""
    low, high = declared(spec)
    least, most = limits(spec.dtype_name)
    wide = beyond or (spec.kind == "integers" and spec.range is None)
    values = [0, 1, -1, 2, -2, low, high, (low + high) // 2]
    values += [low - 1, high + 1, least, most, least + 1, 2**24 + 1, 2**31, -(2**31), 2**53 + 1] if wide else []
    first, last = (least, most) if wide else (low, high)
    return sorted({value for value in values if first <= value <= last})


@register
class Specials(Mutator[SpecialParams]):
    """Sets the same places of one or several inputs to values of a small dictionary, each place to its own."""

    name = "specials"
    params_type = SpecialParams

    def targets(self, seed: Seed) -> list[str]:
        return [
            name
            for name, spec in seed.inputs.items()
            if free(spec) and (is_integer(spec) or DTYPES[spec.dtype_name].is_floating_point or _complex(spec))
        ]

    def fits(self, seed: Seed) -> bool:
        return bool(self.targets(seed))

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> SpecialParams:
        names = self.targets(seed)
        chosen = names if rng.random() < 0.5 else [rng.choice(names)]
        where = propose_where(
            shapes[chosen[0]], rng, ("some", "some", "line", "row", "tail", "all", "all"), (1, 2, 4, 8, 64)
        )
        few, core = rng.choice((1, 2, 3, 8, 64)), rng.random() < 0.3
        return SpecialParams(inputs=chosen, where=where, key=new_key(rng), few=few, core=core)

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: SpecialParams) -> Sample:
        unfit = set(params.inputs) - set(self.targets(seed))
        if unfit:
            raise InputError(f"mutator {self.name} does not change {', '.join(sorted(unfit))} of seed {seed.name}")
        return {
            name: self._alter(seed, seed.inputs[name], sample[name], params, (params.key + turn) % KEY_LIMIT)
            for turn, name in enumerate(params.inputs)
        }

    def _alter(self, seed: Seed, spec: InputSpec, tensor: Tensor, params: SpecialParams, key: int) -> Tensor:
        def values(at: Tensor) -> Tensor:
            if at.dtype.is_floating_point:
                nonfinite = seed.allow.nonfinite
                specials = core_specials if params.core else partial(float_specials, at.dtype)
                pool = torch.tensor(specials(nonfinite=nonfinite), dtype=torch.float64)
            else:
                whole = core_integers if params.core else integer_specials
                pool = torch.tensor(whole(spec, beyond=seed.allow.out_of_range_integers))
            words = torch.from_numpy((draws(key, params.few + len(at)) >> 1).astype("int64"))
            picked = pool[words[: params.few] % len(pool)]
            found = picked[words[params.few :] % params.few]
            if not at.dtype.is_floating_point:
                return found.to(at.dtype)
            return torch.where(found.isfinite(), saturated(found, at.dtype), found.to(at.dtype))

        return edited(tensor, params.where, values)


@register
class OperandExceptions(Specials):
    """Zeros, ones, NaN, infinities and integers' ends at the same places of two inputs or more, each place in a
    combination of its own.

    Where one operand of a product, a quotient, a power or a logarithm is such a value, the other decides.
    """

    name = "operand_exceptions"

    def targets(self, seed: Seed) -> list[str]:
        return [name for name in super().targets(seed) if not _complex(seed.inputs[name])]

    def fits(self, seed: Seed) -> bool:
        return len(self.targets(seed)) > 1

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> SpecialParams:
        names = self.targets(seed)
        chosen = names if rng.random() < 0.5 else rng.sample(names, 2)
        where = propose_where(shapes[chosen[0]], rng, ("some", "line", "row", "all", "all"), (2, 4, 8, 64))
        return SpecialParams(inputs=chosen, where=where, key=new_key(rng), few=rng.choice((2, 8, 64)), core=True)


def _complex(spec: InputSpec) -> bool:
    return DTYPES[spec.dtype_name].is_complex
