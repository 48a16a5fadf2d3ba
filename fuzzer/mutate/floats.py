"""Arithmetic on float tensors that does exactly what it says in every dtype: neighbours, saturation, edits in place.

A complex tensor is seen as one with a further axis of two reals.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuzzer.mutate.where import Where, positions

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
#: The real dtype of each float dtype's elements, by torch's name.
REAL_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.float32,
}


def ulp_step(values: Tensor, steps: Tensor | int) -> Tensor:
    """`values` moved by `steps` representable numbers (up where positive); stops at the largest finite number.

    float16, bfloat16, float32 or float64. Zero and −0 are one number; infinities, NaN and steps of 0 leave an element
    as it is, bit for bit. (torch.nextafter knows no float16, and goes one step only.)
    """
    layout = _BITS[values.dtype]
    info = torch.iinfo(layout)
    bits = values.contiguous().view(layout).to(torch.int64)
    magnitude = bits & info.max
    ordered = torch.where(bits < 0, -magnitude, magnitude)
    largest = int(torch.tensor(torch.finfo(values.dtype).max, dtype=values.dtype).view(layout))
    moved = (ordered + steps).clamp(-largest, largest)
    back = torch.where(moved < 0, info.min - moved, moved).to(layout).view(values.dtype)
    stays = ~torch.isfinite(values) | (torch.as_tensor(steps) == 0)
    return torch.where(stays, values, back)


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 `values` as `dtype`, cut to its finite range; NaN stays NaN."""
    info = torch.finfo(dtype)
    return values.clamp(info.min, info.max).to(dtype)


def mapped(values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """`change`, computed in float64 and saturated, on the finite elements of `values`; the others stay."""
    after = saturated(change(values.double()), values.dtype)
    return torch.where(torch.isfinite(values), after, values)


def copy_of(tensor: Tensor) -> Tensor:
    """A contiguous copy, apart from autograd."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def edited(tensor: Tensor, where: Where, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A copy of `tensor` in which the elements at `where`, a 1-D tensor in its dtype, went through `change`."""
    out = copy_of(tensor)
    reals = torch.view_as_real(out) if out.is_complex() else out
    flat = reals.reshape(-1)
    if where.place == "all" and flat.numel():  # no need to gather and scatter what is everything
        flat.copy_(change(flat.clone()))
        return out
    at = positions(where, reals.shape)
    if at.numel():
        flat[at] = change(flat[at])
    return out
