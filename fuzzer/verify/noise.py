"""How far a model's answers move under random rounding: pure functions over what the oracle measured on one input.

All tensors here are float64, in the shape of `as_real` of the leaf. Runs in which a leaf's shape changed, and elements
that are not finite in a run, tell nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from fuzzer.trees import ROOT, Leaf, Leaves
from fuzzer.verify.compare import as_real

#: Leaves with more rows than this are not matched row by row.
MOST_ROWS = 1024


@dataclass(frozen=True)
class OracleAnswer:
    """What the oracle measured on one input. `truth` is None where float64 failed, with the reason in `no_truth`.

    `narrow`: some operator may have given float16 or bfloat16. `formulas`: in the runs some formula may have stood in
    for a kernel, so that what they all do need not be rounding.
    """

    plain: Leaves
    truth: Leaves | None
    draws: list[Leaves]
    no_truth: str = ""
    narrow: bool = True
    formulas: bool = True

    @classmethod
    def from_leaves(cls, leaves: Leaves) -> OracleAnswer:
        """Sort the oracle's flat reply: `.plain…`, `.truth…`, `.draws[k]…`, `.narrow`, `.formulas`."""
        leaves = dict(leaves)
        narrow, formulas = (leaves.pop(name, True) is not False for name in (".narrow", ".formulas"))
        groups: dict[str, Leaves] = {}
        for path, leaf in leaves.items():
            head, rest = _split(path)
            groups.setdefault(head, {})[rest or ROOT] = leaf
        truth = groups.get(".truth")
        no_truth = ""
        if truth is not None and ".no_truth" in truth:
            no_truth, truth = str(truth[".no_truth"]), None
        draws = [groups[head] for head in sorted((h for h in groups if h.startswith(".draws")), key=_number)]
        return cls(groups.get(".plain", {}), truth, draws, no_truth, narrow, formulas)


def is_float(leaf: Leaf) -> bool:
    """Whether a leaf has rounding noise: a float or complex tensor, or a Python float."""
    return leaf.is_floating_point() or leaf.is_complex() if isinstance(leaf, Tensor) else isinstance(leaf, float)


def real(side: Leaves | None, path: str) -> Tensor | None:
    """A tensor or a Python float as `as_real` has it, in float64; None for anything else and where there is none."""
    leaf = None if side is None else side.get(path)
    if isinstance(leaf, float):
        return torch.tensor(leaf, dtype=torch.float64)
    return as_real(leaf).to(torch.float64) if isinstance(leaf, Tensor) else None


def noise_floor(path: str, oracle: OracleAnswer) -> Tensor | None:
    """φ of a float leaf: max over the runs of |pₖ − p|, at least its median over the leaf.

    Zeros that stay zero do not count in the median: they are more than half of a ReLU's output. Where runs keep other
    rows than the plain one, rows are matched first (`aligned`). None without a leaf.
    """
    p = real(oracle.plain, path)
    if p is None:
        return None
    moved = torch.zeros_like(p)
    for draw in aligned_draws(path, oracle):
        gap = (draw - p).abs()
        moved = torch.maximum(moved, torch.where(torch.isfinite(gap), gap, 0.0))
    finite = moved[torch.isfinite(p) & ((moved > 0) | (p != 0))]
    least = finite.median() if finite.numel() else torch.zeros((), dtype=torch.float64)
    return moved.clamp(min=float(least))


def unmeasured(path: str, oracle: OracleAnswer) -> bool:
    """Whether the plain answer is finite somewhere in a leaf and no run is: its noise is then not known."""
    p = real(oracle.plain, path)
    if p is None or not bool(torch.isfinite(p).any()):
        return False
    runs = [run for run in (real(draw, path) for draw in oracle.draws) if run is not None and run.numel()]
    return bool(runs) and not any(bool(torch.isfinite(run).any()) for run in runs)


