"""Simpler values for one value, the simplest first: 0, ±1, whole numbers, powers of two, fewer mantissa bits."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

#: A simpler number for one of a dtype, or None where this kind of simplicity has nothing to offer for it.
Simpler = Callable[[float, torch.dtype], float | None]

#: Mantissa bits to keep, tried in this order.
_MANTISSA_BITS = (1, 2, 3, 4, 6, 8, 10, 13, 16, 20)


def _constant(number: float) -> Simpler:
    return lambda value, dtype: number if number >= 0 or dtype not in (torch.bool, torch.uint8) else None


def _whole(value: float, dtype: torch.dtype) -> float | None:
    return float(round(value)) if _moderate(value, dtype) and abs(value) < 2**53 else None


def _power(share: float) -> Simpler:
    """A power of two of the same sign, its exponent that share of the value's own; infinities become the largest."""

    def simpler(value: float, dtype: torch.dtype) -> float | None:
        if value != value or dtype == torch.bool or value == 0:
            return None
        if math.isinf(value):
            return math.copysign(2.0 ** math.floor(math.log2(torch.finfo(dtype).max)), value)
        exponent = math.frexp(abs(float(value)))[1] - 1
        return math.copysign(math.ldexp(1.0, int(exponent * share)), value)

    return simpler


def _half_power(value: float, dtype: torch.dtype) -> float | None:
    """Half of a power of two: what a share of its exponent steps over."""
    return value / 2 if _moderate(value, dtype) and math.frexp(abs(float(value)))[0] == 0.5 else None


def _positive(value: float, dtype: torch.dtype) -> float | None:
    return -value if dtype != torch.bool and value < 0 else None


def _next_power(value: float, dtype: torch.dtype) -> float | None:
    if not _moderate(value, dtype) or value == 0:
        return None
    exponent = math.frexp(abs(float(value)))[1]
    return math.copysign(math.ldexp(1.0, exponent), value) if exponent < 1024 else None


def _rounded(bits: int) -> Simpler:
    """The nearest number with that many mantissa bits."""

    def simpler(value: float, dtype: torch.dtype) -> float | None:
        if not _moderate(value, dtype) or value == 0:
            return None
        fraction, exponent = math.frexp(float(value))
        return math.ldexp(round(fraction * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent)

    return simpler


def _plain_nan(value: float, dtype: torch.dtype) -> float | None:
    """The NaN that everyone writes, for one of another sign or payload."""
    return math.nan if value != value else None


def _moderate(value: float, dtype: torch.dtype) -> bool:
    return dtype != torch.bool and math.isfinite(value)


TARGETS: tuple[Simpler, ...] = (
    *(_constant(number) for number in (0.0, 1.0, -1.0)),
    _plain_nan,
    _whole,
    *(_power(share) for share in (0.5, 0.75, 0.875, 1.0)),
    _next_power,
    _half_power,
    *(_rounded(bits) for bits in _MANTISSA_BITS),
    _positive,
)
