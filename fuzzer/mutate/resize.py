"""The mutator of shapes: a named dimension takes another size in all inputs that share it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.base import Mutator, Sample, Shapes, register
from fuzzer.mutate.recipe import MAX_DIM
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import Allow, Dim, InputSpec, Seed, Strict


def sizes(dim: Dim, allow: Allow) -> range:
    """The sizes that a dimension may be given: never 0 unless the seed allows empty inputs."""
    least = dim.min if allow.empty else max(dim.min, 1)
    return range(least, dim.most + 1)


def propose_size(dim: Dim, allow: Allow, rng: random.Random) -> int:
    """A size at an edge of what is allowed, around a power of two (where vector bodies end), or, as often, anywhere."""
    allowed = sizes(dim, allow)
    if rng.random() < 0.5:
        return rng.choice(allowed)
    power: int = 2 ** rng.randrange(max(dim.most.bit_length(), 1))
    edges = (dim.min, 0, 1, 2, 3, dim.most, dim.most - 1, dim.size - 1, dim.size + 1, power - 1, power, power + 1)
    inside = [size for size in edges if size in allowed]
    return rng.choice([*inside, rng.choice(allowed)])


def resizable(seed: Seed) -> list[str]:
    """The named dimensions that an input has and that may take more than one size."""
    used = {side for spec in seed.inputs.values() for side in spec.shape}
    return [name for name, dim in seed.dims.items() if name in used and len(sizes(dim, seed.allow)) > 1]


def check_dims(seed: Seed, dims: Mapping[str, int]) -> None:
    """Raises InputError where `dims` names a dimension that the seed does not have, or a size outside its bounds."""
    for name, size in dims.items():
        if name not in seed.dims:
            raise InputError(f"seed {seed.name} has no dimension {name!r} (it has: {', '.join(seed.dims) or 'none'})")
        dim = seed.dims[name]
        if not dim.min <= size <= dim.most:
            raise InputError(f"dimension {name} of seed {seed.name} goes from {dim.min} to {dim.most}, not to {size}")


class ShapeParams(Strict):
    dim: Name
    size: Annotated[int, Field(ge=0, le=MAX_DIM)]


@register
class Shape(Mutator[ShapeParams]):
    """Cuts a dimension off, or fills it by repeating what is there, so that earlier mutations survive.

    What grows from nothing is filled with the value nearest to zero in the input's range.
    """

    name = "shape"
    params_type = ShapeParams

    def fits(self, seed: Seed) -> bool:
        return bool(resizable(seed))

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> ShapeParams:
        dim = rng.choice(resizable(seed))
        return ShapeParams(dim=dim, size=propose_size(seed.dims[dim], seed.allow, rng))

    def resized(self, params: ShapeParams) -> dict[str, int]:
        return {params.dim: params.size}

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: ShapeParams) -> Sample:
        check_dims(seed, {params.dim: params.size})
        sharing = [name for name, spec in seed.inputs.items() if params.dim in spec.shape]
        return {name: resized(sample[name], seed.inputs[name], params.dim, params.size) for name in sharing}


def resized(tensor: Tensor, spec: InputSpec, dim: str, size: int) -> Tensor:
    """A contiguous copy of `tensor` with `size` slices along each axis that the spec calls `dim`."""
    out = tensor.detach()
    for axis, side in enumerate(spec.shape):
        if side == dim and out.shape[axis] == 0:
            low, high = spec.range or (0.0, 0.0)
            fill = min(max(low, 0.0), max(high, low))
            grown = list(out.shape)
            grown[axis] = size
            out = torch.full(grown, fill).to(out.dtype)
        elif side == dim:
            out = out.index_select(axis, torch.arange(size) % out.shape[axis])
    return out.clone(memory_format=torch.contiguous_format)
