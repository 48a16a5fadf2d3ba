"""From two answers to a verdict: compare, screen, ask the judge where the screen fails, and look at the task.

This is tiers 1 and 3 on live backends. A campaign uses it on every execution, replay on the files of a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.session import Answer, Session, State
from fuzzer.seeds import Seed
from fuzzer.trees import Leaves
from fuzzer.verify.compare import LARGE_GAP, Comparison, as_real, compare
from fuzzer.verify.judge import THRESHOLD, OracleAnswer, judge
from fuzzer.verify.rearranged import excuse_rearranged
from fuzzer.verify.screen import FloorScreen, Nearness, nearness
from fuzzer.verify.tasks import lists_of, plainly_alike, task_difference, tier3
from fuzzer.verify.unanswered import OracleDown, without_leaves
from fuzzer.verify.vacuity import Vacuity
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

#: Runs under random rounding: at one place for the noise floor, at THRESHOLD places for decisions.
DRAWS = 8
DECISION_DRAWS = 24
#: The study's loosest tolerance: what meets it is not reported where there is no oracle to judge it.
LOOSEST = "1e-3"


@dataclass
class Bench:
    """The sessions that a verdict may need. An oracle that refuses the model says why; None is for no oracle at all.

    `free` is called before reference or target run again: they may be busy with something else until then.
    """

    seed: Seed
    reference: Session
    target: Session
    oracle: Session | None
    free: Callable[[], None] = lambda: None


@dataclass
class Examined:
    """A verdict with the answers it rests on."""

    verdict: Verdict
    reference: Answer
    target: Answer
    oracle: OracleAnswer | None = None


def examine(
    bench: Bench,
    sample: Mapping[str, Tensor],
    reference: Answer,
    target: Answer,
    *,
    rng_seed: int,
    vacuity: Vacuity | None,
    screen: FloorScreen | None,
    always_judge: bool = False,
) -> Examined:
    """The verdict on one sample, given both sides' answers to it.

    With `screen` None, or `always_judge`, every float difference is judged. Where a difference stands, both sides
    run again: one that disagrees with itself is `nondeterminism`, and that is then the finding.
    """

    def oracle_session() -> Session:
        if bench.oracle is None:
            raise OracleDown("there is no oracle")
        return bench.oracle

    early = without_leaves(reference, target, lambda: ask_truth(oracle_session(), sample, rng_seed=rng_seed))
    if early is not None:
        return Examined(early, reference, target)
    assert reference.leaves is not None
    assert target.leaves is not None

    def ask(decide: bool) -> OracleAnswer:
        return ask_oracle(oracle_session(), sample, rng_seed=rng_seed, decide=decide)

    verdict, oracle = verdict_of(
        bench.seed,
        reference.leaves,
        target.leaves,
        ask,
        vacuity=vacuity,
        screen=None if always_judge else screen,
        learn=screen,
    )
    _state_differences(verdict, reference, target)
    if verdict.differences or large_gaps(verdict, reference.leaves):
        _repeat(bench, sample, reference.leaves, target.leaves, verdict, rng_seed)
    verdict.outcome = _outcome(verdict)
    return Examined(verdict, reference, target, oracle)


def passed(
    seed: Seed, reference: Answer, target: Answer, *, vacuity: Vacuity | None, screen: FloorScreen | None
) -> Examined | None:
    """What `examine` says of two answers that the screen lets pass; None where anything would have to run for it.

    No statistics are taken, and the task is looked at only where it may fail: nothing can tell answers apart that are
    the same to the bit.
    """
    r, t = reference.leaves, target.leaves
    if r is None or t is None or reference.changed or target.changed:
        return None
    near = nearness(r, t, tolerance=seed.tolerance, signed_zero=seed.signed_zero, screen=screen)
    if near is Nearness.BEYOND:
        return None
    asked: list[bool] = []

    def ask(decide: bool) -> OracleAnswer | None:
        asked.append(decide)
        return None

    alike = near is Nearness.SAME or plainly_alike(seed.task, r, t)
    task = None if alike else tier3(seed.task, r, t, None, ask)
    if asked or (task is not None and task_difference(task) is not None):
        return None
    comparison = Comparison(compared=sum(leaf.numel() for leaf in r.values() if isinstance(leaf, Tensor)))
    verdict = Verdict(Outcome.PASS, compared=comparison.compared, task=task)
    verdict.informative = _informative(r, comparison, vacuity)
    verdict.outcome = _outcome(verdict)
    return Examined(verdict, reference, target)


def verdict_of(
    seed: Seed,
    reference: Leaves,
    target: Leaves,
    ask: Callable[[bool], OracleAnswer],
    *,
    vacuity: Vacuity | None,
    screen: FloorScreen | None = None,
    learn: FloorScreen | None = None,
) -> tuple[Verdict, OracleAnswer | None]:
    """Compare two sets of leaves, judge what differs, and tell what it does to the task.

    `ask(decide)` gives the oracle's answer or raises OracleDown; it is asked at most once for either. `screen` says
    what is not worth judging; `learn` is told the noise floors that were measured. A task that breaks where no tensor
    differs beyond the noise is a difference of its own.
    """
    asked: dict[bool, OracleAnswer | OracleDown] = {}

    def once(decide: bool) -> OracleAnswer:
        if decide not in asked:
            try:
                asked[decide] = ask(decide)
            except OracleDown as error:
                asked[decide] = error
        found = asked[decide]
        if isinstance(found, OracleDown):
            raise found
        return found

    comparison = compare(reference, target, tolerance=seed.tolerance, signed_zero=seed.signed_zero, screen=screen)
    verdict = Verdict(Outcome.PASS, compared=comparison.compared, stats=comparison.stats)
    verdict.informative = _informative(reference, comparison, vacuity)
    oracle = None
    if comparison.differences:
        oracle = _judge(seed, reference, target, comparison, verdict, learn, once)
    verdict.task = tier3(seed.task, reference, target, oracle, lambda decide: _or_none(once, decide))
    if verdict.task.near_tie and verdict.differences and oracle is not None:
        lists = lists_of(seed.task, reference)
        runs = [oracle, wide] if (wide := _or_none(once, True)) is not None else [oracle]
        verdict.differences = excuse_rearranged(verdict.differences, lists, target, runs, THRESHOLD)
    broken = task_difference(verdict.task)
    if broken is not None and not verdict.differences:
        verdict.differences.append(broken)
    verdict.outcome = _outcome(verdict)
    return verdict, oracle


def _or_none(ask: Callable[[bool], OracleAnswer], decide: bool) -> OracleAnswer | None:
    """The oracle's answer, or None where there is none: the verdict's notes say why already."""
    try:
        return ask(decide)
    except OracleDown:
        return None


def _outcome(verdict: Verdict) -> Outcome:
    if verdict.differences:
        return Outcome.MISMATCH
    return Outcome.PASS if verdict.informative else Outcome.VACUOUS


def ask_oracle(session: Session, sample: Mapping[str, Tensor], *, rng_seed: int, decide: bool = False) -> OracleAnswer:
    """The oracle's answer; `decide` asks with a wide amplitude and moved zeros, and for no truth.

    Raises OracleDown where it raised or died; one that is not ready is prepared first.
    """
    return _asked(
        session,
        sample,
        rng_seed,
        kind="judge",
        draws=DECISION_DRAWS if decide else DRAWS,
        amplitude=int(THRESHOLD) if decide else 1,
        decide=decide,
        truth=not decide,
    )


def ask_truth(session: Session, sample: Mapping[str, Tensor], *, rng_seed: int) -> OracleAnswer:
    """The float64 answer alone, for an input that the module itself may refuse. Raises OracleDown as `ask_oracle`."""
    return _asked(session, sample, rng_seed, kind="truth")


def _asked(session: Session, sample: Mapping[str, Tensor], rng_seed: int, **variant: Any) -> OracleAnswer:
    refused = session.state is State.REFUSED  # it would refuse again
    if session.state is not State.READY and (refused or session.prepare() is not State.READY):
        raise OracleDown(f"the oracle could not be prepared: {session.reason}")
    answer = session.run(sample, rng_seed=rng_seed, **variant)
    if answer.leaves is None:
        raise OracleDown(f"the oracle failed: {answer.error}")
    return OracleAnswer.from_leaves(answer.leaves)


def _informative(reference: Leaves, comparison: Comparison, vacuity: Vacuity | None) -> int:
    """Elements compared in leaves that are known to change with the input."""
    if vacuity is None:
        return comparison.compared
    total = 0
    for path, leaf in reference.items():
        if path in vacuity.informative or path not in vacuity.reasons:
            total += leaf.numel() if isinstance(leaf, Tensor) else int(isinstance(leaf, int | float))
    return min(total, comparison.compared)


def _judge(
    seed: Seed,
    reference: Leaves,
    target: Leaves,
    comparison: Comparison,
    verdict: Verdict,
    learn: FloorScreen | None,
    ask: Callable[[bool], OracleAnswer],
) -> OracleAnswer | None:
    try:
        oracle = ask(False)
    except OracleDown as error:
        verdict.notes.append(f"not judged: {error}")
        verdict.differences = [d for d in comparison.differences if not _maybe_rounding(seed, d, comparison)]
        return None

    def decide() -> OracleAnswer | None:
        try:
            return ask(True)
        except OracleDown as error:
            verdict.notes.append(f"decisions not judged: {error}")
            return None

    found = judge(reference, target, comparison, oracle, decide, own_tolerance=seed.tolerance is not None)
    if learn is not None:
        learn.learn(found.floors, reference)
    verdict.judged = True
    verdict.differences = found.standing
    verdict.notes += found.notes
    if found.rounding:
        verdict.notes.append(f"rounding only at {', '.join(sorted({d.path for d in found.rounding}))}")
    return oracle


def _maybe_rounding(seed: Seed, difference: Difference, comparison: Comparison) -> bool:
    """Whether a float difference that nobody could judge may be rounding: it meets the study's loosest criterion."""
    if difference.kind is not Kind.VALUE or seed.tolerance is not None:
        return False
    return any(stats.path == difference.path and stats.norm_ok.get(LOOSEST) for stats in comparison.stats)


