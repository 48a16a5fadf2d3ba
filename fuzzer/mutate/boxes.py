"""Mutators of boxes, (..., n, 4) as x1, y1, x2, y2: what non-maximum suppression decides on."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.base import FiniteFloat, InputMutator, OnInput, Sample, free, free_float, register
from fuzzer.mutate.floats import copy_of, saturated, ulp_step
from fuzzer.mutate.randomness import distinct, draws, new_key
from fuzzer.mutate.values import Ulps
from fuzzer.mutate.where import Key
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import InputSpec, Seed

#: Thresholds in use: NMS of common detectors, COCO's evaluation, proposals.
THRESHOLDS = (0.5, 0.5, 0.5, 0.5, 0.5, 0.45, 0.3, 0.4, 0.55, 0.6, 0.65, 0.7, 0.75, 0.9)


def is_boxes(spec: InputSpec) -> bool:
    real = free_float(spec) and spec.dtype_name != "complex64"
    return spec.kind == "boxes" and real and bool(spec.shape) and spec.shape[-1] == 4


def scores_of(seed: Seed, boxes: str) -> list[str]:
    """The score inputs with one score a box: those whose shape is that of `boxes` without the last axis."""
    shape = seed.inputs[boxes].shape[:-1]
    return [name for name, spec in seed.inputs.items() if spec.kind == "scores" and free(spec) and spec.shape == shape]


class CopyParams(OnInput):
    key: Key  # says which box is copied, and over which others
    count: Annotated[int, Field(ge=1, le=4096)]
    scores: Name | None = None  # where given, the copies get the score of the original too


def picked(params: CopyParams, boxes: int) -> tuple[int, Tensor]:
    """The index of the original among `boxes` ≥ 1 boxes, and the indices of the copies, none of them the original's."""
    order = distinct(draws(params.key, params.count + 1), boxes)
    return int(order[0]), torch.from_numpy(order[1:])


def equal_scores(seed: Seed, sample: Mapping[str, Tensor], params: CopyParams) -> Sample:
    """The scores in which the copies have the score of the original; nothing where the parameters name no scores."""
    if params.scores is None:
        return {}
    if params.scores not in scores_of(seed, params.input):
        raise InputError(f"{params.scores!r} holds no scores of the boxes in {params.input!r}")
    scores = copy_of(sample[params.scores])
    if scores.numel():
        flat = scores.reshape(-1)
        original, copies = picked(params, flat.numel())
        flat[copies] = flat[original].clone()
    return {params.scores: scores}


def maybe_scores(seed: Seed, name: str, rng: random.Random) -> str | None:
    return rng.choice([None, *scores_of(seed, name)])


C = TypeVar("C", bound=CopyParams)


class BoxCopies(InputMutator[C]):
    """Copies a box; its scores stay, or become equal too."""

    def suits(self, spec: InputSpec) -> bool:
        return is_boxes(spec)

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: C) -> Sample:
        return {**super().change(seed, sample, params), **equal_scores(seed, sample, params)}


@register
class BoxDuplicates(BoxCopies[CopyParams]):
    """Copies a box over others."""

    name = "box_duplicates"
    params_type = CopyParams

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> CopyParams:
        return CopyParams(
            input=name, key=new_key(rng), count=rng.choice((1, 1, 2, 3, 8)), scores=maybe_scores(seed, name, rng)
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: CopyParams) -> Tensor:
        out = copy_of(tensor)
        if out.numel():
            flat = out.view(-1, 4)
            original, copies = picked(params, len(flat))
            flat[copies] = flat[original].clone()
        return out


class NearBoxParams(CopyParams):
    how: Literal["shift", "slide", "shrink", "ulp"]
    amount: FiniteFloat  # shift: pixels. slide, shrink: the IoU of copy and original
    snap: bool = False  # the original at whole pixels first, so that the IoU can be exact
    ulps: Ulps = 0  # x2 of the copy moved further, by so many representable numbers


