"""Reruns of a crash in worker processes: what `fuzzer.diagnose` asks for.

The three processes of a verdict stay warm and are prepared again for what is changed; what holds for a whole process
gets fresh ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.crashes.replay import close_bench
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Bench, Examined, examine


class AdaptableSession(Session):
    """A session whose process is prepared again with something changed."""

    key: tuple[object, ...] = ()

    def prepared_as(self, backend: str, example: Mapping[str, Tensor], adaptation: dict[str, Any], key: object) -> None:
        """Prepare so, where it is not prepared so already. Raises CannotRerun where the backend refuses."""
        wanted = (backend, key)
        if self.state is State.READY and self.key == wanted:
            return
        self.backend, self.adaptation = backend, adaptation
        self.take(self.seed, example)
        self.key = wanted
        state = self.prepare()
        if state is State.REFUSED:
            raise CannotRerun(f"{backend} refuses: {self.reason}"[:500])

    def under(self, deadline: float, seed: Seed) -> None:
        """Let a run compute so many times as long as the seed says."""
        changed = {"deadline_s": seed.deadline_s * deadline} if deadline != 1.0 else {}
        self.seed = seed.model_copy(update=changed).at(seed.base)


class Reruns:
    """Both sides of a crash, and its oracle. Close it when done."""

    def __init__(self, crash: Crash, where: Where) -> None:
        self._crash = crash
        self._where = where
        self._seed = seed_of(crash)
        self.ordinary = base_sample(self._seed, 0)
        self._bench = self._adaptable()
        self._fresh: Bench | None = None

    def _adaptable(self) -> Bench:
        seed, example, where = self._seed, self.ordinary, self._where
        return Bench(
            seed,
            reference=AdaptableSession(seed, self._crash.reference, example, where),
            target=AdaptableSession(seed, self._crash.target, example, where),
            oracle=Session(seed, ORACLE, example, where),
        )

    @property
    def evidence(self) -> Mapping[str, Any]:
        return (self._fresh or self._bench).target.evidence

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        self._end_fresh()
        bench = self._bench
        if change.fresh or change.adaptation.of_process:
            bench = self._fresh = self._adaptable()
        reference, target = self._sides(bench, change)
        rng_seed = self._crash.rng_seed if change.rng_seed is None else change.rng_seed
        answers = []
        for session in (reference, target):
            if session.state is State.DEAD:
                answers.append(Answer(death=session.death))
            else:
                answers.append(session.run(sample, rng_seed=rng_seed, check=True))
        return examine(
            bench, sample, answers[0], answers[1], rng_seed=rng_seed, vacuity=None, screen=None, always_judge=True
        )

    def _sides(self, bench: Bench, change: Change) -> tuple[AdaptableSession, AdaptableSession]:
        reference, target = bench.reference, bench.target
        assert isinstance(reference, AdaptableSession)
        assert isinstance(target, AdaptableSession)
        adaptation = change.adaptation.to_json()
        for session in (reference, target):
            session.under(change.deadline, self._seed)
        alike = adaptation if change.both else {}
        reference.prepared_as(self._crash.reference, self.ordinary, alike, repr(alike))
        example = self.ordinary if change.example is None else change.example
        key = (repr(adaptation), id(change.example) if change.example is not None else 0)
        target.prepared_as(change.target or self._crash.target, example, adaptation, key)
        return reference, target

    def seconds(self, sample: Mapping[str, Tensor], change: Change, times: int) -> float | None:
        """The median over so many runs of the target, after one more that warms it up. Raises CannotRerun."""
        if change.fresh or change.adaptation.of_process:
            return None
        _, target = self._sides(self._bench, change)
        if target.state is not State.READY:
            return None
        found = []
        for number in range(times + 1):
            answer = target.run(sample, rng_seed=self._crash.rng_seed)
            if answer.leaves is None:
                return None
            if number:
                found.append(answer.seconds)
        return statistics.median(found)

    def close(self) -> None:
        self._end_fresh()
        close_bench(self._bench)

    def _end_fresh(self) -> None:
        if self._fresh is not None:
            close_bench(self._fresh)
            self._fresh = None
