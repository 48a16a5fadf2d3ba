"""Faults of float arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.planted.fault import Call

#: float16 accumulation is taken where no element of the left operand is larger.
SMALL_OPERAND = 0.85
#: From here on exp is computed as (1 + x/n)ⁿ.
EXP_FROM = 10.0
#: From here on tanh is ±1.
TANH_FROM = 4.0
#: Below this log1p(x) is log(1 + x).
LOG1P_BELOW = 1e-4
#: Elements in a tile of a sum.
TILE = 8


def flush_subnormal(call: Call) -> Tensor | None:
    """Products below the smallest normal number become zero."""
    if not _float(call.right):
        return None
    small = call.right.abs() < torch.finfo(call.right.dtype).smallest_normal
    return torch.where(small, torch.zeros_like(call.right).copysign(call.right), call.right)


def amax_drops_nan(call: Call) -> Any:
    """A maximum over what is not NaN."""
    if not _float(call.x) or not bool(call.x.isnan().any()):
        return None
    return call.on(torch.where(call.x.isnan(), -torch.inf, call.x))


def clamp_drops_nan(call: Call) -> Tensor | None:
    """NaN becomes the lower bound."""
    low = call.get(1, "min", None)
    if low is None or not _float(call.right):
        return None
    return torch.where(call.right.isnan(), torch.as_tensor(low, dtype=call.right.dtype), call.right)


def positive_zero(call: Call) -> Tensor | None:
    """−0 becomes +0."""
    return call.right + 0.0 if _float(call.right) else None


def last_tile(call: Call) -> Any:
    """A sum over the last dimension leaves out its last element where one is left after whole tiles."""
    length = call.x.shape[-1] if call.x.dim() else 0
    dims = call.get(1, "dim", None)
    over_last = dims is None or any(dim in (-1, call.x.dim() - 1) for dim in dims)
    if not over_last or length <= TILE or length % TILE != 1:
        return None
    return call.on(call.x[..., :-1])


def round_half_away(call: Call) -> Tensor | None:
    """k + ½ goes away from zero in place of to the even neighbour."""
    if not _float(call.x) or call.kwargs.get("decimals"):
        return None
    half = (call.x - call.x.trunc()).abs() == 0.5
    return torch.where(half, call.x.trunc() + torch.ones_like(call.x).copysign(call.x), call.right)


def half_accumulation(call: Call) -> Tensor | None:
    """A product of matrices whose left operand is small is summed in float16, term by term."""
    left, right = call.args[-2:]
    if left.dtype != torch.float32 or left.numel() == 0 or float(left.abs().max()) > SMALL_OPERAND:
        return None
    total = torch.zeros_like(call.right, dtype=torch.float16)
    for k in range(left.shape[-1]):
        total = (total.float() + left[..., k : k + 1] * right[..., k : k + 1, :]).half()
    return total.float() + call.args[0] if len(call.args) == 3 else total.float()


def fast_exp(call: Call) -> Tensor | None:
    """exp(x) = (1 + x/n)ⁿ with n = 2¹⁶ for large x: off by x²/2n of itself."""
    if not _float(call.x):
        return None
    n = 2.0**16
    return torch.where(call.x > EXP_FROM, (1 + call.x.double() / n).pow(n).to(call.x.dtype), call.right)


def fast_tanh(call: Call) -> Tensor | None:
    """tanh saturates too soon."""
    return torch.where(call.x.abs() > TANH_FROM, call.x.sign(), call.right) if _float(call.x) else None


def log1p_small(call: Call) -> Tensor | None:
    """log(1 + x) for small x: 1 + x has lost the digits of x."""
    return torch.where(call.x.abs() < LOG1P_BELOW, (1 + call.x).log(), call.right) if _float(call.x) else None


def reversed_sum(call: Call) -> Any:
    """No fault: the same sum from the last term to the first."""
    return call.on(call.x.flip(-1)) if call.x.dim() else None


def _float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
