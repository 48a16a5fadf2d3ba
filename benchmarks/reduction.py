"""`python -m benchmarks.reduction [--json] [--fault NAME]`: what reduction makes of findings whose cause is known.

For each planted fault an input is searched on which it strikes, as a campaign would, and the finding is reduced. Faults
that spare the process are reduced in it, so that the figures are those of the search and not of starting processes.
PyTorch's own fault in Inductor's ReLU is reduced in processes of its own, in a three-layer MLP, beside PyTorch's
accuracy minifier on the same module.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.planted import trial as trials
from benchmarks.planted.faults import FAULTS
from benchmarks.planted.study import _begin, machine
from fuzzer.backends.process import Worker, worker_environment
from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.crashes.reduced import Reduction
from fuzzer.crashes.reduction import reduce_crash, write_reduced
from fuzzer.crashes.replay import close_bench, examine_crash, fresh_bench, prepare_bench
from fuzzer.crashes.store import load_crash
from fuzzer.inputs import base_sample
from fuzzer.seeds.load import seed_from_text
from fuzzer.verify.examine import examine

#: Executions in which a fault must have struck, and seconds a reduction may take.
EXECUTIONS, BUDGET_S = 5000, 60.0
RELU = "planted:cpu?fault=relu_accuracy"
MLP = """name: mlp
model: {source: builder, path: ., builder: 'benchmarks.reduction:three_layers'}
inputs: {x: {kind: floats, shape: [n, 8]}}
dims: {n: {size: 4, min: 1}}
backends: ['planted:cpu?fault=relu_accuracy']
"""
#: What PyTorch's minifier is given: the same MLP, compiled with the same fault, its repro level for wrong answers.
_MINIFIED = """import torch
from torch import nn
torch._inductor.config.cpp.inject_relu_bug_TESTING_ONLY = "accuracy"
torch._dynamo.config.repro_after = "aot"
torch._dynamo.config.repro_level = 4
torch._dynamo.config.debug_dir_root = {folder!r}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
with torch.no_grad():
    torch.compile(model)(torch.randn(4, 8))
"""


def three_layers() -> torch.nn.Module:
    """The module of `relu`; the one that PyTorch's minifier gets is the same."""
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    return torch.nn.Sequential(linear(8, 16), relu(), linear(16, 16), relu(), linear(16, 4))


@dataclass
class Case:
    """One fault: sizes before and after, and what the reduction cost. `failed`: why there is no figure.

    `slipped`: what is left differs for another reason than the planted fault, by the fault's own canary. `put_aside`:
    candidates that failed otherwise.
    """

    fault: str
    outcome: str = ""
    elements: tuple[int, int] = (0, 0)
    filled: tuple[int, int] = (0, 0)
    nodes: tuple[int, int] | None = None
    tests: int = 0
    seconds: float = 0.0
    slipped: bool = False
    put_aside: int = 0
    finished: bool = False
    whole: str = ""
    operators: list[str] = field(default_factory=list)
    failed: str = ""


class _Kept(trials._Run):
    """A trial that ends with the crash in place of what becomes of it."""

    crash: Crash | None = None

    def _confirm(self, index: int, sample: Mapping[str, torch.Tensor], found: Any) -> None:
        self.crash = trials.crash_of(self.lane.seed, self.target.backend, sample, found, self.lane.rng_seed(index))
        self.trial.detected_at = max(self.trial.executions, 1)


def crash_with(name: str) -> Crash:
    """A finding of the planted fault `name`, by a campaign's own search. Raises RuntimeError where there is none."""
    lane = trials._lane(FAULTS[name], "full", 0, EXECUTIONS)
    lane.vacuity, lane.vetted = trials._vacuity(name), True
    target = lane.targets[0].session
    try:
        if target is None:
            raise RuntimeError(lane.targets[0].unavailable)
        for session in (lane.reference, lane.oracle):
            session.prepare()
        kept = _Kept(trials.Trial(name, "full", 0, EXECUTIONS), FAULTS[name], lane, target, time.monotonic, 0.0)
        kept.all()
    finally:
        lane.close()
    if kept.crash is None:
        raise RuntimeError("refuses to compile: no input to reduce" if kept.trial.after else "not found")
    return kept.crash


def case_of(name: str, found: Reduction) -> Case:
    model = found.crash.seed["model"]
    nodes = model["graph"]["nodes"] if model.get("source") == "graph" else []
    return Case(
        name,
        str(found.outcome),
        (found.before.elements, found.after.elements),
        (found.before.filled, found.after.filled),
        found.nodes,
        found.tests,
        round(found.seconds, 2),
        put_aside=sum(slip.count for slip in found.slips.values()),
        finished=found.finished,
        whole=found.whole,
        operators=[node[1] for node in nodes],
    )


def planted(name: str) -> Case:
    """One planted fault found and reduced."""
    try:
        crash = crash_with(name)
    except Exception as error:  # one fault that cannot be had is a line of the table, not the end of it
        return Case(name, failed=" ".join(str(error).split())[:200])
    where = trials.where_for(FAULTS[name])
    found = reduce_crash(crash, where, budget_s=BUDGET_S)
    return replace(case_of(name, found), slipped=not _strikes(found, where))


def _strikes(found: Reduction, where: Where) -> bool:
    """Whether the planted fault changes an answer on what is left, read from its files: the canary says so.

    Inside Inductor there is no canary; there the sides' difference stands for it.
    """
    with tempfile.TemporaryDirectory() as folder:
        crash = load_crash(write_reduced(Path(folder), found))
        bench = fresh_bench(seed_of(crash), crash.reference, crash.target, where)
        try:
            if prepare_bench(bench) is not None:
                return False
            answer = bench.target.run(crash.inputs, rng_seed=crash.rng_seed)  # the first: some faults strike once
            canary = bench.target.evidence.get("canary")
            if canary:
                return bool(canary["triggered"])
            return answer.leaves is None or bool(examine_crash(crash, bench).verdict.differences)
        finally:
            close_bench(bench)


