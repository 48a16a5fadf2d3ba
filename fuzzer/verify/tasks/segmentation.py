"""Segmentation: which pixels change their class, and what that does to the overlap of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import (
    Evidence,
    NoAnswer,
    TaskKind,
    count,
    find_leaf,
    not_run,
    register,
    values,
)
from fuzzer.verify.tasks.decisions import Decisions, decide, flips
from fuzzer.verify.tasks.over_set import jaccard
from fuzzer.verify.verdict import TaskVerdict

#: Classes named in the metrics: those that overlap least.
_MOST_CLASSES = 20


@register
class Segmentation(TaskKind[Decisions]):
    """Logits float [N, classes, H, W] or [classes, H, W], or a class map, integer [..., H, W].

    Passes where every pixel that flips is a near-tie: an image holds thousands of decisions, so that some always are.
    """

    name = "segmentation"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Decisions:
        path = find_leaf(outputs, leaves, ("logits", "scores", "labels", "out"), (".out", ".logits"))
        tensor, dtype = values(leaves, path)
        if not tensor.is_floating_point():
            if tensor.dim() < 2:
                raise NoAnswer(f"the output {path} of shape {tuple(tensor.shape)} is no class map")
            return Decisions(path, tensor)
        if tensor.dim() not in (3, 4):
            raise NoAnswer(f"the output {path} of shape {tuple(tensor.shape)} is not [N, classes, H, W]")
        return decide(path, tensor.movedim(-3, -1).contiguous(), dtype)

    def compare(self, reference: Decisions, target: Decisions, evidence: Evidence[Decisions]) -> TaskVerdict:
        found = flips(reference, target, evidence)
        if not found.elements:
            return not_run("no pixel has a class: none there, or NaN in every one")
        overlap = class_overlap(reference.labels, target.labels)
        metrics: dict[str, float | int | str] = {
            "pixels": found.elements,
            "flipped": found.count,
            "near_ties": found.count - found.real,
            "classes": len(overlap),
            "mean_iou": sum(overlap.values()) / len(overlap) if overlap else 0.0,
            **found.metrics(),
        }
        if not found.count:
            sentence = f"the class agrees on {count(found.elements, 'pixel')}"
            return TaskVerdict("pass", sentence, found.elements, metrics, leaf=reference.path)
        worst = sorted(overlap.items(), key=lambda item: item[1])[:_MOST_CLASSES]
        metrics |= {f"iou.{label}": iou for label, iou in worst if iou < 1}
        sentence = f"the class flips on {found.count} of {count(found.elements, 'pixel')}: {found.words()}"
        near_tie = found.real == 0
        return TaskVerdict(
            "pass" if near_tie else "fail", sentence, found.elements, metrics, near_tie, found.blame, reference.path
        )

    def over_set(self, pairs: Sequence[tuple[Decisions, Decisions]]) -> dict[str, float]:
        return jaccard([(r.labels, t.labels) for r, t in pairs])


def class_overlap(reference: Tensor, target: Tensor) -> dict[int, float]:
    """Intersection over union of the pixels of each class that either side has, by class; undecided pixels have none.

    Both int64, of one shape.
    """
    r, t = reference.reshape(-1), target.reshape(-1)
    found = {}
    for label in torch.unique(torch.cat([r[r >= 0], t[t >= 0]])).tolist():
        a, b = r == label, t == label
        found[int(label)] = float((a & b).sum()) / float((a | b).sum())
    return found
