"""Detection: are the same things found at the same places? Boxes are sets here; their order does not matter.

Boxes of one class are paired greedily, the largest overlap first, down to an IoU of one half. What stays alone is
missing (the reference has it) or extra (the target has it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import Evidence, TaskKind, blame_of, count, not_run, register
from fuzzer.verify.tasks.boxes import Detections, Image, images_of, paths_of
from fuzzer.verify.tasks.over_set import mean_average_precision
from fuzzer.verify.verdict import Blame, TaskVerdict

#: PASCAL VOC's criterion for "the same object" (Everingham et al., IJCV 2010).
SAME_OBJECT = 0.5
#: How many images of a batch, and boxes of an image, a verdict keeps for a drawing.
MOST_DRAWN = (4, 100)
#: Corners this near, relative to the largest coordinate, make one box even where it has no area to overlap with.
_SAME_CORNERS = 1e-5


@dataclass(frozen=True)
class Match:
    """Pairs of indices into two images' boxes with their IoU, and the indices that stay alone."""

    pairs: list[tuple[int, int]]
    ious: list[float]
    missing: list[int]
    extra: list[int]

    @property
    def alone(self) -> int:
        return len(self.missing) + len(self.extra)


@register
class Detection(TaskKind[Detections]):
    """`boxes` float [n, 4] as corners, `scores` [n], `labels` [n] (one class where there are none), for each image.

    A batch dimension in front of all of them makes several images. Fails where a box is missing or extra. That is a
    near-tie where perturbed runs of the reference lose or gain each of these boxes too, or, in one run, at least as
    many boxes, with scores as high: two-stage detectors exchange some boxes of a hundred when values move by one ulp.
    """

    name = "detection"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Detections:
        return images_of(outputs, leaves)

    def compare(self, reference: Detections, target: Detections, evidence: Evidence[Detections]) -> TaskVerdict:
        boxes = sum(max(len(r.scores), len(t.scores)) for r, t in _both(reference, target))
        if not boxes:
            return not_run("neither side detects anything")
        found = [match(r, t) for r, t in _both(reference, target)]
        metrics = _metrics(reference, target, found)
        if not any(m.alone for m in found):
            sentence = f"all {count(boxes, 'box')} match" if boxes > 1 else "the only box matches"
            return TaskVerdict("pass", sentence, boxes, metrics, leaf=reference.path)
        missing, extra = sum(len(m.missing) for m in found), sum(len(m.extra) for m in found)
        near_tie = _near_tie(reference, target, found, evidence)
        blame = Blame.NEITHER if near_tie else _blame(reference, target, found, evidence.truth)
        sentence = f"{missing} missing and {extra} extra of {count(boxes, 'box')}"
        sentence += ": a near-tie, perturbed runs change as many" if near_tie else _whose(blame)
        drawn = _drawn(reference, target, found, evidence.truth)
        return TaskVerdict("fail", sentence, boxes, metrics, near_tie, blame, reference.path, drawn)

    def lists(self, outputs: Mapping[str, str], leaves: Leaves) -> list[list[str]]:
        return [list(paths.values()) for paths in paths_of(outputs, leaves)]

    def over_set(self, pairs: Sequence[tuple[Detections, Detections]]) -> dict[str, float]:
        images = [both for r, t in pairs for both in zip(r.images, t.images, strict=True)]
        return mean_average_precision(images)


def match(reference: Image, target: Image) -> Match:
    """Pair the boxes of two images: the same class, IoU ≥ SAME_OBJECT, largest first, then the nearest score."""
    if _identical(reference, target):
        everyone = list(range(len(reference.scores)))
        return Match([(i, i) for i in everyone], [1.0] * len(everyone), [], [])
    iou, rank = _overlap(reference.boxes, target.boxes)
    iou[reference.labels[:, None] != target.labels[None, :]] = 0.0
    candidates = (iou >= SAME_OBJECT).nonzero().tolist()
    distance = _gap(reference.scores[:, None], target.scores[None, :])
    candidates.sort(key=lambda ij: (-float(rank[ij[0], ij[1]]), float(distance[ij[0], ij[1]])))
    free_r, free_t = set(range(len(reference.scores))), set(range(len(target.scores)))
    pairs, ious = [], []
    for i, j in candidates:
        if i in free_r and j in free_t:
            pairs.append((i, j))
            ious.append(float(iou[i, j]))
            free_r.remove(i)
            free_t.remove(j)
    return Match(pairs, ious, sorted(free_r), sorted(free_t))


def _overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """IoU [n, m], 1 for boxes whose corners are alike; and the same with 2 for boxes that are equal bit for bit."""
    from torchvision.ops import box_iou  # brings Dynamo along, a second or more: only where boxes are compared

    iou = box_iou(a, b).nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
    if not iou.numel():
        return iou, iou
    left, right = a[:, None, :], b[None, :, :]
    equal = ((left == right) | (left.isnan() & right.isnan())).all(-1)
    reach = torch.maximum(left.abs(), right.abs()).amax(-1) * _SAME_CORNERS
    alike = equal | ((left - right).abs().amax(-1) <= reach) & reach.isfinite()
    iou = torch.where(alike & (iou < SAME_OBJECT), 1.0, iou)
    return iou, torch.where(equal, 2.0, iou)


