"""Replay: does a stored crash still happen, in fresh processes, from its files alone?

A campaign confirms a finding by exactly this, before the crash is stored: there is no second way to reproduce one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from fuzzer.backends.interpreter import environment_there
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.registry import availability, parse
from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.crashes.environment import PACKAGES, environment
from fuzzer.crashes.expect import DIVERGES, Expectation
from fuzzer.crashes.signature import Signature, signature_of
from fuzzer.diagnose import Diagnosis, provisional
from fuzzer.errors import InputError, SpecError
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Bench, Examined, examine
from fuzzer.verify.tasks import check_task
from fuzzer.verify.verdict import Kind, Outcome

#: How often a crash is tried before it is called fixed, or flaky at a rate.
ATTEMPTS = 3


class CrashState(StrEnum):
    """What became of a stored crash."""

    REPRODUCES = "reproduces"
    FIXED = "fixed"
    CHANGED = "changed"  # the two sides differ, but with another signature
    FLAKY = "flaky"  # some attempts reproduce it and some do not
    UNAVAILABLE = "unavailable"  # a backend cannot run here or refuses the model; a plug-in is not there


@dataclass
class Replayed:
    """The outcome of a replay. `differs` says how this machine is not the one recorded; that is no failure.

    `expect` is what the crash says, `expected` what that means with the `versions` that ran: `diverges` or `agrees`.
    """

    id: str
    state: CrashState
    expect: str
    detail: str = ""
    attempts: int = 0
    reproduced: int = 0
    differs: list[str] = field(default_factory=list)
    expected: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    examined: Examined | None = None
    weights: dict[str, Tensor] | None = None

    @property
    def ok(self) -> bool:
        """Whether the crash did what it is expected to do. What cannot run here is neither: it did not fail."""
        if self.state is CrashState.UNAVAILABLE:
            return True
        if (self.expected or self.expect) == DIVERGES:
            return self.state is CrashState.REPRODUCES
        return self.state is CrashState.FIXED

    @property
    def said_something(self) -> bool:
        """Whether the two sides were compared at all."""
        return self.state is not CrashState.UNAVAILABLE

    @property
    def rate(self) -> float | None:
        """The share of the attempts that showed the crash as it was stored; None where none was made."""
        return self.reproduced / self.attempts if self.attempts else None

    @property
    def sentence(self) -> str:
        """The outcome in words, without the crash's name."""
        meaning = f" (here: {self.expected})" if self.expected not in ("", self.expect) else ""
        return f"{self.state}, expected {self.expect}{meaning}" + (f": {self.detail}" if self.detail else "")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "state": str(self.state),
            "expect": self.expect,
            "expected": self.expected or self.expect,
            "ok": self.ok,
            "detail": self.detail,
            "attempts": self.attempts,
            "reproduced": self.reproduced,
            "rate": self.rate,
            "differs": list(self.differs),
            "versions": dict(self.versions),
            "seconds": round(self.seconds, 3),
        }


def replay(
    crash: Crash,
    where: Where,
    *,
    keep_weights: bool = False,
    attempts: int = ATTEMPTS,
    bench: Bench | None = None,
) -> Replayed:
    """Run a crash's input on its two backends in fresh processes, and judge the answers as a campaign does.

    The first attempt decides what is seen; the others tell flaky from reproduces and from fixed, in the same processes,
    or in fresh ones each where these do not show it twice. `keep_weights`: ask the reference for its state dict (a
    campaign stores it). `bench`: sessions that nothing ran in yet; they stay open.
    """
    started = time.monotonic()
    result = _replay(crash, where, keep_weights, attempts, bench)
    result.seconds = time.monotonic() - started
    return result


def replay_all(
    crashes: Sequence[Crash], where: Where, *, jobs: int = 1, attempts: int = ATTEMPTS
) -> Iterator[Replayed]:
    """The crashes' outcomes in their order, `jobs` of them replayed at a time, each in processes of its own."""
    with ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="replays") as pool:
        futures = [pool.submit(replay, crash, where, attempts=attempts) for crash in crashes]
        try:
            for future in futures:
                yield future.result()
        finally:  # whoever stops listening, or interrupts, waits for what runs and not for what is queued
            for future in futures:
                future.cancel()


def _replay(crash: Crash, where: Where, keep_weights: bool, attempts: int, bench: Bench | None) -> Replayed:
    here = environment_of(crash.target)
    result = Replayed(crash.id, CrashState.UNAVAILABLE, crash.expect, differs=_differences(crash.environment, here))
    result.versions = _packages(here)
    result.expected = Expectation.parse(crash.expect).under(result.versions, crash.target)
    for spec in (crash.reference, crash.target):
        try:
            reason = availability(parse(spec))
        except SpecError as error:
            reason = str(error)
        if reason is not None:
            result.detail = f"{spec}: {reason}"
            return result
    seed = seed_of(crash)
    if seed.unavailable:
        result.detail = seed.unavailable
        return result
    try:
        check_task(seed.task)
    except InputError as error:
        result.detail = str(error)
        return result
    if bench is not None:
        return _attempt(crash, bench, result, keep_weights, attempts)
    bench = fresh_bench(seed_of(crash), crash.reference, crash.target, where)
    try:
        return _attempt(crash, bench, result, keep_weights, attempts)
    finally:
        close_bench(bench)


