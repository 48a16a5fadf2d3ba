"""Mutators that move values by arithmetic, and stay finite."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.base import AtPlaces, FiniteFloat, InputMutator, Mutator, Sample, Shapes, free_float, register
from fuzzer.mutate.floats import REAL_DTYPES, edited, mapped
from fuzzer.mutate.values import edge, placed
from fuzzer.mutate.where import Place, Where, propose_where
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import InputSpec, Seed, Strict

MOSTLY_ALL: tuple[Place, ...] = ("all", "all", "all", "slab", "row", "window")


class FactorParams(AtPlaces):
    factor: FiniteFloat


@register
class Scale(InputMutator[FactorParams]):
    """Multiplies by a power of two or of ten, moderate to extreme; what would overflow stops at the largest number."""

    name = "scale"
    params_type = FactorParams

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> FactorParams:
        # Ten to this takes 1 to the end of the dtype's range; its negative takes 1 among the subnormals.
        decades = {torch.float16: 6, torch.float64: 312}.get(REAL_DTYPES[seed.inputs[name].dtype_name], 40)
        factor = rng.choice(
            (
                2.0 ** rng.randint(-8, 8),
                10.0 ** rng.randint(-4, 4),
                10.0 ** rng.randint(-10, 10),
                10.0 ** rng.randint(-min(decades, 307), min(decades, 307)),
                10.0 ** -rng.randint(decades - 4, decades),
            )
        )
        return FactorParams(input=name, where=propose_where(shape, rng, MOSTLY_ALL), factor=factor)

    def alter(self, spec: InputSpec, tensor: Tensor, params: FactorParams) -> Tensor:
        return edited(tensor, params.where, lambda at: mapped(at, lambda values: values * params.factor))


class OffsetParams(AtPlaces):
    offset: FiniteFloat


@register
class Offset(InputMutator[OffsetParams]):
    """Adds a constant: a large one leaves few bits for what varies."""

    name = "offset"
    params_type = OffsetParams

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> OffsetParams:
        plain = rng.choice((0.1, 0.5, 1.0, 10.0, 100.0, 1e3, 1e4, 1e4, 1e6, 1e8))
        offset = rng.choice((plain, -plain, edge(rng), edge(rng), 2.0 ** rng.randint(-24, 24)))
        return OffsetParams(input=name, where=propose_where(shape, rng, MOSTLY_ALL), offset=offset)

    def alter(self, spec: InputSpec, tensor: Tensor, params: OffsetParams) -> Tensor:
        return edited(tensor, params.where, lambda at: mapped(at, lambda values: values + params.offset))


@register
class Negate(InputMutator[AtPlaces]):
    """Flips signs."""

    name = "negate"
    params_type = AtPlaces

    def suits(self, spec: InputSpec) -> bool:
        return free_float(spec)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> AtPlaces:
        return AtPlaces(input=name, where=propose_where(shape, rng))

    def alter(self, spec: InputSpec, tensor: Tensor, params: AtPlaces) -> Tensor:
        return edited(tensor, params.where, torch.neg)


class QuotientParams(Strict):
    dividend: Name
    divisor: Name
    step: FiniteFloat
    multiples: Annotated[list[FiniteFloat], Field(min_length=1, max_length=64)]
    where: Where


@register
class Quotients(Mutator[QuotientParams]):
    """Sets the elements of two inputs so that they divide evenly in decimal: 0.6 by 0.1, which is not so in binary."""

    name = "quotients"
    params_type = QuotientParams

    def targets(self, seed: Seed) -> list[str]:
        return [name for name, spec in seed.inputs.items() if free_float(spec)]

    def fits(self, seed: Seed) -> bool:
        return len(self.targets(seed)) > 1

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> QuotientParams:
        dividend, divisor = rng.sample(self.targets(seed), 2)
        return QuotientParams(
            dividend=dividend,
            divisor=divisor,
            step=rng.choice((0.1, 0.1, 0.2, 0.3, 0.7, 0.01)),
            multiples=[float(rng.choice((1, 3, 6, 7, 10, 30, 60, -10))) for _ in range(4)],
            where=propose_where(shapes[dividend], rng, ("some", "row", "window", "all", "all")),
        )

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: QuotientParams) -> Sample:
        unfit = {params.dividend, params.divisor} - set(self.targets(seed))
        if unfit or params.dividend == params.divisor:
            raise InputError(f"mutator {self.name}: takes two float inputs, not {params.dividend} and {params.divisor}")
        # Rounded to decimals first: 6 × 0.1 as a product of binary numbers is not the 0.6 that a person would type.
        dividends = [round(multiple * params.step, 6) for multiple in params.multiples]

        def set_to(name: str, values: list[float]) -> Tensor:
            return edited(sample[name], params.where, lambda at: placed(len(at), values, 0, at.dtype))

        return {
            params.dividend: set_to(params.dividend, dividends),
            params.divisor: set_to(params.divisor, [params.step]),
        }
