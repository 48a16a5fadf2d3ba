"""Several calls of one function in step: each pauses where it meets the others, and what they brought is seen together.

Layer statistics over several samples are needed where each sample runs alone (a detector's list of one image), and each
layer must be settled before any sample goes past it. The calls run in threads, but only one at a time and always in the
same order, so the result is deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

#: Called with the key of a meeting and what was brought to it, in the order of the calls.
Settle = Callable[[Hashable, list[Any]], None]


class _Abandoned(BaseException):
    """Unwinds the other calls after one of them has failed."""


class Lockstep:
    """`run(calls)` runs them; inside a call, `meet(key, value)` waits until every call still running has met.

    Calls that meet under one key are settled together, once; whoever comes under another key forms another meeting.
    """

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._here = threading.local()
        self._failure: BaseException | None = None

    def run(self, calls: Sequence[Callable[[], None]]) -> None:
        """Raises what the first failing call raised."""
        self._turns = [threading.Semaphore(0) for _ in calls]
        self._running = list(range(len(calls)))
        self._met: dict[int, tuple[Hashable, Any]] = {}
        threads = [threading.Thread(target=self._one, args=(i, call)) for i, call in enumerate(calls)]
        for thread in threads:
            thread.start()
        if self._running:
            self._turns[0].release()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def meet(self, key: Hashable, value: Any) -> None:
        i = self._here.index
        self._met[i] = (key, value)
        self._pass_on(i)
        self._wait(i)

    def _one(self, i: int, call: Callable[[], None]) -> None:
        self._here.index = i
        try:
            self._wait(i)
            call()
        except _Abandoned:
            pass
        except BaseException as error:
            if self._failure is None:
                self._failure = error
        following = [j for j in self._running if j > i]
        self._running.remove(i)
        self._hand_turn(following)

    def _pass_on(self, i: int) -> None:
        self._hand_turn([j for j in self._running if j > i])

    def _hand_turn(self, following: list[int]) -> None:
        """The turn goes to the next call; after the last one the meeting is settled and the round starts anew."""
        if not following:
            try:
                self._settle_all()
            except BaseException as error:
                if self._failure is None:
                    self._failure = error
        order = following or self._running
        if order:
            self._turns[order[0]].release()

    def _wait(self, i: int) -> None:
        self._turns[i].acquire()
        if self._failure is not None:
            raise _Abandoned

    def _settle_all(self) -> None:
        groups: dict[Hashable, list[Any]] = {}
        for i in sorted(self._met):
            key, value = self._met[i]
            groups.setdefault(key, []).append(value)
        self._met.clear()
        if self._failure is None:
            for key, values in groups.items():
                self._settle(key, values)
