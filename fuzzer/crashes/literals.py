"""Tensors as Python source that gives back the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzzer.tensors import raw_bytes

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def literal(tensor: Tensor) -> str:
    """An expression over `torch`, `nan` and `inf` that evaluates to `tensor`, bit for bit.

    Decimal numbers where they give back the same bits (NaN of the usual pattern, infinities, −0 and subnormals do), the
    bit patterns as integers otherwise.
    """
    value = tensor.detach().cpu()
    value = (value if value.layout == torch.strided else value.to_dense()).resolve_conj().contiguous()
    if value.numel() == 0:
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    for candidate in _candidates(value):
        back = eval(candidate, {"torch": torch, "nan": float("nan"), "inf": float("inf")})  # our own text
        if back.dtype == value.dtype and back.shape == value.shape and raw_bytes(back) == raw_bytes(value):
            return candidate
    return _as_bits(value)


def _candidates(value: Tensor) -> Iterator[str]:
    if value.is_complex():
        return
    if value.is_floating_point():
        writers: list[Callable[[float], str]] = [lambda x: repr(float(x))]
        if value.dtype == torch.float32:
            writers.insert(0, lambda x: repr(float(str(np.float32(x)))))
        plain = value.to(torch.float64).tolist()
    else:
        writers = [repr]
        plain = value.tolist()
    for writer in writers:
        yield f"torch.tensor({_nested(plain, writer)}, dtype={value.dtype})"


def _as_bits(value: Tensor) -> str:
    if value.is_complex():
        return f"torch.view_as_complex({_as_bits(torch.view_as_real(value))})"
    bits = _BITS[value.element_size()]
    return f"torch.tensor({_nested(value.view(bits).tolist(), repr)}, dtype={bits}).view({value.dtype})"


def _nested(value: Any, writer: Callable[[Any], str]) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_nested(item, writer) for item in value) + "]"
    return writer(value)
