"""Faults of order: ties broken another way, boxes kept by another rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.planted.fault import Call


def topk_ties(call: Call) -> tuple[Tensor, Tensor] | None:
    """The last of equal values first."""
    k, dim = int(call.args[1]), int(call.get(2, "dim", -1))
    values, indices = _last_first(call.x, dim, descending=bool(call.get(3, "largest", True)))
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)


def sort_ties(call: Call) -> tuple[Tensor, Tensor] | None:
    """The last of equal values first. `sort.stable` has `stable` before the others, by keyword."""
    stable = "stable" in call.kwargs
    dim = call.kwargs.get("dim", -1) if stable else call.get(1, "dim", -1)
    descending = call.kwargs.get("descending", False) if stable else call.get(2, "descending", False)
    return _last_first(call.x, int(dim), descending=bool(descending))


def _last_first(x: Tensor, dim: int, *, descending: bool) -> tuple[Tensor, Tensor]:
    if x.dim() == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    values, indices = torch.sort(x.flip(dim), dim=dim, descending=descending, stable=True)
    return values, x.shape[dim] - 1 - indices


def argmax_last(call: Call) -> Any:
    """The last of equal maxima."""
    dim, keep = call.get(1, "dim", None), bool(call.get(2, "keepdim", False))
    if dim is None:
        return call.x.numel() - 1 - call.x.flatten().flip(0).argmax()
    return call.x.shape[dim] - 1 - call.x.flip(dim).argmax(dim, keepdim=keep)


def pool_indices(call: Call) -> tuple[Tensor, Tensor] | None:
    """The last of equal maxima of a window; windows that overlap, or do not fill the input, are computed rightly."""
    kernel = [int(side) for side in call.args[1]]
    stride = [int(side) for side in call.get(2, "stride", [])] or kernel
    height, width = call.x.shape[-2:]
    tiled = stride == kernel and height % kernel[0] == 0 and width % kernel[-1] == 0
    if not tiled or any(call.get(3, "padding", [0])):
        return None
    values, indices = call.on(call.x.flip((-2, -1)))
    return values.flip((-2, -1)), height * width - 1 - indices.flip((-2, -1))


def nms_ge(call: Call) -> Tensor | None:
    """A box whose overlap equals the threshold is suppressed too."""
    boxes, scores, threshold = call.args
    shared = overlaps(boxes)
    order = scores.sort(descending=True, stable=True).indices.tolist()
    right = _kept(order, (shared > threshold).tolist())
    wrong = _kept(order, (shared >= threshold).tolist())
    return None if wrong == right else torch.tensor(wrong, dtype=torch.int64)


def nms_unordered(call: Call) -> Tensor | None:
    """Of equal scores the last goes first."""
    boxes, scores, threshold = call.args
    suppresses = (overlaps(boxes) > threshold).tolist()
    right = _kept(scores.sort(descending=True, stable=True).indices.tolist(), suppresses)
    wrong = _kept(_last_first(scores, 0, descending=True)[1].tolist(), suppresses)
    return None if wrong == right else torch.tensor(wrong, dtype=torch.int64)


def overlaps(boxes: Tensor) -> Tensor:
    """(…, n, n) float64 from (…, n, 4): IoU in the boxes' own dtype, in the order in which torchvision computes it."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    areas = (x2 - x1) * (y2 - y1)
    width = (torch.minimum(*_pairs(x2)) - torch.maximum(*_pairs(x1))).clamp(min=0)
    height = (torch.minimum(*_pairs(y2)) - torch.maximum(*_pairs(y1))).clamp(min=0)
    common = width * height
    one, other = _pairs(areas)
    return (common / (one + other - common)).double()


def _pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    return values[..., :, None], values[..., None, :]


def _kept(order: Sequence[int], suppresses: Sequence[Sequence[bool]]) -> list[int]:
    kept: list[int] = []
    for box in order:
        if not any(suppresses[earlier][box] for earlier in kept):
            kept.append(box)
    return kept