def draws_of(path: str, oracle: OracleAnswer) -> list[Tensor]:
    """The leaf in each run in which it has the shape it has in the plain one."""
    p = real(oracle.plain, path)
    found = (real(draw, path) for draw in oracle.draws)
    return [x for x in found if x is not None and p is not None and x.shape == p.shape]


def aligned_draws(path: str, oracle: OracleAnswer) -> list[Tensor]:
    """The leaf in each run; where a run has another number of rows, its rows are those of the plain answer's places."""
    p = real(oracle.plain, path)
    found = (real(draw, path) for draw in oracle.draws)
    if p is None:
        return []
    return [x if x.shape == p.shape else aligned(p, x) for x in found if x is not None and _same_rows(p, x)]


def _same_rows(p: Tensor, x: Tensor) -> bool:
    """Whether two leaves have one shape, or differ in the number of rows alone and can be matched.

    Only rows of several numbers can, of which each tells which one it is.
    """
    if x.shape == p.shape:
        return True
    few = 0 < p.shape[0] <= MOST_ROWS and 0 < x.shape[0] <= MOST_ROWS if p.dim() > 1 and x.dim() > 1 else False
    return few and x.shape[1:] == p.shape[1:]


def aligned(p: Tensor, x: Tensor) -> Tensor:
    """The rows of `x` at the places of those of `p` that they are nearest to, both ways; NaN where there is none."""
    flat_p, flat_x = (side.reshape(side.shape[0], -1).nan_to_num(0.0, 0.0, 0.0) for side in (p, x))
    apart = torch.cdist(flat_p, flat_x, p=torch.inf)
    nearest, back = apart.argmin(1), apart.argmin(0)
    mutual = back[nearest] == torch.arange(p.shape[0])
    found = torch.full_like(p, torch.nan)
    found[mutual] = x[nearest[mutual]]
    return found


def row_noise(path: str, oracle: OracleAnswer) -> Tensor | None:
    """How far each row of a leaf moves, whatever the place that a run gives it: rows of several numbers are matched.

    float64 [rows], at least its median. The noise floor of rows that change places is the distance between them
    instead. None without rows.
    """
    p = real(oracle.plain, path)
    if p is None or p.dim() == 0 or not 0 < len(p) <= MOST_ROWS:
        return None
    moved = torch.zeros_like(p)
    for run in (real(draw, path) for draw in oracle.draws):
        if run is not None and _same_rows(p, run):
            gap = ((run if p.dim() == 1 else aligned(p, run)) - p).abs()
            moved = torch.maximum(moved, torch.where(torch.isfinite(gap), gap, 0.0))
    rows = moved.reshape(len(p), -1).amax(1)
    return rows.clamp(min=float(rows.median()))


def spread(path: str, oracle: OracleAnswer, runs: int) -> Tensor | None:
    """Largest minus smallest over the first `runs` runs. None where the shape holds in fewer than two of them.

    Unlike the distance from the plain answer it holds no bias of the formulas that the runs use in place of kernels.
    """
    found = draws_of(path, oracle)[:runs]
    if len(found) < 2:
        return None
    gap = functools.reduce(torch.maximum, found) - functools.reduce(torch.minimum, found)
    return torch.where(torch.isfinite(gap), gap, 0.0)


def growth(path: str, narrow: OracleAnswer, wide: OracleAnswer) -> Tensor | None:
    """How many times further the leaf's elements spread in `wide`, over as many runs; ∞ where `narrow` has no spread.

    Rounding noise grows with the amplitude, a decision that flips does not. None where the shape changes by itself.
    """
    runs = len(narrow.draws)
    before, after = spread(path, narrow, runs), spread(path, wide, runs)
    if before is None or after is None or before.shape != after.shape:
        return None
    return torch.where(before > 0, after / before, torch.inf)


def _split(path: str) -> tuple[str, str]:
    for head in (".plain", ".truth"):
        if path.startswith(head):
            return head, path[len(head) :]
    end = path.index("]") + 1
    return path[:end], path[end:]


def _number(head: str) -> int:
    return int(head[len(".draws[") : -1])
