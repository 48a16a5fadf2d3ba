"""The passes in their order, and a reduction from start to end without any process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fuzzer.reduce.engine import Pass, Sample, Search
from fuzzer.reduce.shape import shape_passes
from fuzzer.reduce.space import Space
from fuzzer.reduce.values import fill_passes, survivor_passes


def passes(space: Space, names: Sequence[str]) -> list[Pass]:
    """Shape first (what is left out need not be simplified), then values. `names`: the inputs, in their order.

    Candidates of one shape come one after the other, so that a backend that compiles for a shape does so once.
    """
    return [*shape_passes(space), *fill_passes(space, names), *survivor_passes(space, names)]


def reduced(
    still_fails: Callable[[Sample], bool],
    start: Sample,
    space: Space | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = float("inf"),
    most_tests: int | None = None,
) -> Sample:
    """The smallest sample found on which `still_fails` holds as it does on `start`, within the budget."""
    search = Search(start, still_fails, clock=clock, ends=clock() + budget_s, most_tests=most_tests)
    search.run(passes(space or Space(), list(start)))
    return search.best