def fresh_bench(seed: Seed, reference: str, target: str, where: Where) -> Bench:
    """Sessions for a verdict, none of them started."""
    example = base_sample(seed, 0)
    return Bench(
        seed,
        reference=Session(seed, reference, example, where),
        target=Session(seed, target, example, where),
        oracle=Session(seed, ORACLE, example, where),
    )


def prepare_bench(bench: Bench) -> Session | None:
    """Start what is not ready of the two sides, together, and wait; gives the one that refuses the model, if any."""
    sessions = (bench.reference, bench.target)
    for session in sessions:
        if session.state is not State.READY:
            session.prepare_begin()
    while any(session.prepare_poll() is State.PREPARING for session in sessions):
        time.sleep(0.02)
    return next((session for session in sessions if session.state is State.REFUSED), None)


def close_bench(bench: Bench) -> None:
    """End all processes of the bench."""
    for session in (bench.reference, bench.target, bench.oracle):
        if session is not None:
            session.close()


def _attempt(crash: Crash, bench: Bench, result: Replayed, keep_weights: bool, attempts: int) -> Replayed:
    seen: list[Signature | None] = []
    silent: list[str] = []
    fresh = False
    while len(seen) < attempts:
        if fresh:
            close_bench(bench)
        refused = prepare_bench(bench)
        if refused is not None:
            result.detail = f"{refused.backend}: {refused.reason}"
            return result
        if not seen and keep_weights:
            result.weights = bench.reference.weights()
        examined = examine_crash(crash, bench)
        signature = signature_seen(crash, examined)
        # The first attempt ran in processes that had run nothing. Where one that has does not show it, the call may
        # count, not chance: such an attempt says nothing, and from now on each starts from fresh processes.
        if not fresh and seen and seen[0] == crash.signature != signature:
            fresh = True
            continue
        if not seen or examined.verdict.outcome is Outcome.MISMATCH:
            result.examined = examined
        seen.append(signature)
        if _nothing_compared(crash, examined):
            silent.append("; ".join(examined.verdict.notes))
    result.attempts, result.reproduced = len(seen), seen.count(crash.signature)
    if silent and not result.reproduced:  # two sides that could not be compared do not agree
        result.detail = f"nothing was compared: {silent[0]}"
        return result
    result.state, result.detail = _state(crash, seen, result)
    if fresh and result.state is CrashState.REPRODUCES:
        result.detail = "in each fresh process, and not again in the same one"
    return result


def _nothing_compared(crash: Crash, examined: Examined) -> bool:
    """Whether an attempt says nothing. Where one side alone raised, that both do now is an answer."""
    verdict = examined.verdict
    both_raise = examined.reference.failure is not None and examined.target.failure is not None
    fixed = crash.kind == Kind.EXCEPTION and both_raise and not _internal(examined)
    return verdict.outcome is Outcome.NOT_COMPARED and not fixed


def _internal(examined: Examined) -> bool:
    sides = (examined.reference.failure, examined.target.failure)
    return any(failure is not None and failure.kind != "exception" for failure in sides)


def examine_crash(crash: Crash, bench: Bench) -> Examined:
    """The verdict on a crash's input, judged in full, on sessions that are ready or died while they prepared."""
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
    return diagnosed_on(crash.inputs, crash.target, examined, reproduced=reproduced)


def diagnosed_on(
    sample: Mapping[str, Tensor], target: str, examined: Examined, *, reproduced: bool = False
) -> Diagnosis:
    """The provisional diagnosis of a verdict that is a mismatch, before there is a crash."""
    truth = examined.oracle.truth if examined.oracle is not None else None
    sides = examined.reference.leaves, examined.target.leaves
    return provisional(examined.verdict, *sides, truth, sample, target, reproduced=reproduced)


def signature_seen(crash: Crash, examined: Examined) -> Signature | None:
    """What the two sides show on the crash's input; None where they do not differ."""
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


def environment_of(target: str) -> dict[str, Any]:
    """The versions and the machine on which `target` runs: this process's, or those of the interpreter it names."""
    python = BackendSpec.parse(target).python
    return environment_there(python) if python else environment()


def _packages(here: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(here[name]) for name in ("python", *PACKAGES) if name in here}


def _differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """How this machine and its packages differ from those recorded, in words."""
    found = []
    for name in ("python", *PACKAGES, "cpu", "os"):
        before, now = recorded.get(name), here.get(name)
        if before is not None and before != now:
            found.append(f"{name}: {before} → {now or 'not there'}")
    return found
