"""The engine of reduction: what can be changed, make as many of the changes as still fail, is it smaller.

It knows nothing of shapes, values or processes. A pass looks at the best sample so far and offers `Changes`; the engine
makes as large sets of them as keep the failure, biggest first. Each accepted sample is smaller than the one before in
one order (`fuzzer.reduce.size`), so every reduction ends; nothing is asked twice. Deterministic: time is handed in and
decides only where it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from fuzzer.reduce.size import size_of
from fuzzer.tensors import content_hash

Sample = Mapping[str, Tensor]
#: What is reduced: a sample, or a graph with its tensors.
C = TypeVar("C")


@dataclass(frozen=True)
class Changes(Generic[C]):
    """`count` changes of one sample. `apply(which)` gives the sample with those made, None where they cannot be.

    `apply` never changes a tensor in place, and gives the same for the same `which`.
    """

    count: int
    apply: Callable[[Sequence[int]], C | None]


#: Offers changes of a sample.
Pass = Callable[[Sample], Changes[Sample]]


class OutOfBudget(Exception):
    """Time or tests are spent; the best sample so far stands."""


class Search(Generic[C]):
    """The best sample so far, and the only way to a better one.

    `still_fails` is asked about candidates; `start` is taken to fail. `kept` is told each better sample, at once.
    `tried` holds the hashes of the candidates that were asked about: hand one in to go on where another search ended.
    `ends` is on `clock`'s scale, in seconds; a test that has begun is not cut short. `size` is the order in which every
    step goes down, `key` tells candidates apart.
    """

    def __init__(
        self,
        start: C,
        still_fails: Callable[[C], bool],
        *,
        clock: Callable[[], float],
        ends: float = float("inf"),
        most_tests: int | None = None,
        kept: Callable[[C], None] = lambda sample: None,
        tried: set[str] | None = None,
        size: Callable[[C], Any] = size_of,  # type: ignore[assignment]  # C is Sample where it is not given
        key: Callable[[C], str] = content_hash,  # type: ignore[assignment]
    ) -> None:
        self.best = start
        self.size = size(start)
        self._size_of, self._key = size, key
        self.tests = 0
        self._still_fails = still_fails
        self._clock = clock
        self._ends = ends
        self._most_tests = most_tests
        self._kept = kept
        self.tried = set() if tried is None else tried

    def run(self, passes: Sequence[Callable[[C], Changes[C]]]) -> bool:
        """Go through `passes` until none of them gets any further: True then, False where the budget ended it."""
        try:
            progress = True
            while progress:
                progress = False
                for offer in passes:
                    before = self.size
                    self.make(offer(self.best))
                    progress |= self.size < before
        except OutOfBudget:
            return False
        return True

    def resume(self, sample: C) -> bool:
        """Go on from a sample that another search has kept, where it is smaller and still fails."""
        self.tried.discard(self._key(sample))
        try:
            return self.attempt(sample)
        except OutOfBudget:
            return False

    def make(self, changes: Changes[C]) -> None:
        """Make as many of the changes as still fail: all, then blocks of half the size, and so on down to one.

        With k changes that cannot be made among n this asks about 2·k·log2(n) times. Large blocks of the whole come
        before small ones of a part, so that a search that is cut short has made the large steps.
        """
        made: list[int] = []
        level: list[Sequence[int]] = [range(changes.count)] if changes.count else []
        while level:
            smaller: list[Sequence[int]] = []
            for block in level:
                if self.attempt(changes.apply([*made, *block])):
                    made += block
                elif len(block) > 1:
                    half = len(block) // 2
                    smaller += [block[:half], block[half:]]
            level = smaller

    def attempt(self, candidate: C | None) -> bool:
        """Take `candidate` as the best where it is smaller and still fails. Raises OutOfBudget."""
        if candidate is None:
            return False
        size = self._size_of(candidate)
        if not size < self.size:
            return False
        key = self._key(candidate)
        if key in self.tried:
            return False
        if self._clock() >= self._ends or (self._most_tests is not None and self.tests >= self._most_tests):
            raise OutOfBudget
        self.tests += 1
        fails = self._still_fails(candidate)
        self.tried.add(key)  # afterwards: a test that was interrupted is asked again
        if fails:
            self.best, self.size = candidate, size
            self._kept(candidate)
        return fails
