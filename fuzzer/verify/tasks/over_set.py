"""Metrics over a set of answers, by torchmetrics: the targets against the references as if these were the truth.

torchmetrics and faster-coco-eval are an optional extra; everything else in this package works without them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.verify.tasks.boxes import Image

_INSTALL = "install them with: pip install 'xbfuzz[metrics]'"
Pairs = Sequence[tuple[Tensor, Tensor]]


def agreement(pairs: Pairs) -> dict[str, float]:
    """`accuracy`: the share of equal labels, over labels that the reference has. Pairs of int64 of one shape."""
    reference, target = _labels(pairs)
    if not reference.numel():
        return {}
    metric = _metric("classification", "MulticlassAccuracy", num_classes=_classes(reference, target), average="micro")
    return {"accuracy": float(metric(target, reference))}


def jaccard(pairs: Pairs) -> dict[str, float]:
    """`accuracy` of pixels and `mean_iou` over the classes that appear. Pairs of int64 class maps of one shape."""
    reference, target = _labels(pairs)
    if not reference.numel():
        return {}
    present, packed = torch.unique(torch.cat([reference, target]), return_inverse=True)
    classes = max(2, len(present))
    metric = _metric("classification", "MulticlassJaccardIndex", num_classes=classes, average="none")
    each = metric(packed[len(reference) :], packed[: len(reference)])[: len(present)]
    return {**agreement(pairs), "mean_iou": float(each.mean())}


def mean_average_precision(images: Sequence[tuple[Image, Image]]) -> dict[str, float]:
    """COCO's `map`, `map_50`, `map_75`, and `mar`, with all boxes of an image counted, however many."""
    if not images:
        return {}
    most = max(100, *(len(side.scores) for pair in images for side in pair))
    metric = _metric(
        "detection", "MeanAveragePrecision", backend="faster_coco_eval", max_detection_thresholds=[1, 10, most]
    )
    metric.warn_on_many_detections = False
    for reference, target in images:
        predicted = {"boxes": target.boxes.float(), "scores": target.scores.float(), "labels": target.labels}
        metric.update([predicted], [{"boxes": reference.boxes.float(), "labels": reference.labels}])
    found = metric.compute()
    names = {"map": "map", "map_50": "map_50", "map_75": "map_75", "mar": f"mar_{most}"}
    return {name: float(found[key]) for name, key in names.items()}


def mean_cosine(pairs: Pairs) -> dict[str, float]:
    """`cosine`: the mean over rows that are finite on both sides. Pairs of float64 [rows, width]."""
    rows = [(r[keep], t[keep]) for r, t in pairs for keep in [(r.isfinite() & t.isfinite()).all(-1)]]
    reference, target = (torch.cat([row[k] for row in rows]) if rows else torch.empty(0, 2) for k in (0, 1))
    if not reference.numel():
        return {}
    return {"cosine": float(_metric("regression", "CosineSimilarity", reduction="mean")(target, reference))}


def errors(pairs: Pairs) -> dict[str, float]:
    """`mean_absolute_error` over numbers that are finite on both sides. Pairs of float64 of one shape."""
    flat = [(r.reshape(-1), t.reshape(-1)) for r, t in pairs]
    reference, target = (torch.cat([pair[k] for pair in flat]) if flat else torch.empty(0) for k in (0, 1))
    keep = reference.isfinite() & target.isfinite()
    if not bool(keep.any()):
        return {}
    return {"mean_absolute_error": float(_metric("regression", "MeanAbsoluteError")(target[keep], reference[keep]))}


def _labels(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """All labels of references and targets, flat, where the reference has one.

    A target without a label (negative) counts as a class of its own, which no reference has.
    """
    flat = [(r.reshape(-1), t.reshape(-1)) for r, t in pairs]
    if not flat:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    reference, target = (torch.cat([pair[k] for pair in flat]) for k in (0, 1))
    keep = reference >= 0
    reference, target = reference[keep], target[keep]
    none = int(torch.cat([reference, target]).max()) + 1 if reference.numel() else 0
    return reference, torch.where(target >= 0, target, none)


def _classes(reference: Tensor, target: Tensor) -> int:
    return max(2, int(torch.maximum(reference.max(), target.max())) + 1)


def _metric(module: str, name: str, **options: Any) -> Any:
    try:
        return getattr(importlib.import_module(f"torchmetrics.{module}"), name)(**options)
    except ImportError as error:
        raise XbfuzzError(f"task metrics need torchmetrics and faster-coco-eval ({error}); {_INSTALL}") from error
