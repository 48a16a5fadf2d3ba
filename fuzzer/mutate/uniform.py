"""Values that know nothing: each element uniform over its valid range. What a search has to beat, and a fresh start."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.inputs.dtypes import DTYPES, cast_within, whole_range
from fuzzer.mutate.base import InputMutator, OnInput, free, register
from fuzzer.mutate.randomness import draws, new_key
from fuzzer.mutate.where import Key
from fuzzer.seeds.schema import InputSpec, Seed

#: Where a seed gives no range: what base inputs reach.
_DEFAULT = {"tokens": (0.0, 1000.0), "integers": (-8.0, 8.0), "scores": (0.0, 1.0), "boxes": (0.0, 320.0)}


class UniformParams(OnInput):
    key: Key


@register
class Uniform(InputMutator[UniformParams]):
    """Fills an input with independent uniform values of its valid range; boxes keep their corners in order.

    Proposed where values may be moved about; a recipe may name any input, masks and tokens too.
    """

    name = "uniform"
    params_type = UniformParams

    def suits(self, spec: InputSpec) -> bool:
        return free(spec)

    def require(self, seed: Seed, name: str) -> None:
        if name not in seed.inputs:
            raise InputError(f"mutator {self.name}: seed {seed.name} has no input {name!r}")

    def replaces(self, params: UniformParams) -> str | None:
        return params.input

    def pick(self, seed: object, name: str, shape: tuple[int, ...], rng: random.Random) -> UniformParams:
        return UniformParams(input=name, key=new_key(rng))

    def alter(self, spec: InputSpec, tensor: Tensor, params: UniformParams) -> Tensor:
        count = tensor.numel() * (2 if tensor.is_complex() else 1)
        part = torch.from_numpy((draws(params.key, count) >> np.uint64(11)).astype(np.float64) / 2.0**53)
        if spec.kind == "mask":
            return (part < 0.5).reshape(tensor.shape).to(tensor.dtype)
        low, high = valid_range(spec)
        dtype = DTYPES[spec.dtype_name]
        if spec.kind in ("tokens", "integers") or not (dtype.is_floating_point or dtype.is_complex):
            first, end = whole_range(dtype, low, high) if not dtype.is_floating_point else (int(low), int(high))
            whole = [first + min(int(each * (end - first)), end - first - 1) for each in part.tolist()]
            return torch.tensor(whole, dtype=dtype).reshape(tensor.shape)
        if dtype.is_complex:
            pairs = cast_within(low * (1 - part) + high * part, torch.float32, low, high).reshape(*tensor.shape, 2)
            return torch.view_as_complex(pairs.contiguous())
        values = (low * (1 - part) + high * part).reshape(tensor.shape)
        if spec.kind == "boxes":
            values = _ordered(spec, part.reshape(tensor.shape), low, high)
        elif spec.mean is not None or spec.std is not None:
            trail = (-1, 1, 1) if tensor.dim() > 2 else (-1, 1)
            mean = torch.tensor(spec.mean or [0.0], dtype=torch.float64).reshape(trail)
            std = torch.tensor(spec.std or [1.0], dtype=torch.float64).reshape(trail)
            return ((values - mean) / std).to(dtype)
        return cast_within(values, dtype, float(values.min()), float(values.max())) if count else values.to(dtype)


def valid_range(spec: InputSpec) -> tuple[float, float]:
    """The range that a seed gives, or that of base inputs: [−6, 6] for floats, [0, 1] or [0, 255] for images."""
    if spec.range is not None:
        return spec.range
    if spec.kind == "image":
        return (0.0, 1.0) if DTYPES[spec.dtype_name].is_floating_point else (0.0, 255.0)
    return _DEFAULT.get(spec.kind, (-6.0, 6.0))


def _ordered(spec: InputSpec, part: Tensor, low: float, high: float) -> Tensor:
    """Boxes (..., 4) of two uniform corners each, the smaller coordinates first, inside the extent."""
    width, height = spec.extent or (high - low, high - low)
    origin = low if spec.extent is None else 0.0
    corners = part.reshape(*part.shape[:-1], 2, 2).sort(dim=-2).values
    return (origin + corners * torch.tensor([width, height], dtype=torch.float64)).reshape(part.shape)
