"""Whether a sample from elsewhere is one that the seed describes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fuzzer.inputs.dtypes import DTYPES
from fuzzer.seeds.schema import InputSpec, Seed


def valid_sample(seed: Seed, sample: Mapping[str, object]) -> list[str]:
    """What keeps `sample` from being an input of `seed`: names, dtypes, ranks, sizes. Empty where nothing does.

    Values are not looked at: out-of-range ones are what a fuzzer is for.
    """
    problems = [f"input {name!r} is missing" for name in seed.inputs if name not in sample]
    problems += [f"{name!r} is no input of the seed" for name in sample if name not in seed.inputs]
    seen: dict[str, tuple[int, str]] = {}
    for name, spec in seed.inputs.items():
        if name in sample:
            problems += _tensor(name, spec, sample[name], seen)
    for dim, (size, _) in seen.items():
        limits = seed.dims[dim]
        if not limits.min <= size <= limits.most:
            problems.append(f"dimension {dim!r} is {size}, outside {limits.min} to {limits.most}")
    return problems


def _tensor(name: str, spec: InputSpec, value: object, seen: dict[str, tuple[int, str]]) -> list[str]:
    """The problems of one tensor; `seen` gathers the size of each named dimension, and the input it came from."""
    if not isinstance(value, Tensor):
        return [f"input {name!r} is of type {type(value).__name__}, not a tensor"]
    problems = []
    if value.dtype != DTYPES[spec.dtype_name]:
        problems.append(f"input {name!r} has dtype {str(value.dtype).removeprefix('torch.')}, not {spec.dtype_name}")
    if value.ndim != len(spec.shape):
        return [*problems, f"input {name!r} has {value.ndim} dimensions, not {len(spec.shape)}"]
    for axis, (size, wanted) in enumerate(zip(value.shape, spec.shape, strict=True)):
        if isinstance(wanted, str):
            first, where = seen.setdefault(wanted, (size, name))
            if size != first:
                problems.append(f"dimension {wanted!r} is {first} in input {where!r} and {size} in {name!r}")
        elif size != wanted:
            problems.append(f"input {name!r} has size {size} in dimension {axis}, not {wanted}")
    return problems
