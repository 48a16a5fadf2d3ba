"""Reduction of a stored crash: live sessions say which smaller input still shows it, fresh ones confirm the last.

The crash on disk stays as it is until the smaller one was reproduced from nothing; until then the smallest input so far
lies in a notebook beside it, from which the next reduction goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash, bounded, seed_of
from fuzzer.crashes.environment import PACKAGES
from fuzzer.crashes.notebook import Notebook
from fuzzer.crashes.probe import Fault, Probe, Slip, fault_of
from fuzzer.crashes.record import check_inputs
from fuzzer.crashes.replay import CrashState, Replayed, close_bench, diagnosed, environment_of, fresh_bench, replay
from fuzzer.crashes.severity import severity
from fuzzer.crashes.sides import export_found
from fuzzer.errors import CrashFolderError
from fuzzer.reduce import Search, Size, passes, size_of, space_of
from fuzzer.verify.examine import Bench
from fuzzer.verify.verdict import Kind

#: Each candidate of a hang that still hangs costs its deadline; a short one shows as much. CPU seconds.
HANG_S = 5.0
#: Where the smallest input does not reproduce in fresh processes, so many larger ones are tried.
FALLBACKS = 2


class Outcome(StrEnum):
    """What came of a reduction."""

    REDUCED = "reduced"
    MINIMAL = "minimal"  # nothing smaller shows the crash
    UNFINISHED = "unfinished"  # the budget ended before anything smaller was found
    UNCONFIRMED = "unconfirmed"  # what was smaller did not reproduce in fresh processes
    IMPOSSIBLE = "impossible"  # the crash cannot be seen here


@dataclass(frozen=True)
class Reduction:
    """The outcome. `crash` is the smaller one, confirmed, or the one that was given. `finished`: nothing left to try.

    `slips`: other faults that candidates showed. `seconds` and `tests` are those of the search alone.
    """

    outcome: Outcome
    crash: Crash
    before: Size
    after: Size
    tests: int = 0
    seconds: float = 0.0
    finished: bool = False
    detail: str = ""
    slips: Mapping[Fault, Slip] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        size = f"{self.before.elements} elements ({self.before.filled} not of the background)"
        if self.outcome is Outcome.REDUCED:
            size += f" → {self.after.elements} ({self.after.filled})"
        text = f"{self.outcome}: {size}, {self.tests} inputs tried in {self.seconds:.1f} s"
        if self.slips:
            text += f", {sum(slip.count for slip in self.slips.values())} put aside that failed otherwise"
        more = "" if self.finished or self.outcome is Outcome.IMPOSSIBLE else "; not all was tried"
        return text + more + (f": {self.detail}" if self.detail else "")

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.crash.id,
            "outcome": str(self.outcome),
            "before": dict(self.before.__dict__),
            "after": dict(self.after.__dict__),
            "tests": self.tests,
            "seconds": round(self.seconds, 3),
            "finished": self.finished,
            "detail": self.detail,
            "slips": {str(fault): slip.count for fault, slip in self.slips.items()},
        }


def reduce_crash(
    crash: Crash,
    where: Where,
    *,
    budget_s: float,
    notes: Path | None = None,
    bench: Bench | None = None,
    clock: Callable[[], float] = time.monotonic,
    watch: Callable[[int, Size], None] = lambda tests, size: None,
) -> Reduction:
    """Look for a smaller input that shows the same fault, for `budget_s` seconds from when the sessions are ready.

    `notes`: the folder of crashes, where a notebook is kept. `bench`: sessions to use; they are closed. `watch` is told
    the number of tests and the smallest size so far. Writes nothing but the notebook. Raises XbfuzzError.
    """
    start = size_of(crash.inputs)
    if crash.kind == Kind.HANG or bench is None:
        if bench is not None:
            close_bench(bench)
        bench = _bench(crash, where)
    try:
        found = _searched(crash, bench, budget_s, notes, clock, watch)
    finally:
        close_bench(bench)
    if isinstance(found, str):
        return Reduction(Outcome.IMPOSSIBLE, crash, start, start, detail=found)
    if not found.smaller:
        outcome = Outcome.MINIMAL if found.finished else Outcome.UNFINISHED
        reduction = Reduction(outcome, crash, start, start, *found.facts)
    else:
        reduction = _confirmed(crash, where, found)
    return replace(reduction, slips=found.slips)


def _bench(crash: Crash, where: Where) -> Bench:
    seed = seed_of(crash)
    if crash.kind == Kind.HANG:
        seed = seed.model_copy(update={"deadline_s": min(seed.deadline_s, HANG_S)}).at(seed.base)
    return fresh_bench(seed, crash.reference, crash.target, where)


@dataclass
class _Found:
    """What a search left: better and better inputs, the best one last."""

    smaller: list[Mapping[str, Tensor]]
    wanted: Fault
    tests: int
    seconds: float
    finished: bool
    slips: Mapping[Fault, Slip]
    export: Mapping[str, Any]

    @property
    def facts(self) -> tuple[int, float, bool]:
        return self.tests, self.seconds, self.finished


def _searched(
    crash: Crash,
    bench: Bench,
    budget_s: float,
    notes: Path | None,
    clock: Callable[[], float],
    watch: Callable[[int, Size], None],
) -> _Found | str:
    """The search on live sessions; a sentence where the crash itself cannot be seen."""
    probe = Probe(crash, bench)
    if not probe.begin() or probe.wanted is None:
        return probe.refused or "its own input does not show it here"
    here = environment_of(crash.target)
    notebook = Notebook(notes, crash, {name: here.get(name) for name in PACKAGES}) if notes is not None else None
    smaller: deque[Mapping[str, Tensor]] = deque(maxlen=32)

    space = space_of(bench.seed)
    disordered = space.disordered(crash.inputs)

    def asked(sample: Mapping[str, Tensor]) -> bool:
        fails = space.disordered(sample) <= disordered and probe(sample)
        watch(search.tests, search.size)
        return fails

    def kept(sample: Mapping[str, Tensor]) -> None:
        smaller.append(sample)
        if notebook is not None:
            notebook.keep(sample)

    began = clock()
    search = Search(
        crash.inputs,
        asked,
        clock=clock,
        ends=began + budget_s,
        kept=kept,
        tried=notebook.tried if notebook is not None else None,
    )
    before = notebook.best() if notebook is not None else None
    if before is not None and _fits(crash, before):
        search.resume(before)
    finished = search.run(passes(space, list(crash.inputs)))
    if notebook is not None and finished:
        notebook.remove()
    return _Found(
        list(smaller),
        probe.wanted,
        search.tests,
        clock() - began,
        finished,
        probe.slips,
        export_found(bench.target.evidence),
    )


def _fits(crash: Crash, sample: Mapping[str, Tensor]) -> bool:
    try:
        check_inputs(crash, sample, "best.safetensors")
    except CrashFolderError:
        return False
    return True


def _confirmed(crash: Crash, where: Where, found: _Found) -> Reduction:
    """The smallest input that shows the fault in fresh processes too."""
    start = size_of(crash.inputs)
    detail = ""
    step = max(1, len(found.smaller) // (1 + FALLBACKS))
    for number, sample in enumerate(found.smaller[::-step][: 1 + FALLBACKS]):
        smaller = replace(crash, inputs=dict(sample), recipe=None)
        replayed = replay(smaller, where)
        again = None if replayed.examined is None else fault_of(smaller, replayed.examined)
        if replayed.state is CrashState.REPRODUCES and again == found.wanted:
            finished = found.finished and number == 0
            new = _described(crash, smaller, replayed, found, finished)
            return Reduction(Outcome.REDUCED, new, start, size_of(sample), found.tests, found.seconds, finished, detail)
        detail = detail or f"the smallest was {replayed.state} in fresh processes"
    return Reduction(Outcome.UNCONFIRMED, crash, start, start, *found.facts, detail)


def _described(crash: Crash, smaller: Crash, replayed: Replayed, found: _Found, finished: bool) -> Crash:
    """The smaller crash, described by what was seen on its own input. A cause that a rerun has confirmed is kept."""
    assert replayed.examined is not None
    verdict = replayed.examined.verdict
    diagnosis = diagnosed(smaller, replayed.examined, reproduced=True)
    keep = bool(crash.mitigations) and crash.label.confirmed
    size = size_of(smaller.inputs)
    about = {"tests": found.tests, "seconds": round(found.seconds, 1), "finished": finished}
    recipe = {"recipe": crash.recipe.to_json()} if crash.recipe is not None else {}
    return replace(
        smaller,
        label=crash.label if keep else diagnosis.label,
        evidence=crash.evidence if keep else tuple(diagnosis.evidence),
        blame=str(verdict.blame),
        severity=severity(verdict, diagnosis.label),
        verdict=bounded(verdict),
        activations={},
        tiers={**crash.tiers, "activations": "not-run", "task": verdict.tiers()["task"]},
        environment=environment_of(crash.target),
        sizes={**crash.sizes, "reduced": size.elements, "filled": size.filled},
        found={**crash.found, **recipe, **found.export, "reduction": about},
    )