def _state_differences(verdict: Verdict, reference: Answer, target: Answer) -> None:
    for answer, blame, side in ((reference, Blame.REFERENCE, "reference"), (target, Blame.TARGET, "target")):
        if answer.changed:
            message = f"a run on the {side} changed {', '.join(answer.changed)}"
            verdict.differences.append(Difference("$", Kind.MUTATION, message, blame=blame))


def _repeat(
    bench: Bench,
    sample: Mapping[str, Tensor],
    reference: Leaves,
    target: Leaves,
    verdict: Verdict,
    rng_seed: int,
) -> None:
    """Run each side once more; what one side does not say twice is its own nondeterminism, not a disagreement."""
    bench.free()
    for session, before, blame in (
        (bench.reference, reference, Blame.REFERENCE),
        (bench.target, target, Blame.TARGET),
    ):
        if session.state is not State.READY:
            verdict.notes.append(f"{session.backend} was not run again: it is {session.state}")
            continue
        again = session.run(sample, rng_seed=rng_seed, check=True)
        if again.leaves is None:
            message = f"{session.backend} answered once, and then: {again.error}"
            verdict.differences = [Difference("$", Kind.NONDETERMINISM, message, blame=blame)]
            return
        if any("content hash" in changed for changed in again.changed):
            message = f"{session.backend} has changed its parameters"
            verdict.differences.append(Difference("$", Kind.MUTATION, message, blame=blame))
        wavers = unstable(before, again.leaves, verdict)
        if wavers is not None:
            message = f"{session.backend} disagrees with itself at {wavers.path}: {wavers.message}"
            verdict.differences = [Difference(wavers.path, Kind.NONDETERMINISM, message, blame=blame)]
            return


