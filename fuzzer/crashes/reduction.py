"""Reduction of a stored crash: live sessions say which smaller input and which smaller graph still show it, fresh ones
confirm the last.

The crash on disk stays as it is until the smaller one was reproduced from nothing; until then the smallest input so far
lies in a notebook beside it, from which the next reduction goes on.
"""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash, bounded, seed_of
from fuzzer.crashes.environment import PACKAGES
from fuzzer.crashes.graph_reduction import GraphFound, graph_crash, graph_of, search_graph
from fuzzer.crashes.notebook import Notebook
from fuzzer.crashes.probe import Fault, Probe, Slip, fault_of
from fuzzer.crashes.record import check_inputs
from fuzzer.crashes.reduced import Outcome, Reduction
from fuzzer.crashes.replay import CrashState, Replayed, close_bench, diagnosed, environment_of, fresh_bench, replay
from fuzzer.crashes.severity import severity
from fuzzer.crashes.sides import EXPORT, export_found
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import CrashFolderError, XbfuzzError
from fuzzer.reduce import Sample, Search, Size, passes, size_of, space_of
from fuzzer.reduce.case import Case, CaseSize
from fuzzer.verify.examine import Bench
from fuzzer.verify.verdict import Kind

#: Each candidate of a hang that still hangs costs its deadline; a short one shows as much. CPU seconds.
HANG_S = 5.0
#: Where the smallest input does not reproduce in fresh processes, so many larger ones are tried.
FALLBACKS = 2
#: The share of the budget that the input may take before the graph's turn comes.
INPUT_SHARE = 0.5


def reduce_crash(
    crash: Crash,
    where: Where,
    *,
    budget_s: float,
    notes: Path | None = None,
    bench: Bench | None = None,
    inputs: bool = True,
    graph: bool = True,
    clock: Callable[[], float] = time.monotonic,
    watch: Callable[[int, Size | CaseSize], None] = lambda tests, size: None,
) -> Reduction:
    """Look for a smaller input that shows the same fault, then for a smaller graph, for `budget_s` seconds.

    The time counts from when the sessions are ready; the confirmation at the end comes on top. `notes`: the folder of
    crashes, where a notebook is kept. `bench`: sessions to use; they are closed. `inputs`: whether a smaller input is
    looked for; where not, it stands as the last reduction left it. `graph`: whether the model may be taken apart.
    `watch` is told the number of tests and the smallest size so far. Writes nothing but the notebook.

    Raises XbfuzzError.
    """
    start = size_of(crash.inputs)
    if crash.kind == Kind.HANG or bench is None:
        if bench is not None:
            close_bench(bench)
        bench = _bench(crash, where)
    here = environment_of(crash.target)
    notebook = Notebook(notes, crash, {name: here.get(name) for name in PACKAGES}) if notes is not None else None
    share = budget_s * (INPUT_SHARE if graph else 1.0)
    graphs = GraphFound(reason="its turn has not come; `xbfuzz reduce` takes the model apart")
    try:
        found = _searched(crash, bench, share if inputs else None, notebook, clock, watch)
        if graph and not isinstance(found, str):
            smallest = replace(crash, inputs=dict(found.smaller[-1])) if found.smaller else crash
            left = max(budget_s - found.seconds, 0.0)
            how: Any = {"budget_s": left, "clock": clock, "notebook": notebook, "watch": watch}
            graphs = search_graph(smallest, found.wanted, bench, **how)
    finally:
        close_bench(bench)
    if isinstance(found, str):
        return Reduction(Outcome.IMPOSSIBLE, crash, start, start, detail=found)
    parts = _taken_apart(crash, where, found, graphs)
    if notebook is not None and found.finished and parts.finished:
        notebook.remove()
    if parts.crash is not None:
        reduction = Reduction(Outcome.REDUCED, parts.crash, start, parts.size or start, weights=parts.weights)
    elif found.smaller:
        reduction = _confirmed(crash, where, found)
    else:
        outcome = Outcome.MINIMAL if found.finished and parts.finished else Outcome.UNFINISHED
        reduction = Reduction(outcome, crash, start, start)
    reduction = replace(
        reduction,
        tests=found.tests + parts.tests,
        seconds=found.seconds + parts.seconds,
        finished=(reduction.finished or reduction.outcome is not Outcome.REDUCED or parts.crash is not None)
        and found.finished
        and parts.finished,
        slips={**found.slips, **parts.slips},
        nodes=parts.nodes,
        whole=parts.whole,
    )
    return replace(reduction, crash=_noted(reduction, {} if inputs else crash.found.get("reduction", {})))


def write_reduced(folder: Path, reduction: Reduction, *, private: bool = False) -> Path:
    """Store the outcome of a reduction under `folder`: the smaller crash, or why there is none."""
    return write_crash(folder, reduction.crash, weights=reduction.weights, private=private)


