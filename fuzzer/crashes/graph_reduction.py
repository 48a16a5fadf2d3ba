"""Reduction of a crash's model: from a module to the few operators that show the crash, on tensors of their own."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.graph_probe import GraphProbe, seed_of_case
from fuzzer.crashes.notebook import Notebook
from fuzzer.crashes.probe import Fault, Slip
from fuzzer.models.graph import CannotCapture, Graph
from fuzzer.reduce import Search
from fuzzer.reduce.case import Case, CaseSize, keys_of
from fuzzer.reduce.graph import reduce_graph
from fuzzer.seeds import Task
from fuzzer.seeds.load import seed_from_json, seed_to_json
from fuzzer.verify.examine import Bench


@dataclass
class GraphFound:
    """What a search over graphs left: smaller and smaller cases, the best one last. `reason`: why there is none.

    `export`: how the target exported the last one that failed.
    """

    before: CaseSize | None = None
    smaller: list[Case] = field(default_factory=list)
    task: Task = field(default_factory=lambda: Task(kind="tensors"))
    tests: int = 0
    seconds: float = 0.0
    finished: bool = True
    slips: Mapping[Fault, Slip] = field(default_factory=dict)
    reason: str = ""
    export: Mapping[str, Any] = field(default_factory=dict)


def search_graph(
    crash: Crash,
    wanted: Fault,
    bench: Bench,
    *,
    budget_s: float,
    clock: Callable[[], float],
    notebook: Notebook | None = None,
    watch: Callable[[int, CaseSize], None] = lambda tests, size: None,
) -> GraphFound:
    """Look for a smaller graph that shows `wanted` as the crash's own model does, for `budget_s` seconds from when the
    whole graph has shown it. The sessions of `bench` are used, and hold other models afterwards."""
    began = clock()
    with tempfile.TemporaryDirectory(prefix="xbfuzz-graph-") as folder:
        probe = GraphProbe(crash, wanted, bench, Path(folder))
        try:
            whole = probe.begin()
            began = clock()
            smaller: deque[Case] = deque(maxlen=32)

            def asked(case: Case) -> bool:
                fails = probe(case)
                watch(search.tests, search.size)
                return fails

            def kept(case: Case) -> None:
                smaller.append(case)
                if notebook is not None:
                    notebook.keep_case(case)

            search: Search[Case] = Search(
                whole,
                asked,
                clock=clock,
                ends=clock() + budget_s,
                kept=kept,
                tried=None if notebook is None else notebook.tried,
                size=lambda case: case.size,
                key=lambda case: case.key,
            )
            before = None if notebook is None else notebook.best_case()
            if before is not None:
                search.resume(before)
            finished = reduce_graph(search, probe.values, probe.divergent, keys_of(crash.leaf))
            about = search.tests, clock() - began, finished, probe.slips
            return GraphFound(whole.size, list(smaller), probe.task, *about, export=probe.export)
        except CannotCapture as error:
            return GraphFound(seconds=clock() - began, slips=probe.slips, reason=str(error))


def graph_crash(crash: Crash, case: Case, task: Task) -> Crash:
    """The crash with the graph of `case` as its model. Its constants are the weights to store it with."""
    seed = seed_of_case(seed_from_json(dict(crash.seed), crash.base), case, task, None)
    whole = crash.whole_seed if crash.whole_seed is not None else crash.seed
    sizes = {**crash.sizes, "nodes": case.size.nodes}
    return replace(
        crash,
        seed=seed_to_json(seed),
        whole_seed=whole,
        inputs=case.inputs,
        recipe=None,
        sizes=sizes,
        weights={},
        files={},
        folder=None,
    )


def graph_of(crash: Crash) -> Graph | None:
    """The graph that is the crash's model, where it was reduced to one."""
    model = crash.seed["model"]
    return Graph.from_json(model["graph"]) if model.get("source") == "graph" else None
