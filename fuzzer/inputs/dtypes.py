"""Dtypes by name, and values put into them without leaving their range."""

from __future__ import annotations

import torch
from torch import Tensor

#: torch's dtypes by the names that a seed uses.
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}


def whole_range(dtype: torch.dtype, low: float, high: float) -> tuple[int, int]:
    """The whole numbers [low, high) that `dtype` holds, as an inclusive and an exclusive end."""
    first, end = -int(-low // 1), -int(-high // 1)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        first, end = max(first, info.min), min(end, info.max + 1)
    return first, end


def cast_within(values: Tensor, dtype: torch.dtype, low: float, high: float) -> Tensor:
    """`values` (float64, in [low, high]) in a floating `dtype`, none rounded out of [low, high].

    Where `dtype` has no number in the range at all, the nearest to `low` stands.
    """
    bottom, top = _inside(low, dtype, up=True), _inside(high, dtype, up=False)
    if bottom > top:
        bottom = top = torch.tensor(low, dtype=torch.float64).to(dtype)
    return torch.minimum(torch.maximum(values.to(dtype), bottom), top)


def _inside(bound: float, dtype: torch.dtype, *, up: bool) -> Tensor:
    """The number of `dtype` nearest to `bound` that is not below it (`up`) or not above it."""
    near = torch.tensor(bound, dtype=torch.float64).to(dtype)
    outside = float(near) < bound if up else float(near) > bound
    return torch.nextafter(near, torch.tensor(torch.inf if up else -torch.inf, dtype=dtype)) if outside else near
