"""How much of the known is found: `python -m benchmarks.known [--json] [--executions N] [--case NAME]…`.

For each diverging case of the table, a small campaign: a seed whose base inputs are the case's ordinary ones, all
mutators, a corpus fed by the reference's features, up to N executions on one target. It ends once a mismatch bears
the table's label. Each case runs in a process of its own, because some inputs kill the process: then the last input
told to the parent is the one that did it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.controls import machine, versions
from benchmarks.given import spec_of
from benchmarks.known_cases import EAGER, INDUCTOR, ORT, Case, Kind, by_name, cases
from benchmarks.local import Local, Remembering, named, seed_for
from fuzzer.backends.session import State
from fuzzer.campaign import stream
from fuzzer.campaign.plan import run_seed
from fuzzer.campaign.stream import Stream
from fuzzer.crashes.replay import diagnosed_on
from fuzzer.files import write_atomically
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.seeds.schema import Allow
from fuzzer.tensors import encode
from fuzzer.verify.examine import Bench, Examined, examine
from fuzzer.verify.screen import FloorScreen
from fuzzer.verify.verdict import Outcome

#: Seconds after which a case's process is given up.
PATIENCE_S = 300.0


@dataclass
class Hunt:
    """One case. `first` and `labelled_at` are numbers of executions, counted from 1; `labels` counts first labels."""

    case: str
    target: str
    expected: str
    executions: int = 0
    first: int | None = None
    labelled_at: int | None = None
    labels: Counter[str] = field(default_factory=Counter)
    recipe: dict[str, Any] | None = None
    note: str = ""


def target_of(case: Case) -> str:
    """ONNX Runtime where the case diverges there, else Inductor; where eager itself dies, ONNX Runtime beside it."""
    if ORT in case.targets or EAGER in case.targets:
        return spec_of(case, ORT)
    return INDUCTOR


def seed_of(case: Case, folder: Path) -> Seed:
    """A seed that starts from the ordinary inputs, written to `folder`, and lets mutators do whatever there is."""
    inputs = case.ordinary()
    write_atomically(folder / "ordinary.safetensors", encode(named(inputs)))
    plain = seed_for(inputs, dynamic=case.dynamic)
    specs = {
        name: spec.model_copy(update={"files": ["ordinary.safetensors"], "key": name})
        for name, spec in plain.inputs.items()
    }
    allow = Allow(nonfinite=True, out_of_range_integers=True, empty=True)
    dims = {name: dim.model_copy(update={"size": len(inputs[0])}) for name, dim in plain.dims.items()}
    return plain.model_copy(update={"name": case.name, "inputs": specs, "dims": dims, "allow": allow}).at(folder)


class Search:
    """The loop of one case, in the process that may die. `tell` says what is about to run."""

    def __init__(self, case: Case, folder: Path, rng_seed: int, how: stream.Search) -> None:
        self.seed = seed_of(case, folder)
        self.found = Hunt(case.name, target_of(case), case.label)
        self._rng_seed = rng_seed
        self._screen = FloorScreen()
        self.reference = Local(self.seed, EAGER, case.module(), named(case.ordinary()))
        self.target = Local(self.seed, self.found.target, case.module(), named(case.ordinary()))
        guide = stream.session_guide(self.reference, self.seed)  # type: ignore[arg-type]
        self._stream = Stream(self.seed, rng_seed, how, guide=guide)
        self.oracle = Remembering(self.seed, case.module(), named(case.ordinary()))

    def step(self, index: int, tell: Connection) -> None:
        """One execution."""
        recipe = self._stream.recipe(index)
        rng_seed = run_seed(self._rng_seed, index)
        sample = apply_recipe(self.seed, recipe)
        self.found.executions += 1
        tell.send(("running", EAGER, recipe.to_json(), self.found))
        reference = self.reference.run(sample, rng_seed=rng_seed, inside=self._stream.watched(index))
        tell.send(("running", self.found.target, recipe.to_json(), self.found))
        target = self.target.run(sample, rng_seed=rng_seed)
        self._stream.learn(index, reference)
        tell.send(("running", "the oracle", recipe.to_json(), self.found))
        bench = Bench(self.seed, self.reference, self.target, self.oracle)  # type: ignore[arg-type]
        seen = examine(bench, sample, reference, target, rng_seed=rng_seed, vacuity=None, screen=self._screen)
        if seen.verdict.outcome is Outcome.MISMATCH:
            self._note(seen, sample, recipe)

    def _note(self, seen: Examined, sample: dict[str, torch.Tensor], recipe: Recipe) -> None:
        label = str(diagnosed_on(sample, self.found.target, seen).label).rstrip("?")
        self.found.labels[label] += 1
        self.found.first = self.found.first or self.found.executions
        if label == self.found.expected:
            self.found.labelled_at, self.found.recipe = self.found.executions, recipe.to_json()


def search(name: str, executions: int, rng_seed: int, how: str, folder: str, tell: Connection) -> None:
    """What the process of one case does; it ends by sending ("done", …)."""
    torch.set_num_threads(1)
    case = by_name(name)
    loop = Search(case, Path(folder), rng_seed, stream.Search.named(how))
    if loop.target.state is not State.READY:
        loop.found.note = f"refused: {loop.target.reason.splitlines()[0][:200] if loop.target.reason else ''}"
        loop.found.labels["execution/unsupported"] += 1
        loop.found.first = 0
        if case.label == "execution/unsupported":
            loop.found.labelled_at = 0
        tell.send(("done", "", {}, loop.found))
        return
    for index in range(executions):
        loop.step(index, tell)
        if loop.found.labelled_at is not None:
            break
    tell.send(("done", "", {}, loop.found))


def hunt(case: Case, executions: int, rng_seed: int, how: str = "full") -> Hunt:
    """Run one case in a process of its own. Its death is a finding: `execution/crash`."""
    context = multiprocessing.get_context("forkserver")  # no fork of a process that may hold threads
    context.set_forkserver_preload(["benchmarks.known"])
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=search, args=(case.name, executions, rng_seed, how, folder, theirs))
        process.start()
        theirs.close()
        said: tuple[str, str, dict[str, Any], Hunt] | None = None
        deadline = time.monotonic() + PATIENCE_S
        while (said is None or said[0] != "done") and ours.poll(max(0.0, deadline - time.monotonic())):
            try:
                said = ours.recv()
            except EOFError:
                break
        late = time.monotonic() >= deadline
        if late:
            process.kill()
        process.join()
    found = Hunt(case.name, target_of(case), case.label) if said is None else said[3]
    if said is not None and said[0] != "done" and not late:
        label = "execution/crash"
        found.note = f"the process died (exit {process.exitcode}) in {said[1]}"
        found.labels[label] += 1
        found.first = found.first or found.executions
        if label == found.expected:
            found.labelled_at, found.recipe = found.executions, said[2]
    elif late:
        found.note = f"given up after {PATIENCE_S:g} s"
    elif said is None:
        found.note = f"the process ended (exit {process.exitcode}) before it ran anything"
    return found


def report(hunts: list[Hunt]) -> dict[str, Any]:
    """The JSON object: `found` are cases with any mismatch, `labelled` those with one that bears the table's label."""
    return {
        "cases": len(hunts),
        "found": sum(h.first is not None for h in hunts),
        "labelled": sum(h.labelled_at is not None for h in hunts),
        "missed": [h.case for h in hunts if h.first is None],
        "otherwise_labelled": {
            h.case: [h.expected, dict(h.labels)] for h in hunts if h.first is not None and h.labelled_at is None
        },
        "hunts": [asdict(replace(h, labels=dict(h.labels))) for h in hunts],  # type: ignore[arg-type]
    }


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--executions", default=400, show_default=True, help="At most, for each case.")
@click.option("--rng-seed", default=0, show_default=True)
@click.option("--search", "how", type=click.Choice(stream.SEARCHES), default="full", show_default=True)
@click.option("--case", "names", multiple=True, help="Default: every case that diverges.")
def main(as_json: bool, executions: int, rng_seed: int, how: str, names: tuple[str, ...]) -> None:
    """Search for the known divergences."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    chosen = [case for case in cases(Kind.DIVERGES) if not names or case.name in names]
    hunts = []
    for case in chosen:
        hunts.append(hunt(case, executions, rng_seed, how))
        last = hunts[-1]
        print(f"{last.case} {last.labelled_at or last.first} {dict(last.labels)} {last.note}", file=sys.stderr)
    found = report(hunts)
    found |= {
        "search": how,
        "machine": machine(),
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(f"{found['found']} of {found['cases']} cases found, {found['labelled']} with the table's label")
    for name in found["missed"]:
        click.echo(f"  missed: {name}")


if __name__ == "__main__":
    main()
