"""What is said of one input in few words: on the command line (`x=1x3x64x64:float32:0..1`), or by an example tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from fuzzer.errors import SeedError
from fuzzer.seeds.fields import DTypeName
from fuzzer.seeds.problems import did_you_mean

#: How an input is written; part of messages and of --help.
FORM = "NAME=SIZExSIZE…[:DTYPE[:LOW..HIGH]]"
EXAMPLE = "x=1x3x64x64:float32:0..1"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
#: Base inputs of floats lie within these; examples beyond them bring their own range.
_USUAL = 6.0


@dataclass(frozen=True)
class Example:
    """One tensor that a user's code gives as an example: what of it a seed needs. `low`, `high`: its finite values."""

    name: str
    shape: list[int]
    dtype: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Offer:
    """What a user's builder tells of itself: names of forward's arguments, examples of them, and its weights.

    `needed`: arguments without a default. `own_weights`: most parameters are the same whatever the random seed, so that
    they were loaded or set. `by_name`: the examples are keyword arguments.
    """

    arguments: list[str]
    needed: list[str]
    examples: list[Example]
    own_weights: bool
    by_name: bool = False


def parse_inputs(texts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Inputs as a seed has them, by name, in the order given. Raises SeedError with every fault, one line each."""
    found: dict[str, dict[str, Any]] = {}
    faults = []
    for text in texts:
        try:
            name, spec = _parsed(text)
        except ValueError as error:
            faults.append(f"--input {text}: {error}")
            continue
        if name in found:
            faults.append(f"--input {text}: {name} is given twice")
        found[name] = spec
    if faults:
        raise SeedError(faults)
    return found


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    name, equals, rest = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"expected {FORM}, such as {EXAMPLE}")
    shape, _, kind = rest.partition(":")
    if not re.fullmatch(r"(\d+(x\d+)*)?", shape):
        raise ValueError(f"{shape!r} is no shape; it reads 1x3x64x64")
    dtype, _, bounds = kind.partition(":")
    dtypes = get_args(DTypeName)
    if dtype and dtype not in dtypes:
        raise ValueError(f"{did_you_mean(dtype, dtypes) or 'no such dtype'}; known are {', '.join(dtypes)}")
    limits = None
    if bounds:
        found = re.fullmatch(rf"({_NUMBER})\.\.({_NUMBER})", bounds)
        if found is None:
            raise ValueError(f"{bounds!r} is no range; it reads 0..1")
        limits = (float(found[1]), float(found[2]))
        if not limits[0] < limits[1] or not all(map(math.isfinite, limits)):
            raise ValueError(f"a range goes from low to high, both finite, got {bounds}")
    return name, tensor_spec([int(size) for size in shape.split("x") if size], dtype or "float32", limits)


def tensor_spec(
    shape: Sequence[int | str], dtype: str = "float32", limits: tuple[float, float] | None = None
) -> dict[str, Any]:
    """The input of a seed for a tensor of that shape and dtype; what it means is guessed from both.

    Four dimensions of which the second is 1 or 3 are images. Integers without a range are 0 and 1, which are good
    indices of whatever they index; they mean something exactly.
    """
    spec: dict[str, Any]
    if dtype == "bool":
        return {"kind": "mask", "shape": list(shape), "exact": True}
    if "int" in dtype:
        spec = {"kind": "integers", "shape": list(shape), "dtype": dtype, "range": [0, 2], "exact": True}
    elif len(shape) == 4 and shape[1] in (1, 3) and dtype.startswith(("float", "bfloat")):
        spec = {"kind": "image", "shape": list(shape), "dtype": dtype}
    else:
        spec = {"kind": "floats", "shape": list(shape), "dtype": dtype}
    if limits is not None:
        spec["range"] = [int(x) if float(x).is_integer() and abs(x) < 2**53 else x for x in limits]
    return spec


def example_spec(example: Example) -> dict[str, Any]:
    """The input of a seed that an example stands for: integers range over the example's own, floats where unusual."""
    low, high = example.low, example.high
    if "int" in example.dtype and example.dtype != "bool":
        return tensor_spec(example.shape, example.dtype, (min(low, 0.0), max(high, 1.0) + 1))
    spec = tensor_spec(example.shape, example.dtype)
    unusual = spec["kind"] == "floats" and example.dtype != "complex64" and max(abs(low), abs(high)) > _USUAL
    signed = spec["kind"] == "image" and (low < 0.0 or high > 1.0)
    if low < high and (unusual or signed):
        spec["range"] = [low, high]
    return spec
