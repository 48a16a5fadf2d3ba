"""Units in the last place: how many representable numbers lie between two values, and how far apart they stand.

Everything here works on bits, so that neither a library's rounding nor a process that flushes subnormals can change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

INT64_MAX = 2**63 - 1
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Format:
    """A binary format: stored mantissa bits, exponents of its smallest normal and largest finite number, has a sign."""

    mantissa: int
    smallest: int
    largest: int
    signed: bool = True


#: The floating-point dtypes that can be compared. A table, because torch.finfo is wrong on float8_e5m2fnuz (its eps).
#: IEEE 754-2019 table 3.5; OCP FP8 (arXiv 2209.05433); FNUZ (arXiv 2206.02915); OCP MX v1.0 for e8m0.
FORMATS = {
    torch.float64: Format(52, -1022, 1023),
    torch.float32: Format(23, -126, 127),
    torch.float16: Format(10, -14, 15),
    torch.bfloat16: Format(7, -126, 127),
    torch.float8_e4m3fn: Format(3, -6, 8),
    torch.float8_e5m2: Format(2, -14, 15),
    torch.float8_e4m3fnuz: Format(3, -7, 7),
    torch.float8_e5m2fnuz: Format(2, -15, 15),
    torch.float8_e8m0fnu: Format(0, -127, 127, signed=False),
}


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Steps from `a` to `b` along the representable numbers of their dtype, elementwise: int64, at most INT64_MAX.

    `a` and `b` are dense, of one shape and one dtype of FORMATS. −0 and +0 are 0 apart; infinity is one step beyond the
    largest finite number, where the dtype has it; two NaN are 0 apart whatever their payload, NaN and a number
    INT64_MAX. Eight-bit floats count in their own format too, not in the float32 that holds them: that is the step
    their backends can be off by. Raises TypeError on other dtypes or two of them.
    """
    if a.dtype != b.dtype or a.dtype not in FORMATS:
        raise TypeError(f"no ULP distance between {a.dtype} and {b.dtype}")
    p, q = _ordinal(a), _ordinal(b)
    low, high = torch.minimum(p, q), torch.maximum(p, q)
    saturated = low < high.clamp(min=0) - INT64_MAX  # the difference itself could overflow
    distance = (high - torch.where(saturated, high, low)).masked_fill_(saturated, INT64_MAX)
    nan_a, nan_b = is_nan(a), is_nan(b)
    return distance.masked_fill_(nan_a ^ nan_b, INT64_MAX).masked_fill_(nan_a & nan_b, 0)


def raw_bits(x: Tensor) -> Tensor:
    """The bits of each element as a signed integer of the same size; shares memory with `x`."""
    return x.view(_BITS[x.dtype.itemsize])


def _ordinal(x: Tensor) -> Tensor:
    """The place of each number in the order of its dtype, 0 for both zeros; int64. NaN gets a place without meaning."""
    bits = raw_bits(x).to(torch.int64)
    if not FORMATS[x.dtype].signed:
        return bits & 0xFF
    magnitude = bits & ((1 << (8 * x.dtype.itemsize - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def is_nan(x: Tensor) -> Tensor:
    """Where `x` is NaN; works on eight-bit floats, for which torch has no isnan."""
    return torch.isnan(x.to(torch.float32) if x.dtype.itemsize == 1 else x)


def ulp(y: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype` at `y`: float64, same shape. For float64 this is `math.ulp` at every finite number.

    `y` is float64 and need not be representable in `dtype`. Below the smallest normal number it is the spacing of the
    subnormals (e8m0, which has none, keeps that of its smallest number); beyond the largest finite number, infinity
    included, the spacing just below it, so that the result is finite. NaN gives NaN.
    Raises TypeError where `y` is not float64 or `dtype` is not in FORMATS.
    """
    if y.dtype != torch.float64 or dtype not in FORMATS:
        raise TypeError(f"no spacing of {dtype} at {y.dtype}")
    form = FORMATS[dtype]
    exponent = ((y.view(torch.int64) >> 52) & 0x7FF) - 1023  # −1023 at zero and subnormals, 1024 at infinity
    spacing = _power_of_two(exponent.clamp(form.smallest, form.largest) - form.mantissa)
    return spacing.masked_fill_(torch.isnan(y), torch.nan)


def _power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent, exactly, as float64, for int64 exponents from −1074 to 1023 (torch.ldexp and exp2 may round)."""
    normal = (exponent + 1023).clamp(min=1) << 52
    subnormal = torch.ones_like(exponent) << (exponent + 1074).clamp(0, 51)
    return torch.where(exponent >= -1022, normal, subnormal).view(torch.float64)
