"""A small campaign on one known case, in a process of its own, because some inputs kill the process.

The last input that such a process told its parent of is the one that did it, if it does so again in another process.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.given import spec_of
from benchmarks.known_cases import EAGER, INDUCTOR, ORT, Case, table
from benchmarks.local import RNG_SEED, Local, Remembering, named, seed_for
from benchmarks.local_rerun import LocalReruns
from fuzzer.backends.session import State
from fuzzer.campaign import stream
from fuzzer.campaign.plan import run_seed
from fuzzer.campaign.stream import Stream
from fuzzer.crashes.replay import diagnosed_on
from fuzzer.diagnose import Label
from fuzzer.diagnose.engine import diagnose
from fuzzer.diagnose.finding import Finding
from fuzzer.diagnose.rerun import CannotRerun
from fuzzer.files import write_atomically
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.seeds.schema import Allow
from fuzzer.tensors import encode
from fuzzer.verify.examine import Bench, Examined, examine
from fuzzer.verify.screen import FloorScreen
from fuzzer.verify.verdict import Outcome

#: Seconds after which a case's process is given up, beside those of its diagnoses.
PATIENCE_S = 300.0
#: At most so many symptoms of a case are diagnosed.
MOST_DIAGNOSES = 6
#: What a process is about when it tells so.
DIAGNOSIS = "a diagnosis"


@dataclass
class Sighting:
    """The first mismatch of a symptom: at which execution, the label by symptom, and the one after reruns, with `?`."""

    execution: int
    symptom: str
    label: str
    proof: str = ""
    note: str = ""


@dataclass
class Hunt:
    """One case. `first` and `labelled_at` are numbers of executions, counted from 1; `labels` counts first labels.

    `sightings`: what was diagnosed, in order. `labelled_at`: where the label after reruns is the expected one (by
    symptom, where there were no reruns).
    """

    case: str
    target: str
    expected: str
    executions: int = 0
    first: int | None = None
    labelled_at: int | None = None
    labels: Counter[str] = field(default_factory=Counter)
    sightings: list[Sighting] = field(default_factory=list)
    recipe: dict[str, Any] | None = None
    seconds: float = 0.0
    note: str = ""

    @property
    def first_label(self) -> str:
        """The label of the first finding, with its `?`: what a campaign says before it knows the right answer."""
        return self.sightings[0].label if self.sightings else ""

    def saw(self, sighting: Sighting, recipe: dict[str, Any]) -> None:
        self.sightings.append(sighting)
        if self.labelled_at is None and sighting.label.rstrip("?") == self.expected:
            self.labelled_at, self.recipe = sighting.execution, recipe


@dataclass(frozen=True)
class Plan:
    """How to hunt: `diagnose_s` seconds of reruns for each symptom, 0 for none; `table_file` another table."""

    executions: int = 400
    rng_seed: int = 0
    how: str = "full"
    diagnose_s: float = 0.0
    table_file: str = ""


def target_of(case: Case) -> str:
    """ONNX Runtime where the case diverges there, else Inductor; where eager itself dies, ONNX Runtime beside it.

    A target that takes the module comes before one that refuses it.
    """
    taken = [target for target in case.targets if target not in case.refused] or case.targets
    if ORT in taken or EAGER in taken:
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

    def __init__(self, case: Case, folder: Path, plan: Plan, tell: Connection) -> None:
        self.seed = seed_of(case, folder)
        self.found = Hunt(case.name, target_of(case), case.label)
        self._case = case
        self._plan = plan
        self._tell = tell
        self._screen = FloorScreen()
        self.reference = Local(self.seed, EAGER, case.module(), named(case.ordinary()))
        self.target = Local(self.seed, self.found.target, case.module(), named(case.ordinary()))
        guide = stream.session_guide(self.reference, self.seed)  # type: ignore[arg-type]
        self._stream = Stream(self.seed, plan.rng_seed, stream.Search.named(plan.how), guide=guide)
        self.oracle = Remembering(self.seed, case.module(), named(case.ordinary()))

    def step(self, index: int) -> None:
        """One execution."""
        recipe = self._stream.recipe(index)
        rng_seed = run_seed(self._plan.rng_seed, index)
        sample = apply_recipe(self.seed, recipe)
        self.found.executions += 1
        self._tell.send(("running", EAGER, recipe.to_json(), self.found))
        reference = self.reference.run(sample, rng_seed=rng_seed, inside=self._stream.watched(index))
        self._tell.send(("running", self.found.target, recipe.to_json(), self.found))
        target = self.target.run(sample, rng_seed=rng_seed)
        self._stream.learn(index, reference)
        self._tell.send(("running", "the oracle", recipe.to_json(), self.found))
        bench = Bench(self.seed, self.reference, self.target, self.oracle)  # type: ignore[arg-type]
        seen = examine(bench, sample, reference, target, rng_seed=rng_seed, vacuity=None, screen=self._screen)
        if seen.verdict.outcome is Outcome.MISMATCH:
            self._note(seen, sample, recipe)

    def _note(self, seen: Examined, sample: dict[str, Tensor], recipe: Recipe) -> None:
        symptom = diagnosed_on(sample, self.found.target, seen).label
        self.found.first = self.found.first or self.found.executions
        new = symptom.name not in self.found.labels
        self.found.labels[symptom.name] += 1
        if not new or len(self.found.sightings) >= MOST_DIAGNOSES:
            return
        sighting = Sighting(self.found.executions, symptom.name, str(symptom))
        if self._plan.diagnose_s > 0:
            self._tell.send(("running", DIAGNOSIS, recipe.to_json(), self.found))
            self._prove(sighting, symptom, sample)
        self.found.saw(sighting, recipe.to_json())

    def _prove(self, sighting: Sighting, symptom: Label, sample: Mapping[str, Tensor]) -> None:
        ordinary = named(self._case.ordinary())
        rerun = LocalReruns(self.seed, EAGER, self.found.target, self._case.module, ordinary)
        try:
            again = rerun(sample)
        except CannotRerun as error:
            sighting.note = str(error)
            return
        if again.verdict.outcome is not Outcome.MISMATCH:
            sighting.note = "not seen again in sides prepared afresh"
            return
        finding = Finding(sample, again, symptom, self.found.target, ordinary, RNG_SEED)
        done = diagnose(finding, rerun, clock=time.monotonic, budget_s=self._plan.diagnose_s, mitigate=False)
        sighting.label = str(done.label)
        sighting.proof = next((t.changed for t in reversed(done.trials) if t.gone and done.label.confirmed), "")


def search(case: Case, plan: Plan, folder: str, tell: Connection) -> None:
    """The campaign of one case; it ends by sending ("done", …)."""
    loop = Search(case, Path(folder), plan, tell)
    if loop.target.state is not State.READY:
        loop.found.note = f"refused: {loop.target.reason.splitlines()[0][:200] if loop.target.reason else ''}"
        loop.found.labels["execution/unsupported"] += 1
        loop.found.first = 0
        loop.found.saw(Sighting(0, "execution/unsupported", "execution/unsupported?"), {})
        tell.send(("done", "", {}, loop.found))
        return
    for index in range(plan.executions):
        loop.step(index)
        if loop.found.labelled_at is not None:
            break
    tell.send(("done", "", {}, loop.found))


def repeat(case: Case, recipe: Mapping[str, Any], side: str, folder: str, tell: Connection) -> None:
    """Run one input on one side, and end by sending ("done", …)."""
    seed = seed_of(case, Path(folder))
    sample = apply_recipe(seed, Recipe.from_json(recipe))
    Local(seed, side, case.module(), named(case.ordinary())).run(sample, rng_seed=RNG_SEED)
    tell.send(("done", "", {}, Hunt(case.name, side, case.label)))


def _in_process(name: str, plan: Plan, folder: str, tell: Connection, side: str, recipe: Mapping[str, Any]) -> None:
    torch.set_num_threads(1)
    case = table(plan.table_file)[name]
    if side:
        repeat(case, recipe, side, folder, tell)
    else:
        search(case, plan, folder, tell)


@dataclass
class _Told:
    """The last thing that a process said, whether it ended by itself, and how."""

    said: tuple[str, str, dict[str, Any], Hunt] | None
    late: bool
    exitcode: int | None

    @property
    def died(self) -> bool:
        return not self.late and (self.said is None or self.said[0] != "done")


def _listen(name: str, plan: Plan, patience_s: float, side: str = "", recipe: Mapping[str, Any] | None = None) -> _Told:
    context = multiprocessing.get_context("forkserver")  # no fork of a process that may hold threads
    context.set_forkserver_preload(["benchmarks.known_search"])
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_in_process, args=(name, plan, folder, theirs, side, recipe or {}))
        process.start()
        theirs.close()
        told = _Told(None, False, None)
        deadline = time.monotonic() + patience_s
        while told.said is None or told.said[0] != "done":
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                told.late = True
                process.kill()
                break
            try:
                told.said = ours.recv()
            except EOFError:
                break
        process.join()
    told.exitcode = process.exitcode
    return told


def hunt(case: Case, plan: Plan, clock: Callable[[], float] = time.monotonic) -> Hunt:
    """Run one case. The death of its process is a finding, `execution/crash`, proven where it happens again."""
    started = clock()
    patience = PATIENCE_S + plan.diagnose_s * MOST_DIAGNOSES
    told = _listen(case.name, plan, patience)
    found = Hunt(case.name, target_of(case), case.label) if told.said is None else told.said[3]
    if told.late:
        found.note = f"given up after {patience:g} s"
    elif told.said is None:
        found.note = f"the process ended (exit {told.exitcode}) before it ran anything"
    elif told.died:
        _, doing, recipe, _ = told.said
        found.note = f"the process died (exit {told.exitcode}) in {doing}"
        if doing != DIAGNOSIS:  # what dies in a rerun is another finding, which nobody looked for
            label = "execution/crash"
            found.labels[label] += 1
            found.first = found.first or found.executions
            again = plan.diagnose_s > 0 and doing in (EAGER, found.target)
            proven = again and _listen(case.name, plan, PATIENCE_S, doing, recipe).died
            proof = "a fresh process" if proven else ""
            found.saw(Sighting(found.executions, label, label if proven else f"{label}?", proof), recipe)
    found.seconds = round(clock() - started, 1)
    return found
