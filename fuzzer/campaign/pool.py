"""Which sessions have a process: at most so many at once, the seeds that come first first, two preparing at a time."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from fuzzer.backends.session import Session, State
from fuzzer.campaign.lane import Lane

#: What a prepared worker takes at least, in MiB, as measured with small models (Inductor's is the largest).
WORKER_MB = 900
#: Preparations at a time. More would not end sooner on two cores, and the first comparison would come later.
AT_A_TIME = 2


def most_workers() -> int:
    """How many workers this machine's free memory allows; at least a reference, an oracle, a target and a spare."""
    return max(4, int(psutil.virtual_memory().available / 2**20 * 0.8 / WORKER_MB))


class Pool:
    """Starts and ends the sessions of lanes. `pump` never blocks."""

    def __init__(self, lanes: Sequence[Lane], most: int) -> None:
        self._lanes = lanes
        self._most = most
        self._resting: set[int] = set()

    @property
    def crowded(self) -> bool:
        """Whether some lane waits for room."""
        return self._live() >= self._most and any(self._wanted(lane) for lane in self._lanes)

    def pump(self) -> list[Session]:
        """Look after preparations and start what there is room for; gives the sessions whose preparation just ended."""
        preparing = [s for lane in self._lanes for s in lane.sessions if s.state is State.PREPARING]
        ended = [session for session in preparing if session.prepare_poll() is not State.PREPARING]
        busy = len(preparing) - len(ended)
        for lane in self._lanes:
            if lane.finished:
                lane.close()
                continue
            for session in self._wanted(lane):
                if busy >= AT_A_TIME or self._live() >= self._most:
                    return ended
                session.prepare_begin()
                busy += 1
        return ended

    def make_room(self, lane: Lane) -> None:
        """Let `lane` rest so that one that waits can run; it comes back when the others have had their turn."""
        lane.close()
        self._resting.add(id(lane))
        if len(self._resting) >= sum(not one.finished for one in self._lanes):
            self._resting = {id(lane)}

    def _wanted(self, lane: Lane) -> list[Session]:
        """Sessions of a lane that should have a process and have none, references first."""
        if lane.finished or id(lane) in self._resting:
            return []
        abandoned = {id(t.session) for t in lane.targets if t.abandoned}
        return [s for s in lane.sessions if s.state is State.IDLE and id(s) not in abandoned]

    def _live(self) -> int:
        return sum(session.pid is not None for lane in self._lanes for session in lane.sessions)