def _noted(reduction: Reduction, before: Mapping[str, Any]) -> Crash:
    """The crash with what its reduction came to, for a reader. `before`: what its input came to, earlier."""
    smaller = before.get("outcome") == Outcome.REDUCED and reduction.outcome is not Outcome.IMPOSSIBLE
    about: dict[str, Any] = {
        "outcome": str(Outcome.REDUCED if smaller else reduction.outcome),
        "tests": reduction.tests + before.get("tests", 0),
        "seconds": round(reduction.seconds + before.get("seconds", 0.0), 1),
        "finished": reduction.finished,
        **({"detail": reduction.detail} if reduction.detail else {}),
        **({"nodes": list(reduction.nodes)} if reduction.nodes is not None else {}),
        **({"whole": reduction.whole} if reduction.whole else {}),
    }
    return replace(reduction.crash, found={**reduction.crash.found, "reduction": about})


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
    budget_s: float | None,
    notebook: Notebook | None,
    clock: Callable[[], float],
    watch: Callable[[int, Size | CaseSize], None],
) -> _Found | str:
    """The search on live sessions; a sentence where the crash itself cannot be seen.

    A graph is not searched here, and nothing is where there is no budget.
    """
    probe = Probe(crash, bench)
    if not probe.begin() or probe.wanted is None:
        return probe.refused or "its own input does not show it here"
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
    if graph_of(crash) is not None or budget_s is None:
        finished = graph_of(crash) is not None or bool(crash.found.get("reduction", {}).get("finished", True))
        return _Found([], probe.wanted, 0, 0.0, finished, probe.slips, {})
    search: Search[Sample] = Search(
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
    return _Found(
        list(smaller),
        probe.wanted,
        search.tests,
        clock() - began,
        finished,
        probe.slips,
        export_found(bench.target.evidence),
    )


@dataclass
class _Parts:
    """What came of taking the model apart. `crash`: reproduced in fresh processes, with what it is stored with."""

    crash: Crash | None = None
    size: Size | None = None
    weights: Mapping[str, Tensor] | None = None
    tests: int = 0
    seconds: float = 0.0
    finished: bool = True
    slips: Mapping[Fault, Slip] = field(default_factory=dict)
    nodes: tuple[int, int] | None = None
    whole: str = ""


def _taken_apart(crash: Crash, where: Where, found: _Found, graphs: GraphFound) -> _Parts:
    """The smallest graph that shows the fault in fresh processes too, from its files alone."""
    about: Any = {"tests": graphs.tests, "seconds": graphs.seconds, "finished": graphs.finished, "slips": graphs.slips}
    parts = _Parts(whole=graphs.reason, **about)
    if graphs.before is None or not graphs.smaller:
        parts.whole = parts.whole or ("" if graph_of(crash) is not None else "no smaller graph shows the crash")
        return parts
    step = max(1, len(graphs.smaller) // (1 + FALLBACKS))
    for number, case in enumerate(graphs.smaller[::-step][: 1 + FALLBACKS]):
        smaller, said = _staged(crash, where, found, graphs, case)
        if smaller is not None:
            parts.crash, parts.size, parts.weights = smaller, size_of(case.tensors), case.constants
            parts.nodes, parts.whole = (_nodes(crash, graphs), case.size.nodes), ""
            parts.finished = graphs.finished and number == 0
            return parts
        parts.whole = parts.whole or f"the smallest graph {said}"
    return parts


def _nodes(crash: Crash, graphs: GraphFound) -> int:
    """Operators of the model as it was first."""
    assert graphs.before is not None
    recorded = crash.sizes.get("nodes_original")
    return int(recorded) if recorded is not None else graphs.before.nodes


def _staged(crash: Crash, where: Where, found: _Found, graphs: GraphFound, case: Case) -> tuple[Crash | None, str]:
    """The crash on a graph, written down and reproduced from its files in fresh processes; else what they showed."""
    smaller = graph_crash(crash, case, graphs.task)
    smaller = replace(
        smaller,
        sizes={**smaller.sizes, "nodes_original": _nodes(crash, graphs)},
        found={key: v for key, v in crash.found.items() if key != EXPORT} | dict(graphs.export),
    )
    with tempfile.TemporaryDirectory(prefix="xbfuzz-stage-") as folder:
        try:
            staged = load_crash(write_crash(Path(folder), smaller, weights=case.constants))
            replayed = replay(staged, where)
        except XbfuzzError as error:
            return None, str(error)
        again = None if replayed.examined is None else fault_of(staged, replayed.examined)
        if replayed.state is not CrashState.REPRODUCES or again != found.wanted:
            return None, f"was {replayed.state} in fresh processes"
        found = replace(found, export=graphs.export)
        return _described(crash, smaller, replayed, found, size_of(case.tensors)), ""


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
            new = _described(crash, smaller, replayed, found, size_of(sample))
            return Reduction(Outcome.REDUCED, new, start, size_of(sample), found.tests, found.seconds, finished, detail)
        detail = detail or f"the smallest was {replayed.state} in fresh processes"
    return Reduction(Outcome.UNCONFIRMED, crash, start, start, *found.facts, detail)


def _described(crash: Crash, smaller: Crash, replayed: Replayed, found: _Found, size: Size) -> Crash:
    """The smaller crash, described by what was seen on its own input.

    A cause that a rerun has confirmed is kept. Of a graph, so is what was seen in the whole model: its diagnosis, and
    where drift starts.
    """
    assert replayed.examined is not None
    verdict = replayed.examined.verdict
    diagnosis = diagnosed(smaller, replayed.examined, reproduced=True)
    apart = smaller.whole_seed is not None
    keep = crash.label.cls == diagnosis.label.cls and (crash.label.confirmed or (apart and bool(crash.diagnosis)))
    recipe = {"recipe": crash.recipe.to_json()} if crash.recipe is not None else {}
    return replace(
        smaller,
        label=crash.label if keep else diagnosis.label,
        evidence=crash.evidence if keep else tuple(diagnosis.evidence),
        blame=str(verdict.blame),
        severity=severity(verdict, diagnosis.label),
        verdict=bounded(verdict),
        activations=crash.activations if apart else {},
        tiers=crash.tiers if apart else {**crash.tiers, "activations": "not-run", "task": verdict.tiers()["task"]},
        environment=environment_of(crash.target),
        sizes={**smaller.sizes, "reduced": size.elements, "filled": size.filled},
        found={key: v for key, v in crash.found.items() if key != EXPORT} | recipe | dict(found.export),
    )
