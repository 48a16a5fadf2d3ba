"""Embedding: does each vector still point the same way?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import (
    Evidence,
    NoAnswer,
    TaskKind,
    blame_of,
    count,
    find_leaf,
    not_run,
    register,
    values,
)
from fuzzer.verify.tasks.over_set import mean_cosine
from fuzzer.verify.verdict import Blame, TaskVerdict

#: Rows below a cosine of 1 − this fail: an angle of 0.8 degrees, or a relative error of 1.4 %. It does not depend on
#: the scale of the vectors; float32 rounding stays near 1e-13, float16 near 1e-6, bfloat16 near 1e-5.
MOST_APART = 1e-4
#: Squares of float64 numbers add up without loss above this.
_NO_UNDERFLOW = 1e-200


@dataclass(frozen=True)
class Vectors:
    """`rows` float64 [rows, width]; `shape` that of the leaf."""

    path: str
    rows: Tensor
    shape: tuple[int, ...]


@register
class Embedding(TaskKind[Vectors]):
    """Float [..., width], width ≥ 2. Fails where the cosine of a row is below 1 − MOST_APART.

    A near-tie is here a row that perturbed runs of the reference turn as far.
    """

    name = "embedding"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Vectors:
        usual = (".pooler_output", ".embedding", ".last_hidden_state")
        path = find_leaf(outputs, leaves, ("embedding", "embeddings"), usual)
        tensor, _ = values(leaves, path)
        shape = tuple(tensor.shape)
        if not tensor.is_floating_point() or len(shape) == 0 or shape[-1] < 2:
            raise NoAnswer(f"the output {path} of shape {shape} holds no float vectors of two or more elements")
        return Vectors(path, tensor.reshape(-1, shape[-1]), shape)

    def compare(self, reference: Vectors, target: Vectors, evidence: Evidence[Vectors]) -> TaskVerdict:
        distance = cosine_distance(reference.rows, target.rows)
        known = ~distance.isnan()
        rows = int(known.sum())
        if not rows:
            return not_run("no row has a direction: none there, all zeros, or not finite on both sides")
        over = known & (distance > MOST_APART)
        metrics: dict[str, float | int | str] = {
            "rows": rows,
            "rows_apart": int(over.sum()),
            "least_cosine": 1 - float(distance[known].max()),
            "mean_cosine": 1 - float(distance[known].mean()),
            "norm_error": _norm_error(reference.rows[known], target.rows[known]),
        }
        least = f"1 − {float(distance[known].max()):.2g}"
        if not bool(over.any()):
            return TaskVerdict("pass", f"cosine ≥ {least} on {count(rows, 'row')}", rows, metrics, leaf=reference.path)
        near_tie = _turned_as_far(reference, over, distance, evidence)
        blame = Blame.NEITHER if near_tie else _blame(reference, target, over, evidence.truth)
        sentence = f"{metrics['rows_apart']} of {count(rows, 'row')} turn, cosine down to {least}"
        sentence += ": within the noise, perturbed runs turn as far" if near_tie else ""
        return TaskVerdict("fail", sentence, rows, metrics, near_tie, blame, reference.path)

    def plainly_alike(self, reference: Vectors, target: Vectors) -> bool:
        """‖a/‖a‖ − b/‖b‖‖ ≤ 2‖a − b‖/‖a‖, and the cosine is 1 less half its square; an eighth of the limit is kept."""
        a, b = reference.rows.numpy(), target.rows.numpy()
        with np.errstate(all="ignore"):
            apart, size = np.square(b - a).sum(-1), np.square(a).sum(-1)
            return bool(((2.0 * apart < MOST_APART / 8 * size) & (size > _NO_UNDERFLOW)).all())

    def over_set(self, pairs: Sequence[tuple[Vectors, Vectors]]) -> dict[str, float]:
        return mean_cosine([(r.rows, t.rows) for r, t in pairs])


def cosine_distance(a: Tensor, b: Tensor) -> Tensor:
    """1 − cos of each pair of rows: float64 [rows], 0 to 2; from ½‖a/‖a‖ − b/‖b‖‖², which cancels nothing.

    Two rows that have no direction (zeros, NaN or infinities) give NaN, one against a row that has one gives 1.
    """
    u, v = _unit(a), _unit(b)
    distance = 0.5 * (u - v).square().sum(-1)
    lost = u.isnan().any(-1).to(torch.int64) + v.isnan().any(-1).to(torch.int64)
    return torch.where(lost == 1, 1.0, torch.where(lost == 2, math.nan, distance))


def _unit(rows: Tensor) -> Tensor:
    """Rows of length 1; NaN where a row has no direction. Cannot overflow: rows are scaled by their maximum first."""
    scaled = rows / rows.abs().amax(-1, keepdim=True)
    return scaled / scaled.square().sum(-1, keepdim=True).sqrt()


def _norm_error(a: Tensor, b: Tensor) -> float:
    """The largest relative error of a row's length, over the rows of finite length other than 0."""
    p, q = a.square().sum(-1).sqrt(), b.square().sum(-1).sqrt()
    keep = p.isfinite() & q.isfinite() & (p > 0)
    return float(((q - p).abs() / p)[keep].max()) if bool(keep.any()) else 0.0


def _turned_as_far(reference: Vectors, over: Tensor, distance: Tensor, evidence: Evidence[Vectors]) -> bool:
    plain = evidence.plain or reference
    most = torch.zeros_like(distance)
    for draw in evidence.draws:
        most = torch.maximum(most, cosine_distance(plain.rows, draw.rows).nan_to_num(0.0))
    return bool((most >= distance)[over].all())


def _blame(reference: Vectors, target: Vectors, over: Tensor, truth: Vectors | None) -> Blame:
    """A side is wrong beyond a quarter of the limit: angles add up, so that one at least has half the angle, and the
    distance goes with its square."""
    if truth is None:
        return Blame.UNKNOWN
    wrong_r, wrong_t = (
        bool((cosine_distance(truth.rows, side.rows)[over] > MOST_APART / 4).any()) for side in (reference, target)
    )
    return blame_of(wrong_t, wrong_r)
