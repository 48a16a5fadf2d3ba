"""Lists whose entries only stand at other places, or were kept otherwise, as happens under random rounding.

One box that is kept or not moves all boxes behind it, so that leaf by leaf, place by place, nearly all of a detector's
answer differs. The task compares sets; where it says that what changed is a near-tie, an entry that some run gives
too, with its box, score and label, is no wrong value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.flips import flat_rows
from fuzzer.verify.noise import MOST_ROWS, OracleAnswer, is_float
from fuzzer.verify.verdict import Blame, Difference, Kind

#: What may differ where entries stand at other places.
_MOVABLE = (Kind.VALUE, Kind.NONFINITE, Kind.INTEGER)
#: Answers this near, relative to the largest of the leaf, are one where random rounding leaves them where they are.
_SAME = 1e-6


def excuse_rearranged(
    differences: Sequence[Difference],
    lists: Sequence[Sequence[str]],
    target: Leaves,
    runs: Sequence[OracleAnswer],
    threshold: float,
) -> list[Difference]:
    """The differences, those of rearranged `lists` as near-ties that blame nobody.

    `lists`: the paths of leaves whose rows belong together; `runs` what the oracle answered, the narrow one first;
    `threshold` in noise floors.
    """
    excused = {path for paths in lists if _all_known(paths, target, runs, threshold) for path in paths}
    return [
        replace(difference, near_tie=True, blame=Blame.NEITHER)
        if difference.path in excused and difference.kind in _MOVABLE
        else difference
        for difference in differences
    ]


def _all_known(paths: Sequence[str], target: Leaves, runs: Sequence[OracleAnswer], threshold: float) -> bool:
    """Whether each entry of the target is one of some run's, or came in at the end for one that went; and numbers that
    fall from entry to entry, as scores do, still fall.
    """
    here = _entries(paths, target)
    plain = _entries(paths, runs[0].plain)
    if here is None or plain is None or not len(here[0]) or not len(plain[0]):
        return False
    narrow = [found for draw in runs[0].draws if (found := _entries(paths, draw)) is not None]
    every = [found for run in runs for side in (run.plain, *run.draws) if (found := _entries(paths, side)) is not None]
    noise = [threshold * moved for moved in _noise(plain, narrow)]
    near = [moved[_apart(here, plain).argmin(1)] for moved in noise]
    copies = torch.stack([_same(here, run, near).sum(1) for run in every]).amax(0)
    known = copies > 0
    if bool((_same(here, here, near).sum(1) > copies)[known].any()):  # one entry more often than in any run
        return False
    falling = [k for k, path in enumerate(paths) if is_float(target[path]) and _falls(plain[k], float(noise[k].max()))]
    if not all(_falls(here[k], float(near[k].max())) for k in falling):
        return False
    gone = _left_over(_same(plain, here, noise))
    return _came_in(known, gone, len(plain[0])) and (bool(known.all()) or bool(falling))


def _came_in(known: Tensor, gone: int, length: int) -> bool:
    """Whether entries that no run gives stand at the end alone, of a list as long as before, no more than have gone.

    A list is cut at a length: where one entry is suppressed before the cut, one that nobody has seen comes in.
    """
    strangers = int((~known).sum())
    return not strangers or (
        len(known) == length and strangers <= gone and not bool(known[len(known) - strangers :].any())
    )


def _left_over(alike: Tensor) -> int:
    """How many rows of a bool matrix find no column of their own, each taking the first that is free."""
    free = torch.ones(alike.shape[1], dtype=torch.bool)
    left = 0
    for row in alike:
        candidates = (row & free).nonzero()
        if len(candidates):
            free[candidates[0]] = False
        else:
            left += 1
    return left


def _same(here: Sequence[Tensor], there: Sequence[Tensor], near: Sequence[Tensor]) -> Tensor:
    """Which entries are alike in all leaves, bool [entries here, entries there]; `near` is for those here."""
    if any(a.shape[1] != b.shape[1] for a, b in zip(here, there, strict=True)) or not len(there[0]):
        return torch.zeros(len(here[0]), len(there[0]), dtype=torch.bool)
    alike = [torch.cdist(a, b, p=torch.inf) <= n[:, None] for a, b, n in zip(here, there, near, strict=True)]
    return torch.stack(alike).all(0)


def _entries(paths: Sequence[str], leaves: Leaves) -> list[Tensor] | None:
    """The leaves as float64 [rows, numbers], all of as many rows; None where that is not so.

    NaN and infinities are alike among themselves and far from all else.
    """
    found = []
    for path in paths:
        leaf = leaves.get(path)
        if not isinstance(leaf, Tensor) or leaf.is_complex() or leaf.dim() not in (1, 2) or len(leaf) > MOST_ROWS:
            return None
        found.append(flat_rows(leaf.detach().to("cpu", torch.float64)))
    return found if found and len({len(rows) for rows in found}) == 1 else None


def _apart(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """The distance of each entry of `a` from each of `b`, each leaf in units of its own largest value."""
    sizes = [_largest(y) for y in b]
    return torch.stack([torch.cdist(x, y, p=torch.inf) / s for x, y, s in zip(a, b, sizes, strict=True)]).amax(0)


def _noise(plain: Sequence[Tensor], draws: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """How far each entry's numbers move in a run, leaf by leaf [rows]: to the run's nearest entry, both ways nearest.

    At least the leaf's median, and what random rounding cannot move at `_SAME` of the leaf's largest value.
    """
    moved = [torch.zeros(len(rows), dtype=torch.float64) for rows in plain]
    for draw in draws:
        if not len(draw[0]):
            continue
        apart = _apart(plain, draw)
        there, back = apart.argmin(1), apart.argmin(0)
        mutual = back[there] == torch.arange(len(there))
        for k, (p, d) in enumerate(zip(plain, draw, strict=True)):
            gap = (p - d[there]).abs().amax(1)
            moved[k] = torch.where(mutual & (gap < 1e199), torch.maximum(moved[k], gap), moved[k])
    return [m.clamp(min=max(float(m.median()), _SAME * _largest(p))) for m, p in zip(moved, plain, strict=True)]


def _largest(rows: Tensor) -> float:
    finite = rows[rows.abs() < 1e199].abs()
    return max(float(finite.max()), torch.finfo(torch.float32).tiny) if finite.numel() else 1.0


def _falls(rows: Tensor, near: float) -> bool:
    """Whether a leaf has one number an entry, which falls or stays from each to the next, within `near`."""
    return rows.shape[1] == 1 and bool((rows[1:, 0] - rows[:-1, 0] <= near).all())
