"""What a detector answers, read from its output leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import NoAnswer, values

_FIELDS = ("boxes", "scores", "labels")
_FIRST = "[0]"


@dataclass(frozen=True)
class Image:
    """`boxes` float64 [n, 4] as (x1, y1, x2, y2) in pixels, `scores` float64 [n], `labels` int64 [n]."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Detections:
    path: str
    images: list[Image]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of images; that of boxes may differ between answers."""
        return (len(self.images),)


def images_of(outputs: Mapping[str, str], leaves: Leaves) -> Detections:
    """The images' detections. Raises NoAnswer where there are none to read.

    `outputs` names `boxes`, `scores` and, where there are classes, `labels`; where it is empty they are what they are
    called, in as many dicts as there are (`.boxes`, `[0].boxes`, `[1].boxes`). Paths that all start with `[0]` and go
    on stand for the other images of the list too, so that none is left out.
    """
    groups = paths_of(outputs, leaves)
    if not groups:
        raise NoAnswer("no output is called boxes; name boxes, scores and labels under `task: outputs:`")
    return Detections(groups[0]["boxes"], [image for group in groups for image in _read(group, leaves)])


def paths_of(outputs: Mapping[str, str], leaves: Leaves) -> list[dict[str, str]]:
    """The paths of `boxes`, `scores` and, where there are classes, `labels`, image by image. Raises NoAnswer."""
    if outputs:
        lacking = [name for name in _FIELDS[:2] if name not in outputs]
        if lacking:
            raise NoAnswer(f"`outputs` names no {' and no '.join(lacking)}; this task reads {', '.join(_FIELDS)}")
        return _batch({name: outputs[name] for name in _FIELDS if name in outputs}, leaves)
    heads = [path.removesuffix(".boxes") for path in leaves if path.endswith(".boxes")]
    return [_fields(head, leaves) for head in heads]


def _fields(head: str, leaves: Leaves) -> dict[str, str]:
    found = {name: f"{head}.{name}" for name in _FIELDS if f"{head}.{name}" in leaves}
    if "scores" not in found:
        raise NoAnswer(f"{head}.boxes has no scores beside it")
    return found


def _batch(first: dict[str, str], leaves: Leaves) -> list[dict[str, str]]:
    """The paths of each image. They all start with `[0]` and go on, or this is the only one."""
    if not all(path.startswith(_FIRST) and len(path) > len(_FIRST) for path in first.values()):
        return [first]
    indices = {int(m[1]) for path in leaves if (m := re.match(r"\[(\d+)\]", path))}
    groups = [{name: f"[{i}]" + path[len(_FIRST) :] for name, path in first.items()} for i in sorted(indices)]
    present = [group for group in groups if all(path in leaves for path in group.values())]
    return present or [first]


def _read(group: Mapping[str, str], leaves: Leaves) -> list[Image]:
    boxes, _ = values(leaves, group["boxes"])
    scores, _ = values(leaves, group["scores"])
    labels = values(leaves, group["labels"])[0] if "labels" in group else torch.zeros_like(scores)
    shape = tuple(scores.shape)
    if tuple(boxes.shape) != (*shape, 4) or tuple(labels.shape) != shape or len(shape) not in (1, 2):
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(_FIELDS, (boxes, scores, labels), strict=True))
        raise NoAnswer(f"boxes are [n, 4], scores and labels [n], with a batch in front of all or none; here: {shapes}")
    boxes, scores = boxes.to(torch.float64), scores.to(torch.float64)
    labels = labels if not labels.is_floating_point() else labels.nan_to_num(-1, -1, -1).to(torch.int64)
    if len(shape) == 1:
        return [Image(boxes, scores, labels)]
    return [Image(*one) for one in zip(boxes, scores, labels, strict=True)]
