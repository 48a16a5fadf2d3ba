"""Resizing and sampling at places that round: what random rounding runs in place of these kernels.

A kernel computes where in its input an output element lies, and weighs the neighbours of that place. The place rounds
as well, by more the larger it is, and moves the weights against each other: where neighbours cancel that is far more
than rounding of values and result. The functions here are the kernels' own formulas, with that place moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

Move = Callable[[Tensor], Tensor]
#: Keys' cubic, as PyTorch has it.
_CUBIC = -0.75


def linear(move: Move, x: Tensor, size: Sequence[int], align_corners: bool, *scales: float | None) -> Tensor:
    """`upsample_linear1d`, `upsample_bilinear2d` or `upsample_trilinear3d` of `x`; `move` moves floats at random."""
    return _resized(move, x, size, align_corners, scales, cubic=False)


def cubic(move: Move, x: Tensor, size: Sequence[int], align_corners: bool, *scales: float | None) -> Tensor:
    """`upsample_bicubic2d` of `x`."""
    return _resized(move, x, size, align_corners, scales, cubic=True)


def _resized(
    move: Move, x: Tensor, size: Sequence[int], align_corners: bool, scales: Sequence[float | None], *, cubic: bool
) -> Tensor:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    value = x.to(wide)
    asked = [*scales, *[None] * (len(size) - len(scales))]
    for back in range(1, len(size) + 1):  # from the last dimension to the first, as the kernels do
        length = value.shape[-back]
        where = _places(move, length, size[-back], align_corners, asked[-back], wide).to(x.device)
        value = _weighted(move, value, x.dim() - back, where if cubic else where.clamp(min=0), cubic=cubic)
    return value.to(x.dtype)


def _places(move: Move, length: int, size: int, align_corners: bool, scale: float | None, dtype: torch.dtype) -> Tensor:
    """Where each of `size` elements lies among `length`: [size], `dtype`."""
    if align_corners:
        step = (length - 1) / (size - 1) if size > 1 else 0.0
    else:
        step = 1 / scale if scale is not None and scale > 0 else length / size
    at = torch.arange(size, dtype=torch.float64) + (0.0 if align_corners else 0.5)
    rounded = _rounded(move, torch.tensor([step], dtype=torch.float64), dtype)
    where = _rounded(move, rounded.double() * at, dtype)
    return where if align_corners else where - 0.5


def _rounded(move: Move, exact: Tensor, dtype: torch.dtype) -> Tensor:
    """`exact` (float64) in `dtype`, moved where that rounds it."""
    narrow = exact.to(dtype)
    return torch.where(narrow.double() == exact, narrow, move(narrow))


def _weighted(move: Move, value: Tensor, dim: int, where: Tensor, *, cubic: bool) -> Tensor:
    """The neighbours of each place along `dim`, by their weights."""
    last = value.shape[dim] - 1
    low = where.floor()
    t = where - low
    if cubic:
        t = torch.where(t == 0, t, (move(t + 1) - 1).clamp(0, 1))  # the polynomials round as their terms of size one do
        weights = [_outer(t + 1), _inner(t), _inner(1 - t), _outer(2 - t)]
        places = [(low + k).clamp(0, last) for k in (-1, 0, 1, 2)]
    else:
        weights, places = [1 - t, t], [low.clamp(max=last), (low + 1).clamp(max=last)]
    shape = [-1 if k == dim else 1 for k in range(value.dim())]
    found = torch.zeros((), dtype=value.dtype, device=value.device)
    for weight, place in zip(weights, places, strict=True):
        found = found + value.index_select(dim, place.long()) * weight.view(shape)
    return found


def _inner(t: Tensor) -> Tensor:
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1


def _outer(t: Tensor) -> Tensor:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def sampled(func: Any) -> Callable[..., Any]:
    """`grid_sampler_2d` or `_3d`: a place is (x + 1)·size/2, so that it is x + 1 that rounds."""

    def run(move: Move, x: Tensor, grid: Tensor, *rest: Any) -> Any:
        return func(x, move(grid + 1) - 1, *rest)

    return run


#: By operator: what runs in its place.
PLACED: dict[Any, Callable[..., Any]] = {
    aten.upsample_linear1d.default: linear,
    aten.upsample_bilinear2d.default: linear,
    aten.upsample_trilinear3d.default: linear,
    aten.upsample_bicubic2d.default: cubic,
    aten.grid_sampler_2d.default: sampled(aten.grid_sampler_2d.default),
    aten.grid_sampler_3d.default: sampled(aten.grid_sampler_3d.default),
}
