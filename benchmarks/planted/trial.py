"""One trial: a fault, a search and an RNG seed; how many executions until the fault is a finding.

Inputs come from a campaign's own stream, verdicts from a campaign's own judge, and what is found counts once it is
reproduced from a crash alone in fresh sessions, as a campaign confirms it. Faults that spare the process run in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.planted import backend, forked  # the backend registers itself
from benchmarks.planted.after import Aftermath, aftermath
from benchmarks.planted.fault import Fault, Mechanism
from benchmarks.planted.faults import CONTROLS, FAULTS
from benchmarks.planted.inside import Inside
from benchmarks.planted.scout import Scout, quick_sample
from fuzzer.backends.process import Worker
from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.campaign.lane import Lane
from fuzzer.campaign.loop import JUDGE_ONE_IN
from fuzzer.campaign.plan import Options, make_plan
from fuzzer.campaign.stream import Search
from fuzzer.crashes.crash import Crash, make_crash
from fuzzer.crashes.replay import CrashState, diagnosed_on, replay
from fuzzer.errors import XbfuzzError
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seed
from fuzzer.tensors import content_hash
from fuzzer.verify.examine import Examined, examine
from fuzzer.verify.vacuity import Vacuity
from fuzzer.verify.verdict import Blame, Outcome

SEEDS = Path(__file__).resolve().parent / "seeds"
#: Mismatches of one trial that are replayed; more would be the same fault again.
CONFIRMATIONS = 8
#: Of inputs of an arm that learns and mutates nothing, and that the fault spares, one in so many gets a verdict.
WHOLE_ONE_IN = 16


@dataclass
class Trial:
    """What came of a trial. `…_at` count executions from 1, None where it did not happen within `budget`.

    `compared`: executions that got a verdict. `missed`: those on which the fault struck and the verdict was no
    mismatch. `false`: mismatches where no fault struck and a side is blamed, `near_ties` where none is; every mismatch
    of a control is one of these, and a control runs to the end. `unconfirmed`: mismatches that did not reproduce in
    fresh sessions. `seconds`: wall time to detection, or of the whole trial. `after`: label and reduction, for trials
    that were followed so far. `failed`: why nothing ran.
    """

    fault: str
    arm: str
    number: int
    budget: int
    executions: int = 0
    compared: int = 0
    seconds: float = 0.0
    reached_at: int | None = None
    triggered_at: int | None = None
    detected_at: int | None = None
    triggered: int = 0
    missed: int = 0
    false: int = 0
    near_ties: int = 0
    unconfirmed: int = 0
    failed: str = ""
    after: Aftermath | None = None
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Trial:
        after = value.get("after")
        all_of_them = {"compared": value["executions"]}  # as it was before there were scouts
        return cls(**{**all_of_them, **value, "after": Aftermath(**after) if after else None})


def fault_named(name: str) -> Fault:
    return {**CONTROLS, **FAULTS}[name]


@functools.cache
def seed_named(name: str) -> Seed:
    """The seed in which a fault sits."""
    return load_seed(SEEDS / f"{name}.yaml")


def where_for(fault: Fault) -> Where:
    """All in this process, but for the target whose fault does not spare it."""
    if fault.mechanism not in (Mechanism.PROCESS, Mechanism.INDUCTOR):
        return Where(None, Inside)  # type: ignore[arg-type]  # what a session asks of a worker
    return Where(None, functools.partial(_start, forked.worker if fault.mechanism is Mechanism.PROCESS else Worker))


def _start(worker: Callable[..., Worker], name: str, **how: Any) -> Any:
    """A process for a planted backend, none for the reference and the oracle."""
    return worker(name, **how) if name.startswith(f"{backend.Planted.runtime}:") else Inside(name)


@functools.cache
def _vacuity(name: str) -> Vacuity | None:
    """Which leaves of a seed can tell something, by the vetting that every campaign begins with. Once a process.

    Raises XbfuzzError where the vetting fails: the benchmark would measure nothing.
    """
    lane = _lane(fault_named(name), "seeds", 0, 1)
    for session in (lane.reference, lane.oracle):
        session.prepare()
    lane.vet()
    if not lane.vetted:
        raise XbfuzzError(f"the seed of {name} fails its vetting: {lane.failed}")
    return lane.vacuity


@functools.cache
def _scout(name: str) -> Scout:
    return Scout(fault_named(name), seed_named(name))


def _lane(fault: Fault, arm: str, number: int, budget: int) -> Lane:
    plan = make_plan([seed_named(fault.name)], Options(out=Path("."), max_execs=budget))
    return Lane(plan.seeds[0], where_for(fault), number, [], Search.named(arm))


def run_trial(
    name: str, arm: str, number: int, budget: int, *, clock: Callable[[], float], follow: float = 0.0
) -> Trial:
    """Run until the fault is found, or `budget` executions. `number` is the RNG seed.

    `follow`: what is found is reduced for at most so many seconds, and labelled; 0: not at all.
    """
    fault = fault_named(name)
    trial = Trial(name, arm, number, budget)
    lane = _lane(fault, arm, number, budget)
    lane.vacuity = _vacuity(name)
    lane.vetted = True
    target = lane.targets[0].session
    try:
        if target is None:
            trial.failed = lane.targets[0].unavailable
            return trial
        for session in (lane.reference, lane.oracle):
            session.prepare()
        _Run(trial, fault, lane, target, clock, follow).all()
    finally:
        lane.close()
    return trial


class _Run:
    def __init__(
        self, trial: Trial, fault: Fault, lane: Lane, target: Session, clock: Callable[[], float], follow: float
    ) -> None:
        self.trial, self.fault, self.lane, self.target = trial, fault, lane, target
        self._clock, self._follow = clock, follow
        self._confirmations = 0
        self._began = clock()
        self._scout = None if lane.stream.search.mutates or fault.remembers else _scout(fault.name)

    def all(self) -> None:
        trial = self.trial
        state = self.target.prepare()
        if state is State.REFUSED:
            self._refused()
            return
        if state is State.DEAD:
            self._examined(0, self.lane.example, Answer(leaves={}), Answer(death=self.target.death), struck=True)
        while trial.detected_at is None and trial.executions < trial.budget and state is not State.DEAD:
            self._step(trial.executions)
        if trial.detected_at is None:
            trial.seconds = self._clock() - self._began

    def _refused(self) -> None:
        """A refusal to compile is shown in every summary; it is no crash, and its label is its state."""
        self.trial.reached_at = self.trial.triggered_at = self.trial.detected_at = 1
        self.trial.triggered = 1
        self.trial.seconds = self._clock() - self._began
        self.trial.after = Aftermath(label=f"execution/{self.target.state}", reduction="needless")
        self.trial.notes.append(self.target.reason[:200])

    def _step(self, index: int) -> None:
        if self._scout is not None and (index + 1) % WHOLE_ONE_IN:
            canary = self._scout(quick_sample(self.lane.seed, self.lane.recipe(index)))
            if not canary.triggered:  # the target has computed what the reference computes
                self._ran(reached=canary.reached > 0)
                return
        if self.target.state is not State.READY:
            self.target.prepare()
        sample = self.lane.sample(index)
        rng_seed = self.lane.rng_seed(index)
        reference = self.lane.reference.run(sample, rng_seed=rng_seed)
        answer = self.target.run(sample, rng_seed=rng_seed)
        reached, struck = self._canary(reference, answer)
        self._ran(reached=reached)
        if self.lane.stream.search.learns:
            self.lane.learn(index, reference)
        self._examined(index, sample, reference, answer, struck=struck)

    def _ran(self, *, reached: bool) -> None:
        self.trial.executions += 1
        if reached and self.trial.reached_at is None:
            self.trial.reached_at = self.trial.executions

    def _canary(self, reference: Answer, answer: Answer) -> tuple[bool, bool]:
        """Whether the faulty operator ran, and whether it answered wrongly."""
        if answer.death is not None:
            return True, True
        if self.fault.mechanism is Mechanism.INDUCTOR:  # its code has no canary; its answers do
            same = None not in (reference.leaves, answer.leaves) and _hash(reference) == _hash(answer)
            return True, not same
        canary = self.target.evidence.get("canary", {})
        return bool(canary.get("reached")), bool(canary.get("triggered"))

    def _examined(
        self, index: int, sample: Mapping[str, Tensor], reference: Answer, answer: Answer, *, struck: bool
    ) -> None:
        trial, lane = self.trial, self.lane
        trial.compared += 1
        found = examine(
            lane.bench(lane.targets[0]),
            sample,
            reference,
            answer,
            rng_seed=lane.rng_seed(index),
            vacuity=lane.vacuity,
            screen=lane.screen,
            always_judge=(index + 1) % JUDGE_ONE_IN == 0,
        )
        mismatch = found.verdict.outcome is Outcome.MISMATCH
        trial.triggered += struck
        if struck and trial.triggered_at is None:
            trial.triggered_at = max(trial.executions, 1)
        if not mismatch:
            trial.missed += struck
            return
        if not struck or self.fault.mechanism is Mechanism.CONTROL:
            blamed = found.verdict.blame is not Blame.NEITHER
            trial.false += blamed
            trial.near_ties += not blamed
            if trial.false + trial.near_ties == 1:
                trial.notes.append(f"no fault: {found.verdict.differences[0].message}"[:200])
            return
        if self._confirmations < CONFIRMATIONS:
            self._confirm(index, sample, found)

    def _confirm(self, index: int, sample: Mapping[str, Tensor], found: Examined) -> None:
        trial, lane = self.trial, self.lane
        self._confirmations += 1
        seconds = self._clock() - self._began
        crash = crash_of(lane.seed, self.target.backend, sample, found, lane.rng_seed(index))
        replayed = replay(crash, where_for(self.fault))
        if replayed.state is not CrashState.REPRODUCES:
            trial.unconfirmed += 1
            trial.notes.append(f"unconfirmed: {replayed.state}: {replayed.detail}"[:200])
            return
        trial.detected_at = max(trial.executions, 1)
        trial.seconds = seconds
        if self._follow > 0:
            trial.after = aftermath(crash, where_for(self.fault), budget_s=self._follow)


def crash_of(seed: Seed, target: str, sample: Mapping[str, Tensor], found: Examined, rng_seed: int) -> Crash:
    """The crash that a campaign would write for a mismatch."""
    return make_crash(seed, target, found.verdict, diagnosed_on(sample, target, found), sample, rng_seed=rng_seed)


def _hash(answer: Answer) -> str:
    return content_hash({k: v for k, v in (answer.leaves or {}).items() if isinstance(v, Tensor)})
