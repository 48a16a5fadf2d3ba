"""Faults of integer arithmetic, of indices, and of empty dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.planted.fault import Call


def floor_division(call: Call) -> Tensor | None:
    """Division that should round to zero rounds down."""
    if call.kwargs.get("rounding_mode") != "trunc" or call.right.is_floating_point():
        return None
    return torch.div(*call.args, rounding_mode="floor")


def shift_wraps(call: Call) -> Any:
    """A shift by the width of the dtype or more shifts by what is left of it."""
    x, by = call.args
    if not isinstance(by, Tensor):
        return None
    return call.function(x, by & (torch.iinfo(x.dtype).bits - 1))


def saturating_cast(call: Call) -> Tensor | None:
    """A float out of range becomes the nearest integer that there is, not what the processor's instruction gives."""
    dtype = call.kwargs.get("dtype")
    if not call.x.is_floating_point() or dtype not in (torch.int32, torch.int64):
        return None
    info = torch.iinfo(dtype)
    high = torch.where(call.x >= float(info.max), info.max, call.right)
    return torch.where(call.x < float(info.min), info.min, high).to(dtype)


def duplicate_index(call: Call) -> Any:
    """Of the terms that `index_add` adds to one place the last alone is added."""
    x, dim, index, source = call.args[:4]
    last = {place: i for i, place in enumerate(index.tolist())}
    if len(last) == index.numel() or call.kwargs.get("alpha", 1) != 1:
        return None
    chosen = torch.tensor(sorted(last.values()), dtype=torch.int64)
    return call.function(x, dim, index.index_select(0, chosen), source.index_select(dim, chosen))


def empty_product(call: Call) -> Tensor | None:
    """The product of nothing is 0."""
    return torch.zeros_like(call.right) if call.x.numel() == 0 else None
