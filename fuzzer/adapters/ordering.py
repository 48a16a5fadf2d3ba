"""An order that no backend can break otherwise: by value, then by position (or box), not by how a sort is written.

Ranks are counted by comparing each element with each other, which every backend computes exactly; what is sorted then
are whole numbers without ties. That costs n² comparisons for n elements. Scores may be rounded to a grid first, so that
two that differ by noise alone are equal and their boxes decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

#: Scores are rounded to multiples of this where they are quantised: about a thousandth.
QUANTUM = 2.0**-10


def stable_rank(values: Tensor, *, descending: bool = False) -> Tensor:
    """The place of each element in the sorted last dimension, int64; equal ones in the order of their positions.

    NaN counts as the largest, as in PyTorch; −0 and +0 are equal.
    """
    return _rank(_before(values, descending=descending), _equal(values))


def stable_argsort(values: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """Indices that sort `dim`, ties by position. Like `torch.argsort(..., stable=True)`, which cannot be exported."""
    if values.dim() == 0:
        return torch.zeros_like(values, dtype=torch.int64)
    rank = stable_rank(values.movedim(dim, -1), descending=descending)
    return torch.topk(-rank, rank.shape[-1], dim=-1).indices.movedim(-1, dim)  # distinct whole numbers


def stable_sort(values: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values and their indices, ties by position."""
    if values.dim() == 0:
        return values, torch.zeros_like(values, dtype=torch.int64)
    index = stable_argsort(values, dim, descending)
    return values.gather(dim, index), index


def stable_topk(values: Tensor, k: int, dim: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest (or smallest) along `dim`, in order, and their indices; of equal ones those that come first."""
    if values.dim() == 0:
        return values, torch.zeros_like(values, dtype=torch.int64)
    index = stable_argsort(values, dim, largest).narrow(dim, 0, k)
    return values.gather(dim, index), index


def stable_argmax(values: Tensor, dim: int | None = None, keepdim: bool = False, *, largest: bool = True) -> Tensor:
    """The first position of the largest element (or the smallest); the first NaN where there is one."""
    whole = values.reshape(-1) if dim is None else values
    at = -1 if dim is None else dim
    best = whole.amax(at, keepdim=True) if largest else whole.amin(at, keepdim=True)
    hit = whole == best
    if values.is_floating_point():
        nan = whole.isnan()
        some = nan.any(at, keepdim=True)
        hit = (some & nan) | (~some & hit)  # ONNX Runtime has no `where` of bools
    size = whole.shape[at]
    shape = [1] * whole.dim()
    shape[at] = size
    place = torch.arange(size, device=values.device).reshape(shape)
    found = torch.where(hit, place, size).amin(at, keepdim=keepdim and dim is not None)
    return found.reshape([1] * values.dim()) if keepdim and dim is None else found


def stable_nms(boxes: Tensor, scores: Tensor, iou_threshold: float, quantum: float | None = None) -> Tensor:
    """`torchvision.ops.nms` with its order fixed beforehand: by score, then by box, then by position.

    boxes (n, 4), scores (n,) → int64 indices kept, best first. `quantum`: round the scores to its multiples first.
    NaN scores come first, as PyTorch sorts them. What is suppressed by whom is decided as before.
    """
    key = scores if quantum is None else torch.round(scores / quantum) * quantum
    before, equal = _before(key, descending=True), _equal(key)
    for column in boxes.unbind(-1):
        before = before | (equal & _before(column, descending=False))
        equal = equal & _equal(column)
    ranks = -_rank(before, equal).to(boxes.dtype)  # without ties, exact in float32 up to 2^24 boxes
    kept: Tensor = torch.ops.torchvision.nms(boxes, ranks, iou_threshold)
    return kept


def _before(values: Tensor, *, descending: bool) -> Tensor:
    """before[i, j]: element j comes before element i, whatever their positions."""
    here, other = values.unsqueeze(-1), values.unsqueeze(-2)
    if not values.is_floating_point():
        return other > here if descending else other < here
    nan, other_nan = here.isnan(), other.isnan()
    return (other > here) | (other_nan & ~nan) if descending else (other < here) | (nan & ~other_nan)


def _equal(values: Tensor) -> Tensor:
    here, other = values.unsqueeze(-1), values.unsqueeze(-2)
    return (here == other) | (here.isnan() & other.isnan()) if values.is_floating_point() else here == other


def _rank(before: Tensor, equal: Tensor) -> Tensor:
    place = torch.arange(before.shape[-1], device=before.device)
    earlier = place.unsqueeze(0) < place.unsqueeze(1)
    return (before | (equal & earlier)).to(torch.int64).sum(-1)


class StableOrder(TorchFunctionMode):
    """Within it, sort, argsort, topk, argmax and argmin break ties by position, and NMS by score, box and position.

    It holds in eager mode, and for what `torch.compile` and both ONNX exporters trace while it is on.
    `quantum`: NMS rounds its scores to multiples of it. `nms_only`: leave all but NMS alone.
    """

    def __init__(self, quantum: float | None = None, *, nms_only: bool = False) -> None:
        super().__init__()
        self.quantum = quantum
        self.nms_only = nms_only

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "nms" or func in _nms():
            return _nms_with(self.quantum, *args, **kwargs)
        stable = None if self.nms_only else _STABLE.get(func)
        if stable is None or not args or "out" in kwargs:
            return func(*args, **kwargs)
        return stable(func, *args, **kwargs)


def _nms() -> tuple[Any, ...]:
    import torchvision  # noqa: F401  its operators are registered when it is imported

    return torch.ops.torchvision.nms, torch.ops.torchvision.nms.default


def _nms_with(quantum: float | None, dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return stable_nms(dets, scores, iou_threshold, quantum)


def _typed(func: Any, values: tuple[Tensor, Tensor]) -> Any:
    """Two results as `func` names them (`.values`, `.indices`)."""
    kind = {"sort": torch.return_types.sort, "topk": torch.return_types.topk}[func.__name__]
    return kind(values)


def _sort(func: Any, values: Tensor, dim: Any = -1, descending: bool = False, *, stable: bool = False) -> Any:
    return _typed(func, stable_sort(values, dim, descending))


def _argsort(func: Any, values: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return stable_argsort(values, dim, descending)


def _topk(func: Any, values: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _typed(func, stable_topk(values, k, dim, largest))


def _argmax(func: Any, values: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return stable_argmax(values, dim, keepdim, largest=func.__name__ == "argmax")


_STABLE: dict[Any, Callable[..., Any]] = {
    torch.sort: _sort,
    Tensor.sort: _sort,
    torch.argsort: _argsort,
    Tensor.argsort: _argsort,
    torch.topk: _topk,
    Tensor.topk: _topk,
    torch.argmax: _argmax,
    Tensor.argmax: _argmax,
    torch.argmin: _argmax,
    Tensor.argmin: _argmax,
}
