"""Does a difference hang on a decision that rounding flips? Pure functions over the runs under random rounding.

`runs` hold one leaf as `real` gives it (float64), `wide` those at the amplitude of the judge's threshold. A decision
shows in the runs themselves: few answers that come again, rows that change places, integers that flip.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: The share of elements at which the target must take one of the runs' answers. With 33 runs spread evenly, chance
#: alone reaches 0.4 %.
ALTERNATIVE_SHARE = 0.1
#: A decision's answers are at most this many for each run.
FEW_ANSWERS = 1 / 4
#: In noise floors: answers closer than this are one.
SAME_ANSWER = 2.0
#: Share of the elements beyond the noise that must jump in some run.
JUMPING_SHARE = 0.5
#: Share of many unequal integers that must flip in some run; of rows that must change in some run.
FLIPPING_SHARE = 0.5


def takes_an_alternative(t: Tensor, runs: Sequence[Tensor], wide: Sequence[Tensor], at: Tensor, near: Tensor) -> bool:
    """Whether the runs give few answers at the elements `at`, and the target one of them at one in ten or more.

    Noise that has no room to grow (a layer norm of values one ULP apart) does not grow either, but its answers are
    spread out evenly, and two of them hardly ever agree; a decision has a few answers, which come again.
    """
    if len(wide) > 1:
        answers = (_steps([run[at] for run in wide]) > near).sum(0) + 1
        if float(answers.to(torch.float64).median()) > FEW_ANSWERS * len(wide):
            return False
    found = torch.zeros_like(at)
    for run in (*runs, *wide):
        if run.shape == t.shape:
            found |= (t - run).abs() <= near
    return float(found[at].to(torch.float64).mean()) >= ALTERNATIVE_SHARE


def jumps(t: Tensor, wide: Sequence[Tensor], floor: Tensor, threshold: float) -> Tensor:
    """Where the wide runs fall apart into answers further from each other than noise, and `t` is near one of them.

    Near is `threshold` floors. Noise alone fills the space between its answers (24 runs over some twelve floors), but
    for its outermost one, so that at least two runs must lie on either side of the gap. All of one shape.
    """
    if len(wide) < 4:
        return torch.zeros_like(t, dtype=torch.bool)
    apart = (_steps(wide)[1:-1] > SAME_ANSWER * floor).any(0)
    return apart & (torch.stack([(t - run).abs() for run in wide]) <= threshold * floor).any(0)


def rows_move(t: Tensor, p: Tensor, runs: Sequence[Tensor], over: Tensor, near: Tensor) -> bool:
    """Whether rows only stand at other places, or others were kept, as it happens in the runs too.

    Each of the target's rows with an element in `over`, or further from `p`, the plain answer, than `near` (a tolerance
    for each row), is within `near` of a row of some run; and in some run the rows at these places change as well, or
    their number does. Half of the places are enough where the plain rows of the others stand at another of these places
    in some run: one row that wanders among fifty alike need not reach each place in 32 runs.
    """
    rows = over.reshape(len(over), -1).any(1) | ((flat_rows(t) - flat_rows(p)).abs().amax(1) > near)
    here = torch.zeros(int(rows.sum()), dtype=torch.bool)
    moves, wanders = torch.zeros_like(here), torch.zeros_like(here)
    for run in (p, *runs):
        if run.dim() != t.dim() or run.shape[1:] != t.shape[1:]:
            continue
        apart = torch.cdist(flat_rows(t[rows]), flat_rows(run), p=torch.inf)
        here |= (apart <= near[rows, None]).any(1)
        if run.shape != p.shape:
            moves |= True
        elif len(run) == len(rows):
            moves |= flat_rows(run[rows] - p[rows]).abs().amax(1) > near[rows]
            wanders |= _elsewhere(p[rows], run[rows], near[rows])
    return bool((here & (moves | wanders)).all()) and float(moves.double().mean()) >= FLIPPING_SHARE


def _elsewhere(p: Tensor, run: Tensor, near: Tensor) -> Tensor:
    """For each row of `p`, whether the run has it at a place where `p` has another one."""
    there = torch.cdist(flat_rows(p), flat_rows(run), p=torch.inf) <= near[:, None]
    other = torch.cdist(flat_rows(p), flat_rows(p), p=torch.inf) > near[:, None]
    return (there & other).any(1)


def integers_flip(target: Tensor, plain: Tensor | None, runs: Sequence[Tensor | None], unequal: Tensor) -> bool:
    """Whether the elements in `unequal` are decided otherwise in some run.

    All of them; or half, where the values of the others stand elsewhere in some run: what flips in one run of ten may
    well not flip in 24. A run in which the leaf has another shape flips all.
    """
    if plain is None or plain.shape != unequal.shape:
        return False
    flipped = torch.zeros_like(unequal)
    for run in runs:
        flipped |= (run != plain) if run is not None and run.shape == plain.shape else True
    share = float(flipped[unequal].to(torch.float64).mean())
    seen = torch.cat([run.reshape(-1) for run in (plain, *runs) if run is not None])
    return share == 1.0 or (share >= FLIPPING_SHARE and bool(torch.isin(target[unequal & ~flipped], seen).all()))


def _steps(runs: Sequence[Tensor]) -> Tensor:
    """Element by element, the gaps between the runs' answers in their order."""
    return torch.stack(list(runs)).sort(0).values.diff(dim=0)


def flat_rows(value: Tensor) -> Tensor:
    """One row of numbers for each row; NaN and infinities are alike among themselves and far from all else."""
    rows = value.flatten(1) if value.dim() > 1 else value[:, None]  # `reshape` cannot where there are no rows
    return rows.nan_to_num(1e200, 2e200, -2e200)