def _gap(a: Tensor, b: Tensor) -> Tensor:
    """|a − b|; 0 for equal infinities and for two NaN, infinite for one NaN."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(math.inf, math.inf))


def _identical(a: Image, b: Image) -> bool:
    pairs = ((a.boxes, b.boxes), (a.scores, b.scores), (a.labels, b.labels))
    return all(x.shape == y.shape and not bool(_gap(x.double(), y.double()).any()) for x, y in pairs)


def _both(reference: Detections, target: Detections) -> list[tuple[Image, Image]]:
    return list(zip(reference.images, target.images, strict=True))


def _metrics(reference: Detections, target: Detections, found: list[Match]) -> dict[str, float | int | str]:
    ious = [iou for m in found for iou in m.ious]
    sides = [sum(len(image.scores) for image in side.images) for side in (reference, target)]
    score_error = box_error = 0.0
    relabelled = 0
    for (r, t), m in zip(_both(reference, target), found, strict=True):
        if m.pairs:
            i, j = (torch.tensor(index) for index in zip(*m.pairs, strict=True))
            score_error = max(score_error, float(_gap(r.scores[i], t.scores[j]).max()))
            box_error = max(box_error, float(_gap(r.boxes[i], t.boxes[j]).max()))
        if m.missing and m.extra:
            iou, _ = _overlap(r.boxes[m.missing], t.boxes[m.extra])
            relabelled += int((iou >= SAME_OBJECT).any(1).sum())
    return {
        "images": len(found),
        "boxes_reference": sides[0],
        "boxes_target": sides[1],
        "matched": len(ious),
        "missing": sum(len(m.missing) for m in found),
        "extra": sum(len(m.extra) for m in found),
        "relabelled": relabelled,
        "score_error": score_error,
        "box_error_px": box_error,
        "mean_iou": sum(ious) / len(ious) if ious else 0.0,
        "f1": 2 * len(ious) / sum(sides),
    }


def _drawn(
    reference: Detections, target: Detections, found: list[Match], truth: Detections | None
) -> list[dict[str, list[list[float]]]]:
    """The boxes of the images in dispute, as a TaskVerdict keeps them: what stands alone first, then the best."""
    images = []
    for k, m in enumerate(found):
        if m.alone:
            drawn = {
                "reference": _rows(reference.images[k], m.missing),
                "target": _rows(target.images[k], m.extra),
            }
            if truth is not None:
                y = truth.images[k]
                drawn["float64"] = _rows(y, match(y, reference.images[k]).missing)
            images.append(drawn)
    return images[: MOST_DRAWN[0]]


def _rows(image: Image, alone: Sequence[int]) -> list[list[float]]:
    order = sorted(range(len(image.scores)), key=lambda i: (i not in alone, i))[: MOST_DRAWN[1]]
    columns = (image.boxes.tolist(), image.scores.tolist(), image.labels.tolist())
    return [[*columns[0][i], columns[1][i], columns[2][i], float(i not in alone)] for i in order]


def _near_tie(reference: Detections, target: Detections, found: list[Match], evidence: Evidence[Detections]) -> bool:
    plain = evidence.plain or reference
    draws = evidence.draws
    if not draws:
        return False
    unexplained: list[float] = []
    for k, m in enumerate(found):
        r, t = reference.images[k], target.images[k]
        lost, gained = set(m.missing), set(m.extra)
        for draw in draws:
            lost -= set(match(r, draw.images[k]).missing)
            gained -= {j for _, j in match(draw.images[k], t).pairs}
        unexplained += [float(r.scores[i]) for i in lost] + [float(t.scores[j]) for j in gained]
    if not unexplained:
        return True
    most, highest = 0, -math.inf
    for draw in draws:
        changes = [(p, d, match(p, d)) for p, d in _both(plain, draw)]
        most = max(most, sum(m.alone for _, _, m in changes))
        for p, d, m in changes:
            highest = max([highest, *p.scores[m.missing].tolist(), *d.scores[m.extra].tolist()])
    return most >= sum(m.alone for m in found) and all(score <= highest for score in unexplained)


def _blame(reference: Detections, target: Detections, found: list[Match], truth: Detections | None) -> Blame:
    """Each box in dispute is looked for in float64's answer: the side that has or lacks it as float64 does is right."""
    if truth is None:
        return Blame.UNKNOWN
    target_wrong = reference_wrong = False
    for (r, t), y, m in zip(_both(reference, target), truth.images, found, strict=True):
        not_in_truth = set(match(y, r).extra), set(match(y, t).extra)
        rights = [i not in not_in_truth[0] for i in m.missing] + [j in not_in_truth[1] for j in m.extra]
        target_wrong |= any(rights)
        reference_wrong |= not all(rights)
    return blame_of(target_wrong, reference_wrong)


def _whose(blame: Blame) -> str:
    words = {
        Blame.TARGET: "float64 detects what the reference does",
        Blame.REFERENCE: "float64 detects what the target does",
        Blame.BOTH: "float64 agrees now with one side and now with the other",
    }
    return ": " + words.get(blame, "no float64 answer to judge by")
