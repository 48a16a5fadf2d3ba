"""What of a seed will run here, found out before a budget is spent: each backend prepares it and answers once.

The same steps as a campaign's first ones, by the same code: reference and oracle, the self-test of the comparison, then
each target. Every one of them has a process with a deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fuzzer.backends.process import Ending
from fuzzer.backends.session import Session, State, Where
from fuzzer.campaign.lane import Lane
from fuzzer.campaign.plan import Options, make_plan, run_seed
from fuzzer.errors import XbfuzzError
from fuzzer.seeds import Seed

#: Seconds between two looks at a preparation.
_LOOK_S = 0.05


@dataclass(frozen=True)
class BackendCheck:
    """What became of one backend.

    `status`: ok, unavailable, unsupported (it refuses the model), crashes, too-slow, raises (on the first base input),
    not-tried (the seed was given up before). `evidence` is the backend's own, of what it ran.
    """

    backend: str
    role: str  # reference, oracle, target
    status: str
    reason: str = ""
    prepare_s: float = 0.0
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SeedCheck:
    """What became of one seed: `fuzzable` where its comparison would notice faults and a target answers."""

    seed: str
    source: str
    fuzzable: bool
    reason: str
    backends: list[BackendCheck]
    caught: list[str] = field(default_factory=list)  # planted faults that the comparison noticed
    missed: list[str] = field(default_factory=list)
    vacuous: dict[str, str] = field(default_factory=dict)  # outputs that tell nothing, with the reason
    no_module: str = ""  # why an ONNX file has no PyTorch module as its reference

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(
    seed: Seed,
    where: Where,
    deadline_s: float,
    *,
    backends: tuple[str, ...] = (),
    say: Callable[[str, float], None] = lambda what, seconds: None,
    clock: Callable[[], float] = time.monotonic,
) -> SeedCheck:
    """Prepare and run `seed` on its backends, or on `backends`. Never raises for what is wrong with the model.

    A preparation may take `deadline_s` seconds of CPU time, or less where the seed says so. `say` is told what is going
    on, with the seconds since it began. Raises SpecError or InputError where the seed names what there is not.
    """
    limited = seed.model_copy(update={"prepare_deadline_s": min(seed.prepare_deadline_s, deadline_s)}).at(seed.base)
    (planned,) = make_plan([limited], Options(out=Path(), backends=backends)).seeds
    try:
        lane = Lane(planned, where, 0, [])
    except XbfuzzError as error:  # inputs that cannot be made
        return SeedCheck(seed.name, seed.model.source, False, str(error), [])
    steps = _Steps(lane, deadline_s, say, clock)
    try:
        return steps.check()
    finally:
        lane.close()


class _Steps:
    def __init__(
        self, lane: Lane, deadline_s: float, say: Callable[[str, float], None], clock: Callable[[], float]
    ) -> None:
        self._lane, self._deadline_s, self._say, self._clock = lane, deadline_s, say, clock

    def check(self) -> SeedCheck:
        lane = self._lane
        sides = [] if lane.failed else self._sides()
        targets = [self._target(number) for number in range(len(lane.targets))]
        test, vacuity = lane.self_test, lane.vacuity
        reason = lane.failed
        if not reason and not any(each.status == "ok" for each in targets):
            reason = "none of its targets answers here"
        return SeedCheck(
            lane.name,
            lane.seed.model.source,
            not reason,
            reason,
            [*sides, *targets],
            caught=test.caught if test else [],
            missed=test.missed if test else [],
            vacuous=vacuity.reasons if vacuity else {},
            no_module=lane.no_module,
        )

    def _sides(self) -> list[BackendCheck]:
        """Reference and oracle, and the proof that the comparison would notice a fault."""
        lane = self._lane
        self._prepare(lane.reference, lane.oracle)
        if lane.reference.state is State.REFUSED and lane.compare_with_itself():
            self._prepare(lane.reference)
        if lane.reference.state is State.READY:
            self._timed("the self-test of the comparison", lane.vet)
        else:
            lane.failed = f"the reference {lane.reference.backend} cannot be prepared: {lane.reference.reason}"
        return [self._told(lane.reference, "reference"), self._told(lane.oracle, "oracle")]

    def _target(self, number: int) -> BackendCheck:
        lane, target = self._lane, self._lane.targets[number]
        if target.session is None:
            return BackendCheck(target.spec, "target", "unavailable", target.unavailable)
        if lane.failed:
            return BackendCheck(target.spec, "target", "not-tried", "its seed cannot be fuzzed")
        session = target.session
        self._prepare(session)
        if session.state is not State.READY:
            return self._told(session, "target")
        answer = session.run(lane.example, rng_seed=run_seed(0, 0))
        told = self._told(session, "target", "" if answer.leaves is not None else f"on a base input: {answer.error}")
        session.close()  # the memory is for the next one
        return told

    def _prepare(self, *sessions: Session) -> None:
        """Prepare all of them at once and wait."""
        names = " and ".join(session.backend for session in sessions)
        began = self._clock()
        for session in sessions:
            session.prepare_begin()
        while any(session.prepare_poll() is State.PREPARING for session in sessions):
            self._say(names, self._clock() - began)
            time.sleep(_LOOK_S)

    def _timed(self, what: str, call: Callable[[], None]) -> None:
        self._say(what, 0.0)
        call()

    def _told(self, session: Session, role: str, raised: str = "") -> BackendCheck:
        status, reason = "ok", raised
        if raised:
            status = "raises"
        elif session.state is State.REFUSED:
            status, reason = "unsupported", session.reason
        elif session.state is State.DEAD:
            status, reason = "crashes", session.reason
            if session.death is not None and session.death.kind is Ending.HANG:
                status = "too-slow"
                reason = f"not prepared within {self._deadline_s:.0f} s of CPU time; --deadline gives it longer"
        return BackendCheck(session.backend, role, status, reason, round(session.prepare_s, 3), session.evidence)
