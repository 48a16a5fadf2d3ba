"""Decisions by largest score: the part that classification, segmentation and tokens share.

A decision is the index of the largest score along the class dimension (the first of equal ones). A row that holds a
NaN has none. A flip is a near-tie where the margin it hangs on, on the side where that is larger, is within the
judge's threshold in noise floors. The floor of a margin is what perturbed runs move it by, over their amplitude; at
least the median of that over all scores, so that a lucky row cannot make a false alarm; plus one ulp of the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.verify.judge import THRESHOLD
from fuzzer.verify.tasks.base import Evidence, NoAnswer, blame_of
from fuzzer.verify.ulp import FORMATS, ulp
from fuzzer.verify.verdict import Blame

#: In place of an index: the row has a NaN; the position is masked out.
UNDECIDED, MASKED = -1, -2


@dataclass(frozen=True)
class Decisions:
    """`labels` int64 [...]; `scores` float64 [..., classes], None where the model itself answers with indices."""

    path: str
    labels: Tensor
    scores: Tensor | None = None
    dtype: torch.dtype = torch.float64

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the labels, then the number of classes; 1 for indices, so that they are never compared with scores."""
        return (*self.labels.shape, 1 if self.scores is None else self.scores.shape[-1])


@dataclass(frozen=True)
class Flips:
    """Where two sides decide otherwise. All masks are bool in the shape of the labels.

    `floors`: the largest margin of a flip in noise floors, None where it could not be measured. The margins are those
    of the flip with the widest one, or, without flips, the narrowest top-1 minus top-2; None without scores.
    """

    flipped: Tensor
    near: Tensor
    decided: Tensor
    floors: float | None
    margin_reference: float | None
    margin_target: float | None
    blame: Blame

    @property
    def count(self) -> int:
        return int(self.flipped.sum())

    @property
    def real(self) -> int:
        """Flips that are no near-ties."""
        return int((self.flipped & ~self.near).sum())

    @property
    def elements(self) -> int:
        return int(self.decided.sum())

    def metrics(self) -> dict[str, float | int | str]:
        """The margins that are known."""
        known = {
            "margin_reference": self.margin_reference,
            "margin_target": self.margin_target,
            "margin_floors": self.floors,
        }
        return {name: value for name, value in known.items() if value is not None}

    def words(self) -> str:
        """What kind of flips these are: the end of a sentence."""
        margin = "" if self.floors is None else f", margin {self.floors:.2g} floors"
        if self.real == 0:
            return f"a near-tie{margin}" if self.count == 1 else f"near-ties{margin} at most"
        some = f"{self.count - self.real} of them near-ties, " if self.real < self.count else ""
        sides = {
            Blame.TARGET: "the reference decides as float64 does",
            Blame.REFERENCE: "the target decides as float64 does",
            Blame.BOTH: "float64 decides otherwise than either side, or now with one and now with the other",
        }
        return some + sides.get(self.blame, "no float64 answer to judge by") + margin


def decide(path: str, scores: Tensor, dtype: torch.dtype) -> Decisions:
    """Decisions along the last dimension of `scores`, float64 [..., classes]. Raises NoAnswer below two classes."""
    if scores.dim() == 0 or scores.shape[-1] < 2:
        raise NoAnswer(f"the output {path} of shape {tuple(scores.shape)} has no two classes to decide between")
    labels = torch.where(scores.isnan().any(-1), UNDECIDED, scores.argmax(-1))
    return Decisions(path, labels, scores, dtype)


def flips(reference: Decisions, target: Decisions, evidence: Evidence[Decisions]) -> Flips:
    """Compare decisions of one shape."""
    r, t = reference.labels, target.labels
    flipped = r != t
    decided = (torch.maximum(r, t) >= 0) | flipped
    near, floors = torch.zeros_like(flipped), None
    if bool(flipped.any()) and evidence.draws:
        near[flipped], floors = _near_ties(reference, target, flipped, evidence)
    margins = _margins(reference, target, flipped)
    return Flips(flipped, near, decided, floors, *margins, _blame(reference, target, flipped & ~near, evidence.truth))


