"""Is it smaller: the order on samples that every step of a reduction must go down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.reduce.bits import from_bits, plain, to_bits

#: One mantissa bit weighs more than any exponent and sign.
_BIT = 4096
_INFINITE, _NAN, _ODD_NAN = 60 * _BIT, 61 * _BIT, 62 * _BIT


@dataclass(frozen=True, order=True)
class Size:
    """How much a reader has to look at, compared field by field, the first that differs decides.

    `elements` of all inputs; `filled`: those that are not their input's most common finite value (a background costs
    nothing to read); `distinct` values, summed over the inputs; `cost` of those values: mantissa bits first, then the
    distance of the exponent from that of 1, then the sign (0 costs nothing, infinities and NaN more than any number).
    """

    elements: int
    filled: int
    distinct: int
    cost: int


def size_of(sample: Mapping[str, Tensor]) -> Size:
    """The size of a sample of dense CPU tensors."""
    elements = filled = distinct = cost = 0
    for tensor in sample.values():
        value = plain(tensor)
        bits, counts = torch.unique(to_bits(value), return_counts=True)
        values = from_bits(bits, value.dtype)
        finite = torch.isfinite(values.double())
        elements += tensor.numel()
        filled += value.numel() - (int(counts[finite].max()) if bool(finite.any()) else 0)
        distinct += bits.numel()
        cost += int(costs(values).sum())
    return Size(elements, filled, distinct, cost)


def costs(values: Tensor) -> Tensor:
    """What each of `values` (flat, real) costs a reader: int64. Whole numbers beyond 2^53 count as rounded."""
    wide = values.double()
    pattern = wide.view(torch.int64)
    mantissa = pattern & (2**52 - 1)
    lowest = (mantissa & -mantissa).double()  # a power of two: its logarithm is exact
    bits = torch.where(mantissa == 0, 0.0, 52.0 - torch.log2(lowest.clamp(min=1.0))).to(torch.int64)
    exponent = ((pattern >> 52) & 0x7FF) - 1023
    found = bits * _BIT + 2 * exponent.abs() + (pattern < 0).to(torch.int64) + 1
    found = torch.where(wide == 0, (pattern < 0).to(torch.int64), found)
    found = torch.where(torch.isinf(wide), _INFINITE + (pattern < 0).to(torch.int64), found)
    usual = to_bits(values) == to_bits(torch.full_like(values, torch.nan)) if values.is_floating_point() else None
    if usual is not None:
        found = torch.where(torch.isnan(wide), torch.where(usual, _NAN, _ODD_NAN), found)
    return found