@register
class NearDuplicateBoxes(BoxCopies[NearBoxParams]):
    """Copies a box, shifted by a hair or so that copy and original have an IoU at or next to a usual threshold.

    For width w: sliding by s gives the IoU (w − s) / (w + s), so s = w (1 − t) / (1 + t) for IoU t; a copy of width
    t·w at the same corner has IoU t.
    """

    name = "near_duplicate_boxes"
    params_type = NearBoxParams

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> NearBoxParams:
        how: Literal["shift", "slide", "shrink", "ulp"] = rng.choice(("shift", "slide", "shrink", "shrink", "ulp"))
        ulps = rng.choice((1, -1, 2)) if how == "ulp" else rng.choice((0, 0, 1, -1))
        return NearBoxParams(
            input=name,
            key=new_key(rng),
            count=rng.choice((1, 1, 2, 3)),
            scores=maybe_scores(seed, name, rng),
            how=how,
            amount=rng.choice((1e-6, 1e-5, 1e-4, 1e-3, -1e-3, 0.5) if how == "shift" else THRESHOLDS),
            snap=rng.random() < 0.5,
            ulps=ulps,
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: NearBoxParams) -> Tensor:
        out = copy_of(tensor)
        if out.numel() == 0:
            return out
        flat = out.view(-1, 4)
        original, copies = picked(params, len(flat))
        if params.snap:
            flat[original] = snapped(flat[original])
        x1, y1, x2, y2 = flat[original].double()
        width = x2 - x1
        if params.how == "shift":
            x1, x2 = x1 + params.amount, x2 + params.amount
        elif params.how == "slide":
            slide = width * (1 - params.amount) / (1 + params.amount)
            x1, x2 = x1 + slide, x2 + slide
        elif params.how == "shrink":
            x2 = x1 + width * params.amount
        box = torch.stack([x1, y1, x2, y2])
        copy = torch.where(torch.isfinite(box), saturated(box, out.dtype), flat[original])
        copy[2] = ulp_step(copy[2], params.ulps)
        flat[copies] = copy
        return out


def snapped(box: Tensor) -> Tensor:
    """The box (4,) with its corner at whole pixels and a width that is a multiple of 20, so that thresholds in steps
    of 0.05 cut it at whole pixels. A box that is not finite stays.
    """
    if not bool(torch.isfinite(box).all()):
        return box
    x1, y1, x2, y2 = box.double()
    left, top = x1.floor(), y1.floor()
    width = ((x2 - x1).abs() / 20).ceil().clamp(min=1) * 20
    height = (y2 - y1).abs().ceil().clamp(min=1)
    return saturated(torch.stack([left, top, left + width, top + height]), box.dtype)


class OverlapParams(CopyParams):
    part: Annotated[int, Field(ge=1, le=64)]
    whole: Annotated[int, Field(ge=2, le=64)]
    unit: Annotated[int, Field(ge=1, le=64)]  # pixels
    slid: bool  # the copies moved along, else cut off
    upright: bool  # along y, else along x
    ulps: Ulps = 0  # the end of the copies moved further, by so many representable numbers


@register
class ExactOverlaps(BoxCopies[OverlapParams]):
    """Puts a box at whole pixels, and copies of it at an IoU of exactly part / whole, or a hair beside.

    All corners and areas are whole numbers, so that the IoU has one rounding, that of its quotient. In units of length
    u along one side: [0, n] and [0, k] overlap by k / n; [0, n + k] and [n − k, 2n] by 2k / 2n.
    """

    name = "exact_overlaps"
    params_type = OverlapParams

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> OverlapParams:
        part, whole = rng.choice(_RATIOS)
        room = int(min(extent_of(seed.inputs[name]))) // (4 * whole)
        return OverlapParams(
            input=name,
            key=new_key(rng),
            count=rng.choice((1, 1, 2, 3)),
            scores=maybe_scores(seed, name, rng) if rng.random() < 0.5 else None,
            part=part,
            whole=whole,
            unit=rng.randint(1, min(max(room, 1), 64)),
            slid=rng.random() < 0.5,
            upright=rng.random() < 0.5,
            ulps=rng.choice((0, 0, 0, 0, 1, -1)),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: OverlapParams) -> Tensor:
        out = copy_of(tensor)
        flat = out.view(-1, 4)
        if not len(flat):
            return out
        original, copies = picked(params, len(flat))
        if not len(copies):  # the key names one box twice
            copies = torch.tensor([(original + 1) % len(flat)])
        if len(flat) < 2 or not bool(torch.isfinite(flat[original]).all()):
            return out
        x, y = flat[original, :2].double().round().tolist()
        across = max(float((flat[original, 3 - params.upright] - flat[original, 1 - params.upright]).abs().ceil()), 1.0)
        n, k, u = params.whole, min(params.part, params.whole), params.unit
        one, other = ((0, n + k), (n - k, 2 * n)) if params.slid else ((0, n), (0, k))
        both = [(x, y + u * a, x + across, y + u * b) for a, b in (one, other)]
        if not params.upright:
            both = [(x + u * a, y, x + u * b, y + across) for a, b in (one, other)]
        flat[original], copy = saturated(torch.tensor(both, dtype=torch.float64), out.dtype)
        end = 3 if params.upright else 2
        copy[end] = ulp_step(copy[end], params.ulps)
        flat[copies] = copy
        return out


