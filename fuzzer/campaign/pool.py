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
    """Starts and ends the sessions of lanes. `pump` never blocks.

    Lanes stand in a queue. The first is served first, what room it leaves goes to the next. One whose slice of time is
    over goes to the end of the queue, and its processes make room.
    """

    def __init__(self, lanes: Sequence[Lane], most: int) -> None:
        self._queue = list(lanes)
        self._most = most

    @property
    def crowded(self) -> bool:
        """Whether a session waits for room."""
        return self._live() >= self._most and any(lane.wanted() for lane in self._queue)

    def pump(self) -> list[Session]:
        """Look after preparations and start what there is room for; gives the sessions whose preparation just ended."""
        preparing = [s for lane in self._queue for s in lane.sessions if s.state is State.PREPARING]
        ended = [session for session in preparing if session.prepare_poll() is not State.PREPARING]
        busy = len(preparing) - len(ended)
        for lane in self._queue:
            if lane.finished:
                lane.close()
        waiting = [lane for lane in self._queue if not lane.finished]
        for lane in waiting:
            for session in lane.wanted():
                if lane.awaits_first:
                    return ended
                if self._live() >= self._most and not (lane is waiting[0] and self._make_room_for(lane)):
                    return ended
                if busy >= AT_A_TIME:
                    return ended
                session.prepare_begin()
                busy += 1
        return ended

    def rest(self, lane: Lane) -> None:
        """End the processes of `lane` so that what waits can run; it comes back when the others have had their turn."""
        self._queue.remove(lane)
        self._queue.append(lane)
        lane.close()

    def _make_room_for(self, first: Lane) -> bool:
        """Let another lane's processes go, or those of targets that have run everything; False where there are none.

        Only where `first` cannot run otherwise: it lacks its reference, its oracle, or any target.
        """
        targets = [t for t in first.targets if t.session is not None and t.session.pid is not None]
        idle = [target for target in targets if first.done(target)]
        for target in idle:
            if target.session is not None:
                target.session.close()
        if idle:
            return True
        lacking = [s for s in (first.reference, first.oracle) if s.state is State.IDLE]
        if targets and not lacking:
            return False
        for lane in reversed(self._queue):
            if lane is not first and any(session.pid is not None for session in lane.sessions):
                lane.close()
                return True
        return False

    def _live(self) -> int:
        return sum(session.pid is not None for lane in self._queue for session in lane.sessions)
