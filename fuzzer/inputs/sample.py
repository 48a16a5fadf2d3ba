"""Samples: one tensor for each input of a seed, a function of the seed's inputs and the number of the draw."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.inputs.generate import generate, noise
from fuzzer.inputs.read import IMAGES, read_input
from fuzzer.seeds.schema import InputSpec, Seed


def base_sample(seed: Seed, draw: int) -> dict[str, Tensor]:
    """The `draw`-th base input: contiguous CPU tensors in the order of `seed.inputs`, dimensions as `dims` sizes them.

    The same for the same input names, specs and draw, bit for bit; the seed's own name plays no part.
    Raises InputError, also where one input takes more than the seed's `memory_mb`.
    """
    return sample_with_dims(seed, draw, {})


def sample_with_dims(seed: Seed, draw: int, dims: Mapping[str, int]) -> dict[str, Tensor]:
    """Like `base_sample`, with other sizes for some named dimensions; how far they may go is for the caller to keep.

    An array from a file is repeated or cut along the dimensions that change. Raises InputError for a name that is no
    dimension of the seed or a negative size.
    """
    for name, size in dims.items():
        if name not in seed.dims:
            raise InputError(f"{name!r} is no dimension of the seed {seed.name}")
        if size < 0:
            raise InputError(f"dimension {name!r} cannot be {size}")
    sizes = {name: dim.size for name, dim in seed.dims.items()}
    return {name: _input(seed, name, draw, sizes, {**sizes, **dims}) for name in seed.inputs}


def noise_sample(seed: Seed, draw: int) -> dict[str, Tensor]:
    """The `draw`-th base input with noise, uniform over the range, in the place of each image. Raises InputError."""
    sample = base_sample(seed, draw)
    for name, spec in seed.inputs.items():
        if spec.kind == "image":
            sample[name] = noise(spec, sample[name].shape, _generator(f"noise {name}", spec, draw)).contiguous()
    return sample


def _input(seed: Seed, name: str, draw: int, usual: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    spec = seed.inputs[name]
    shape = _shape(spec, sizes)
    mebibytes = _mebibytes(shape)
    if mebibytes > seed.memory_mb:
        raise InputError(f"input {name!r}: {shape} takes {mebibytes} MiB, more than the seed's memory_mb")
    try:
        if not spec.files:
            return generate(spec, shape, _generator(name, spec, draw)).contiguous()
        if all(file[file.rfind(".") :].lower() in IMAGES for file in spec.files):
            return read_input(spec, seed.base, shape, draw).contiguous()
        return resized(read_input(spec, seed.base, _shape(spec, usual), draw), shape).contiguous()
    except InputError as error:
        raise InputError(f"input {name!r}: {error}") from error


def oversized(seed: Seed) -> str:
    """Why an input with the named dimensions at their largest is beyond the seed's `memory_mb`; empty where none is."""
    sizes = {name: dim.most for name, dim in seed.dims.items()}
    for name, spec in seed.inputs.items():
        mebibytes = _mebibytes(shape := _shape(spec, sizes))
        if mebibytes > seed.memory_mb:
            at = ", ".join(f"{size} at {sizes[size]}" for size in spec.shape if isinstance(size, str))
            return f"input {name!r} with {at} is {shape}: {mebibytes} MiB, more than memory_mb ({seed.memory_mb})"
    return ""


def _mebibytes(shape: list[int]) -> int:
    return math.prod(max(size, 1) for size in shape) * 8 >> 20  # values are drawn as float64


def _shape(spec: InputSpec, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[size] if isinstance(size, str) else size for size in spec.shape]


def _generator(name: str, spec: InputSpec, draw: int) -> torch.Generator:
    """Seeded by what the values depend on, and not by fields that a later version may add."""
    key = [name, spec.kind, spec.shape, spec.dtype_name, spec.range, spec.extent, draw]
    digest = hashlib.sha256(json.dumps(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def resized(value: Tensor, shape: list[int]) -> Tensor:
    """`value` repeated or cut along each axis to `shape`. Raises InputError where an empty axis would have to grow."""
    for axis, size in enumerate(shape):
        have = value.shape[axis]
        if size == have:
            continue
        if have == 0:
            raise InputError(f"an empty array cannot grow to {shape}")
        value = value.index_select(axis, torch.arange(size) % have)
    return value
