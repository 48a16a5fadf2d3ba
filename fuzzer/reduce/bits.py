"""Tensors as bits and as places in the order of their dtype, and back: what reduction moves values with."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzzer.verify.ulp import raw_bits


def plain(tensor: Tensor) -> Tensor:
    """`tensor` as a contiguous real one; a complex one has its parts in a last dimension of two."""
    value = tensor.detach().contiguous()
    return torch.view_as_real(value) if value.is_complex() else value


def rebuilt(value: Tensor, like: Tensor) -> Tensor:
    """The inverse of `plain` for a tensor that was like `like`, from any shape with as many elements."""
    if like.is_complex():
        return torch.view_as_complex(value.reshape(*like.shape, 2).contiguous())
    return value.reshape(like.shape)


def to_bits(value: Tensor) -> Tensor:
    """The bits of a real tensor as signed integers, flat, so that −0 and NaN payloads count. Shares memory."""
    return raw_bits(value.reshape(-1))


def from_bits(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `to_bits`, flat."""
    return bits.view(dtype)


def ordinals(value: Tensor) -> Tensor:
    """The place of each element (flat) among the numbers of its dtype: int64, neighbours are 1 apart, 0 for zeros."""
    if not value.is_floating_point():
        return value.reshape(-1).to(torch.int64)
    bits = to_bits(value).to(torch.int64)
    magnitude = bits & (2 ** (8 * value.element_size() - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def at_ordinals(places: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `ordinals` (+0 for 0), flat."""
    if not dtype.is_floating_point:
        return places.to(dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.where(places < 0, -(2 ** (8 * size - 1)) - places, places)
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return bits.to(whole).view(dtype)
