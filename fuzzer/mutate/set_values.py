"""Elements set one by one: what a search found by looking at the model, written down so that it needs none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.base import FiniteFloat, Mutator, Sample, Shapes, free_float, register
from fuzzer.mutate.floats import copy_of, saturated
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import Seed, Strict


class Change(Strict):
    input: Name
    at: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=64)]  # flat, modulo the elements
    values: Annotated[list[FiniteFloat], Field(min_length=1, max_length=64)]


class BoundaryParams(Strict):
    changes: Annotated[list[Change], Field(min_length=1, max_length=16)]


@register
class Boundary(Mutator[BoundaryParams]):
    """A few elements at the values where a decision of the model turns, as its gradient led to them.

    Never proposed without a model: `boundary_names` says for which inputs the search may ask the reference.
    """

    name = "boundary"
    params_type = BoundaryParams

    def fits(self, seed: Seed) -> bool:
        return False

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> BoundaryParams:
        raise InputError(f"mutator {self.name} is not proposed at random")

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: BoundaryParams) -> Sample:
        out: Sample = {}
        for change in params.changes:
            if change.input not in boundary_names(seed):
                raise InputError(f"mutator {self.name} does not change input {change.input!r} of seed {seed.name}")
            tensor = out.setdefault(change.input, copy_of(sample[change.input]))
            if tensor.numel():
                at = torch.tensor(change.at) % tensor.numel()
                values = torch.tensor(change.values, dtype=torch.float64)[torch.arange(len(at)) % len(change.values)]
                tensor.reshape(-1)[at] = saturated(values, tensor.dtype)
        return out


def boundary_names(seed: Seed) -> list[str]:
    """The real float inputs whose values may be moved about."""
    return [n for n, spec in seed.inputs.items() if free_float(spec) and spec.dtype_name != "complex64"]
