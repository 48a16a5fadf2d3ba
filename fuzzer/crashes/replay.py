"""Replay: does a stored crash still happen, in fresh processes, from its files alone?

A campaign confirms a finding by exactly this, before the crash is stored: there is no second way to reproduce one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.registry import availability, parse
from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.crashes.environment import PACKAGES, environment
from fuzzer.crashes.signature import Signature, signature_of
from fuzzer.diagnose import Diagnosis, provisional
from fuzzer.errors import SpecError
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed
from fuzzer.verify.examine import NO_ONNX_ORACLE, Bench, Examined, examine
from fuzzer.verify.verdict import Outcome

#: How often a crash is tried before it is called fixed, or flaky at a rate.
ATTEMPTS = 3


class CrashState(StrEnum):
    """What became of a stored crash."""

    REPRODUCES = "reproduces"
    FIXED = "fixed"
    CHANGED = "changed"  # the two sides differ, but with another signature
    FLAKY = "flaky"  # some attempts reproduce it and some do not
    UNAVAILABLE = "unavailable"  # a backend cannot run here, or refuses the model


@dataclass
class Replayed:
    """The outcome of a replay. `differs` says how this machine is not the one recorded; that is no failure."""

    id: str
    state: CrashState
    expect: str
    detail: str = ""
    attempts: int = 0
    reproduced: int = 0
    differs: list[str] = field(default_factory=list)
    examined: Examined | None = None
    weights: dict[str, Tensor] | None = None

    @property
    def ok(self) -> bool:
        """Whether the crash did what it is expected to do. What cannot run here is neither: it did not fail."""
        if self.state is CrashState.UNAVAILABLE:
            return True
        if self.expect == "diverges":
            return self.state is CrashState.REPRODUCES
        return self.state is CrashState.FIXED

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": str(self.state),
            "expect": self.expect,
            "ok": self.ok,
            "detail": self.detail,
            "attempts": self.attempts,
            "reproduced": self.reproduced,
            "differs": list(self.differs),
        }


def replay(crash: Crash, where: Where, *, keep_weights: bool = False) -> Replayed:
    """Run a crash's input on its two backends in fresh processes, and judge the answers as a campaign does.

    The first attempt decides what is seen; the others tell flaky from reproduces and from fixed. `keep_weights`: ask
    the reference for its state dict (a campaign stores it).
    """
    result = Replayed(crash.id, CrashState.UNAVAILABLE, crash.expect, differs=_differences(crash.environment))
    for spec in (crash.reference, crash.target):
        try:
            reason = availability(parse(spec))
        except SpecError as error:
            reason = str(error)
        if reason is not None:
            result.detail = f"{spec}: {reason}"
            return result
    seed = seed_of(crash)
    bench = fresh_bench(seed, crash.reference, crash.target, where)
    try:
        return _attempt(crash, bench, result, keep_weights)
    finally:
        close_bench(bench)


def fresh_bench(seed: Seed, reference: str, target: str, where: Where) -> Bench:
    """Sessions for a verdict, none of them started."""
    example = base_sample(seed, 0)
    has_oracle = seed.model.source != "onnx"
    return Bench(
        seed,
        reference=Session(seed, reference, example, where),
        target=Session(seed, target, example, where),
        oracle=Session(seed, ORACLE, example, where) if has_oracle else None,
        no_oracle="" if has_oracle else NO_ONNX_ORACLE,
    )


def close_bench(bench: Bench) -> None:
    """End all processes of the bench."""
    for session in (bench.reference, bench.target, bench.oracle):
        if session is not None:
            session.close()


def _attempt(crash: Crash, bench: Bench, result: Replayed, keep_weights: bool) -> Replayed:
    sessions = (bench.reference, bench.target)
    seen: list[Signature | None] = []
    for attempt in range(ATTEMPTS):
        for session in sessions:
            if session.state is not State.READY:
                session.prepare_begin()
        while any(session.prepare_poll() is State.PREPARING for session in sessions):
            time.sleep(0.02)
        refused = next((s for s in sessions if s.state is State.REFUSED), None)
        if refused is not None:
            result.detail = f"{refused.backend}: {refused.reason}"
            return result
        if attempt == 0 and keep_weights:
            result.weights = bench.reference.weights()
        examined = _examine(crash, bench)
        if attempt == 0 or examined.verdict.outcome is Outcome.MISMATCH:
            result.examined = examined
        seen.append(_signature(crash, examined))
        if seen[0] is None and seen.count(None) < len(seen):
            break
    result.attempts, result.reproduced = len(seen), seen.count(crash.signature)
    result.state, result.detail = _state(crash, seen, result)
    return result


def _examine(crash: Crash, bench: Bench) -> Examined:
    answers: list[Answer | None] = []
    for session in (bench.reference, bench.target):
        if session.state is State.DEAD:
            answers.append(Answer(death=session.death))
        else:
            session.begin(crash.inputs, rng_seed=crash.rng_seed, check=True)
            answers.append(None)
    reference, target = (
        answer if answer is not None else session.finish()
        for answer, session in zip(answers, (bench.reference, bench.target), strict=True)
    )
    return examine(
        bench, crash.inputs, reference, target, rng_seed=crash.rng_seed, vacuity=None, screen=None, always_judge=True
    )


def diagnosed(crash: Crash, examined: Examined, *, reproduced: bool = False) -> Diagnosis:
    """The provisional diagnosis of what a replay saw. `reproduced`: it was seen in fresh processes."""
    truth = examined.oracle.truth if examined.oracle is not None else None
    sides = examined.reference.leaves, examined.target.leaves
    return provisional(examined.verdict, *sides, truth, crash.inputs, crash.target, reproduced=reproduced)


def _signature(crash: Crash, examined: Examined) -> Signature | None:
    if examined.verdict.outcome is not Outcome.MISMATCH:
        return None
    label = diagnosed(crash, examined).label
    return signature_of(crash.signature.seed, crash.target, examined.verdict, label)


def _state(crash: Crash, seen: list[Signature | None], result: Replayed) -> tuple[CrashState, str]:
    hits = seen.count(crash.signature)
    if hits == len(seen):
        return CrashState.REPRODUCES, ""
    if hits:
        return CrashState.FLAKY, f"{hits} of {len(seen)} attempts reproduce it"
    others = [signature for signature in seen if signature is not None]
    if others:
        other = others[0]
        return CrashState.CHANGED, f"now {other.cls} ({other.kind}) at {other.leaf}"
    notes = result.examined.verdict.notes if result.examined is not None else []
    return CrashState.FIXED, "; ".join(notes)


def _differences(recorded: Mapping[str, Any]) -> list[str]:
    """How this machine and its packages differ from those recorded, in words."""
    here = environment()
    found = []
    for name in ("python", *PACKAGES, "cpu", "os"):
        before, now = recorded.get(name), here.get(name)
        if before is not None and before != now:
            found.append(f"{name}: {before} → {now or 'not there'}")
    return found