def relu() -> dict[str, Any]:
    """The injected fault in a three-layer MLP, each side in a process of its own.

    `nodes` and `elements` of what is left; `seconds` from the finding to its confirmed reduction, `search_s` of the
    search alone, `wall_s` with everything that led to the finding.
    """
    seed = seed_from_text(MLP, Path(__file__).resolve().parents[1])
    where = Where(None, Worker)
    began = time.monotonic()
    bench = fresh_bench(seed, seed.reference, RELU, where)
    try:
        refused = prepare_bench(bench)
        if refused is not None:
            return {"failed": refused.reason}
        sample = base_sample(seed, 0)
        answers = bench.reference.run(sample), bench.target.run(sample)
        examined = examine(bench, sample, *answers, rng_seed=0, vacuity=None, screen=None, always_judge=True)
        crash = trials.crash_of(seed, RELU, sample, examined, 0)
        started = time.monotonic()
        found = reduce_crash(crash, where, budget_s=BUDGET_S, bench=bench)
    finally:
        close_bench(bench)
    ended = time.monotonic()
    case = asdict(case_of("relu_accuracy in an MLP", found))
    return {
        "nodes": found.nodes[1] if found.nodes is not None else None,
        "elements": found.after.elements,
        "seconds": round(ended - started, 2),
        "search_s": round(found.seconds, 2),
        "wall_s": round(ended - began, 2),
        **{key: case[key] for key in ("outcome", "tests", "finished", "put_aside", "whole", "operators")},
    }


def minifier() -> dict[str, Any]:
    """PyTorch's accuracy minifier on the same module and fault: size of its repro, and seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "mlp.py"
        script.write_text(_MINIFIED.format(folder=folder))
        _run(script, folder)
        launchers = sorted(Path(folder).rglob("minifier_launcher.py"))
        if not launchers:
            return {"failed": "PyTorch wrote no minifier_launcher.py", "seconds": round(time.monotonic() - began, 2)}
        said = _run(launchers[-1], folder)
        repros = [*Path(folder).rglob("repro.py")]
        seconds = round(time.monotonic() - began, 2)
        if not repros:
            return {"failed": f"no repro.py: {said[-200:]}", "seconds": seconds}
        text = repros[-1].read_text()
    forward = text[text.index("def forward") : text.index("mod = Repro()")]
    shapes = [eval(shape) for shape in re.findall(r"reader\.tensor\(\w+, (\([^)]*\))", text)]  # PyTorch's own literals
    elements = sum(int(torch.Size(shape).numel()) for shape in shapes)
    return {"nodes": forward.count("torch.ops."), "elements": elements, "seconds": seconds}


def _run(script: Path, folder: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=worker_environment(), capture_output=True, text=True, timeout=900
    )
    return done.stdout + done.stderr


def report(names: Sequence[str], *, compared: bool) -> dict[str, Any]:
    """All figures as JSON values."""
    cases = []
    for name in names:
        cases.append(planted(name))
        click.echo(_line(cases[-1]), err=True)
    done = [case for case in cases if not case.failed]
    nodes = [case.nodes[1] for case in done if case.nodes is not None]
    return {
        "machine": machine(),
        "cases": [asdict(case) for case in cases],
        "median_elements": statistics.median([case.elements[1] for case in done]) if done else None,
        "median_filled": statistics.median([case.filled[1] for case in done]) if done else None,
        "median_nodes": statistics.median(nodes) if nodes else None,
        "slips": sum(case.slipped for case in done),
        "put_aside": sum(case.put_aside for case in done),
        "median_seconds": statistics.median([case.seconds for case in done]) if done else None,
        "relu_fault": _loaded(relu) if compared else None,
        "minifier": _loaded(minifier) if compared else None,
    }


def _loaded(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A measurement with the load of the machine: the mean number of running tasks, before and after."""
    before = os.getloadavg()[0]
    return measure() | {"load": [round(before, 1), round(os.getloadavg()[0], 1)]}


def _line(case: Case) -> str:
    if case.failed:
        return f"{case.fault:<20} {case.failed}"
    nodes = f"{case.nodes[0]} → {case.nodes[1]}" if case.nodes is not None else f"whole: {case.whole}"
    inside = f"{case.elements[0]} ({case.filled[0]}) → {case.elements[1]} ({case.filled[1]})"
    aside = f"{case.put_aside} aside{', SLIPPED' if case.slipped else ''}"
    return f"{case.fault:<20} {inside:<24} nodes {nodes}, {case.tests} tests, {case.seconds} s, {aside}"


@click.command()
@click.option("--fault", "names", multiple=True, type=click.Choice(sorted(FAULTS)), help="Only these; repeatable.")
@click.option("--relu/--no-relu", "compared", default=True, help="The MLP, and PyTorch's minifier beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here too.")
def main(names: tuple[str, ...], compared: bool, as_json: bool, out: Path | None) -> None:
    """Reduce findings of planted faults, and PyTorch's own ReLU fault beside its minifier."""
    _begin()
    found = report(list(names) or list(FAULTS), compared=compared)
    text = json.dumps(found, indent=1, default=str)
    if out is not None:
        out.write_text(text + "\n")
    if as_json:
        click.echo(text)


if __name__ == "__main__":
    main()