def unstable(before: Leaves, again: Leaves, verdict: Verdict) -> Difference | None:
    """A difference of a side from itself that could explain what was seen: same leaf and kind, a tenth of the size.

    Where nothing stands the gaps were large and judged to be noise, which a module that wavers makes by itself.
    """
    repeated = compare(before, again)
    sizes = {stats.path: stats.max_abs for stats in verdict.stats}
    own = {stats.path: stats.max_abs for stats in repeated.stats}
    seen = [(d.path, Kind.VALUE if d.kind is Kind.TASK else d.kind) for d in verdict.differences]
    seen = seen or [(path, Kind.VALUE) for path in large_gaps(verdict, before)]
    for mine in repeated.differences:
        alike = (mine.path, mine.kind) in seen
        if alike and (mine.kind is not Kind.VALUE or own[mine.path] >= 0.1 * sizes.get(mine.path, 0.0)):
            return mine
    return None


def large_gaps(verdict: Verdict, leaves: Leaves) -> list[str]:
    """Float leaves whose sides lie so far apart that nobody would call it rounding at sight."""
    found = []
    for stats in verdict.stats:
        leaf = leaves.get(stats.path)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and stats.max_abs > 0.0:
            values = as_real(leaf).to(torch.float64)
            finite = values[torch.isfinite(values)]
            scale = float(finite.abs().max()) if finite.numel() else 0.0
            if stats.max_abs > LARGE_GAP * torch.finfo(leaf.dtype).eps * scale:
                found.append(stats.path)
    return found