def gaps(decisions: Decisions, rows: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Score of class `first` minus that of `second` in the rows of a mask: float64 [rows]. Equal infinities: 0."""
    assert decisions.scores is not None
    scores = decisions.scores[rows]
    a, b = (scores.gather(-1, label.unsqueeze(-1)).squeeze(-1) for label in (first, second))
    return torch.where(a == b, 0.0, a - b)


def _near_ties(
    reference: Decisions, target: Decisions, flipped: Tensor, evidence: Evidence[Decisions]
) -> tuple[Tensor, float | None]:
    """Which flips are near-ties: bool [flips]; and the widest margin in floors."""
    plain = evidence.plain or reference
    draws = evidence.draws
    turned = torch.stack([draw.labels != plain.labels for draw in draws]).any(0)[flipped]
    a, b = reference.labels[flipped], target.labels[flipped]
    seen = (a >= 0) & (b >= 0)
    if any(side.scores is None for side in (reference, target, plain, *draws)):
        return turned, None
    a, b = a.clamp(min=0), b.clamp(min=0)
    margin = torch.maximum(gaps(reference, flipped, a, b).abs(), gaps(target, flipped, a, b).abs())
    floors = margin / _floor(reference, plain, draws, flipped, a, b)
    near = torch.where(seen, floors <= THRESHOLD, turned)
    return near, float(floors[seen].max()) if bool(seen.any()) else None


def _floor(
    reference: Decisions, plain: Decisions, draws: list[Decisions], flipped: Tensor, a: Tensor, b: Tensor
) -> Tensor:
    assert reference.scores is not None
    assert plain.scores is not None
    base = gaps(plain, flipped, a, b)
    moved, anywhere = torch.zeros_like(base), torch.zeros_like(plain.scores)
    for draw in draws:
        assert draw.scores is not None
        moved = torch.maximum(moved, _finite((gaps(draw, flipped, a, b) - base).abs()))
        anywhere = torch.maximum(anywhere, _finite((draw.scores - plain.scores).abs()))
    floor = moved.clamp(min=float(anywhere.median())) / THRESHOLD
    dtype = reference.dtype if reference.dtype in FORMATS else torch.float64
    largest = reference.scores[flipped].abs().gather(-1, torch.stack([a, b], -1)).amax(-1)
    return floor + ulp(_finite(largest), dtype)


def _finite(values: Tensor) -> Tensor:
    return torch.where(values.isfinite(), values, 0.0)


def _margins(reference: Decisions, target: Decisions, flipped: Tensor) -> tuple[float | None, float | None]:
    if reference.scores is None or target.scores is None:
        return None, None
    seen = flipped & (reference.labels >= 0) & (target.labels >= 0)
    if bool(seen.any()):
        a, b = reference.labels[seen], target.labels[seen]
        r, t = gaps(reference, seen, a, b), gaps(target, seen, b, a)
        at = int(torch.maximum(r, t).argmax())
        return float(r[at]), float(t[at])
    return _narrowest(reference), _narrowest(target)


def _narrowest(side: Decisions) -> float | None:
    assert side.scores is not None
    decided = side.labels >= 0
    if not bool(decided.any()):
        return None
    label = side.labels.clamp(min=0).unsqueeze(-1)
    best = side.scores.gather(-1, label).squeeze(-1)
    second = side.scores.scatter(-1, label, -math.inf).amax(-1)  # five times as fast as topk
    return float(torch.where(best == second, 0.0, best - second)[decided].min())


def _blame(reference: Decisions, target: Decisions, real: Tensor, truth: Decisions | None) -> Blame:
    if not bool(real.any()):
        return Blame.NEITHER
    if truth is None:
        return Blame.UNKNOWN
    y = truth.labels[real]
    return blame_of(bool((target.labels[real] != y).any()), bool((reference.labels[real] != y).any()))