#: IoU at which detectors, proposals and evaluations decide, as quotients of small numbers.
_RATIOS = ((1, 2), (1, 2), (1, 2), (1, 2), (1, 4), (3, 4), (3, 5), (7, 10), (3, 10), (2, 5), (9, 10), (9, 20), (1, 3))


Degenerate = Literal["point", "line", "inverted", "huge", "outside", "tiny", "negative", "everything"]
DEGENERATE: tuple[Degenerate, ...] = ("point", "line", "inverted", "huge", "outside", "tiny", "negative", "everything")


class DegenerateParams(OnInput):
    how: Degenerate
    key: Key
    count: Annotated[int, Field(ge=1, le=4096)]


@register
class DegenerateBoxes(InputMutator[DegenerateParams]):
    """Makes boxes without area, inverted, huge, outside the image, or as large as it."""

    name = "degenerate_boxes"
    params_type = DegenerateParams

    def suits(self, spec: InputSpec) -> bool:
        return is_boxes(spec)

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> DegenerateParams:
        return DegenerateParams(
            input=name, how=rng.choice(DEGENERATE), key=new_key(rng), count=rng.choice((1, 1, 2, 3, 8, 64))
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: DegenerateParams) -> Tensor:
        out = copy_of(tensor)
        if out.numel():
            flat = out.view(-1, 4)
            at = torch.from_numpy(distinct(draws(params.key, params.count), len(flat)))
            before = flat[at].double()
            after = degenerate(before, params.how, extent_of(spec))
            flat[at] = torch.where(torch.isfinite(before), saturated(after, out.dtype), flat[at])
        return out


def extent_of(spec: InputSpec) -> tuple[float, float]:
    """Width and height of the image that the boxes lie in, in pixels; base inputs know the same defaults."""
    low, high = spec.range or (0.0, 320.0)
    return spec.extent or (high - low, high - low)


def degenerate(boxes: Tensor, how: Degenerate, extent: tuple[float, float]) -> Tensor:
    """`boxes` (n, 4), float64, spoilt in the way that `how` says; `extent` is the image's [width, height] in pixels."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    width, height = extent
    full = torch.ones_like(x1)
    columns: dict[Degenerate, tuple[Tensor, Tensor, Tensor, Tensor]] = {
        "point": (x1, y1, x1, y1),
        "line": (x1, y1, x2, y1),
        "inverted": (x2, y2, x1, y1),
        "huge": (x1 - 1e6 * width, y1 - 1e6 * height, x2 + 1e6 * width, y2 + 1e6 * height),
        "outside": (x1 + 2 * width, y1, x2 + 2 * width, y2),
        "tiny": (x1, y1, x1 + 1e-3, y1 + 1e-3),
        "negative": (x1 - 2 * width, y1 - 2 * height, x2 - 2 * width, y2 - 2 * height),
        "everything": (0 * full, 0 * full, width * full, height * full),
    }
    return torch.stack(columns[how], -1)
