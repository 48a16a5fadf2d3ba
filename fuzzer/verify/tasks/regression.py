"""Regression: how far are the numbers off, measured by how much they vary?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import (
    Evidence,
    TaskKind,
    blame_of,
    count,
    find_leaf,
    not_run,
    register,
    values,
)
from fuzzer.verify.tasks.over_set import errors
from fuzzer.verify.verdict import Blame, TaskVerdict

#: Errors beyond this share of the spread fail: a thousandth of a standard deviation, far over float32's rounding.
MOST_APART = 1e-3


@dataclass(frozen=True)
class Numbers:
    """`values` float64, in the leaf's shape."""

    path: str
    values: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@register
class Regression(TaskKind[Numbers]):
    """Numbers of any shape. Fails where one is off by more than MOST_APART of their spread, or finite on one side only.

    A near-tie is here an error that perturbed runs of the reference make too, at the same places.
    """

    name = "regression"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Numbers:
        path = find_leaf(outputs, leaves, ("values", "value", "prediction", "predictions"))
        return Numbers(path, values(leaves, path)[0].to(torch.float64))

    def compare(self, reference: Numbers, target: Numbers, evidence: Evidence[Numbers]) -> TaskVerdict:
        r, t = reference.values, target.values
        known = ~(r.isnan() & t.isnan())
        number = int(known.sum())
        if not number:
            return not_run("no number to compare: none there, or NaN on both sides")
        unit = spread(r)
        if unit == 0 and not bool(error(r, t, 1.0).any()):
            return not_run("all numbers are 0, which says nothing of their spread")
        off = error(r, t, unit)
        over = off > MOST_APART
        metrics: dict[str, float | int | str] = {
            "numbers": number,
            "off": int(over.sum()),
            "spread": unit,
            "max_error": float(off.max()) * unit if unit else math.inf,
            "max_error_of_spread": float(off.max()),
        }
        worst = f"{float(off.max()):.2g} of their spread"
        if not bool(over.any()):
            sentence = f"{count(number, 'number')} within {worst}"
            return TaskVerdict("pass", sentence, number, metrics, leaf=reference.path)
        near_tie = _moved_as_far(reference, over, off, unit, evidence)
        blame = Blame.NEITHER if near_tie else _blame(reference, target, over, unit, evidence.truth)
        sentence = f"{metrics['off']} of {count(number, 'number')} off by up to {worst}"
        sentence += ": within the noise, perturbed runs move as far" if near_tie else ""
        return TaskVerdict("fail", sentence, number, metrics, near_tie, blame, reference.path)

    def over_set(self, pairs: Sequence[tuple[Numbers, Numbers]]) -> dict[str, float]:
        return errors([(r.values, t.values) for r, t in pairs])


def spread(numbers: Tensor) -> float:
    """The population standard deviation of the finite numbers; where that is 0, their largest magnitude."""
    finite = numbers[numbers.isfinite()]
    if not finite.numel():
        return 0.0
    largest = float(finite.abs().max())
    if largest == 0:
        return 0.0
    scaled = finite / largest  # so that squares neither overflow nor vanish
    deviation = float(scaled.std(correction=0)) if bool((finite != finite[0]).any()) else 0.0
    return largest * deviation or largest


def error(reference: Tensor, target: Tensor, unit: float) -> Tensor:
    """|t − r| / unit; 0 where both are equal or NaN, infinite where one only is finite. Float64."""
    same = (reference == target) | (reference.isnan() & target.isnan())
    return torch.where(same, 0.0, ((target - reference).abs() / unit).nan_to_num(math.inf, math.inf))


def _moved_as_far(reference: Numbers, over: Tensor, off: Tensor, unit: float, evidence: Evidence[Numbers]) -> bool:
    plain = (evidence.plain or reference).values
    most = torch.zeros_like(off)
    for draw in evidence.draws:
        most = torch.maximum(most, error(plain, draw.values, unit))
    return bool((most >= off)[over].all())


def _blame(reference: Numbers, target: Numbers, over: Tensor, unit: float, truth: Numbers | None) -> Blame:
    """Off by more than half the limit: one side at least is, where the two are further apart than the limit."""
    if truth is None:
        return Blame.UNKNOWN
    wrong_r, wrong_t = (
        bool((error(truth.values, side.values, unit)[over] > MOST_APART / 2).any()) for side in (reference, target)
    )
    return blame_of(wrong_t, wrong_r)
