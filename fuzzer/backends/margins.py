"""How near a model's discrete decisions are to going the other way, seen from outside the model.

A comparison hangs on a − b, an argmax or a sort on the gaps between its values, rounding on the distance to the next
step, non-maximum suppression on IoU minus its threshold. `margin_of` names that distance for one call of a PyTorch
function, as a tensor that can be differentiated: its zero is the decision's boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: Tensors larger than this are cut to their beginning: a margin is asked for on every run.
MOST = 4096
#: Boxes of which all pairs are looked at.
MOST_BOXES = 64

Args = Sequence[Any]
Margin = Callable[[Args, Mapping[str, Any]], Tensor | None]


def margin_of(name: str, args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The signed distances, flat, on which a call of the function `name` decides; None where it decides nothing."""
    rule = _RULES.get(name)
    return None if rule is None else rule(args, kwargs)


def top_gaps(values: Tensor) -> Tensor | None:
    """First minus second along the last axis: the margin of a classifier's output."""
    return _gaps(values, -1, 1)


def _real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.numel() > 0


def _difference(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    other = args[1] if len(args) > 1 else kwargs.get("other")
    first = args[0]
    if not (_real(first) or _real(other)) or isinstance(other, bool | None) or isinstance(first, bool | None):
        return None
    return torch.as_tensor(first - other).reshape(-1)[:MOST]


def _gaps(values: Tensor, dim: int | None, count: int | None) -> Tensor | None:
    if not _real(values) or values.dim() == 0:
        return None
    flat = values.reshape(-1)[:MOST] if dim is None else values.movedim(dim, -1)
    side = flat.shape[-1]
    if side < 2 or side > MOST:
        return None
    rows = flat.reshape(-1, side)[: max(1, MOST // side)]
    ordered = rows.sort(dim=-1, descending=True).values
    gaps = ordered[:, :-1] - ordered[:, 1:]
    return (gaps if count is None else gaps[:, :count]).reshape(-1)


def _largest(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return None if isinstance(dim, Tensor) else _gaps(args[0], dim, 1)


def _smallest(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return None if isinstance(dim, Tensor) or not _real(args[0]) else _gaps(-args[0], dim, 1)


def _ordered(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
    return _gaps(args[0], dim if isinstance(dim, int) and not isinstance(dim, bool) else -1, None)


def _topk(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    k = args[1] if len(args) > 1 else kwargs.get("k", 1)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    return _gaps(args[0], dim, int(k))


def _flat_gaps(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    return _gaps(args[0], None, None)


def _to_whole(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    if not _real(args[0]):
        return None
    values: Tensor = args[0].reshape(-1)[:MOST]
    return values - values.detach().round()


def _to_half(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    if not _real(args[0]):
        return None
    values: Tensor = args[0].reshape(-1)[:MOST]
    return values - values.detach().floor() - 0.5


def _cast(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    wanted = [one for one in (*args[1:], *kwargs.values()) if isinstance(one, torch.dtype)]
    if not wanted or wanted[0].is_floating_point or wanted[0].is_complex:
        return None
    return _to_whole(args, kwargs)


def _quotient(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    if len(args) < 2 or not (_real(args[0]) or _real(args[1])):
        return None
    return _to_whole((args[0] / args[1],), {})


def _division(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    return _quotient(args, kwargs) if kwargs.get("rounding_mode") else None


def _zero(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    return args[0].reshape(-1)[:MOST] if _real(args[0]) else None


def _overlaps(args: Args, kwargs: Mapping[str, Any]) -> Tensor | None:
    """IoU minus the threshold of each pair of boxes, then the gaps between scores."""
    boxes, scores, threshold = args[:3] if len(args) > 2 else (args[0], args[1], kwargs.get("iou_threshold"))
    if not _real(boxes) or len(boxes) < 2 or threshold is None:
        return None
    boxes = boxes[:MOST_BOXES]
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    first, second = torch.triu_indices(len(boxes), len(boxes), offset=1)
    overlap = common[first, second] / (areas[first] + areas[second] - common[first, second])
    gaps = _gaps(scores, -1, None)
    near = overlap - threshold
    return near if gaps is None else torch.cat([near, gaps])


_RULES: dict[str, Margin] = {
    **dict.fromkeys(
        ("gt", "ge", "lt", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal"), _difference
    ),
    **dict.fromkeys(("__gt__", "__ge__", "__lt__", "__le__", "__eq__", "__ne__", "isclose"), _difference),
    **dict.fromkeys(("argmax", "max"), _largest),
    **dict.fromkeys(("argmin", "min"), _smallest),
    **dict.fromkeys(("sort", "argsort", "msort"), _ordered),
    **dict.fromkeys(("unique", "unique_consecutive", "median", "kthvalue"), _flat_gaps),
    "topk": _topk,
    **dict.fromkeys(("floor", "ceil", "trunc", "fix", "long", "int", "short", "char", "byte"), _to_whole),
    "round": _to_half,
    "to": _cast,
    "type": _cast,
    **dict.fromkeys(("floor_divide", "__floordiv__", "remainder", "fmod", "__mod__"), _quotient),
    **dict.fromkeys(("div", "divide"), _division),
    **dict.fromkeys(("sign", "sgn", "heaviside", "bool", "signbit", "nonzero"), _zero),
    "nms": _overlaps,
}
