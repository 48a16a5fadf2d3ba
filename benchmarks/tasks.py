"""The pieces of work of `benchmarks.controls`, which run side by side and are kept one by one."""

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.given import judge_table
from benchmarks.harmless import call, controls_of
from benchmarks.known_cases import CASES
from benchmarks.local import Computed
from benchmarks.mutants import LARGE, Caught, Large, Synthetic, hunt
from benchmarks.silence import forward_seconds, run_window
from fuzzer.campaign.plan import PLAIN_INPUTS
from fuzzer.files import write_atomically
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_from_json, seed_to_json

ROOT = Path(__file__).resolve().parent.parent
#: A reference slower than this makes a seed heavy: a few hundred executions are enough for it.
HEAVY_S = 0.005
#: Inputs in one task: of a light seed, of a heavy one.
LIGHT_INPUTS, HEAVY_INPUTS = 150, 3
#: Streams that the runs of one `rng_seed` may use, so that those of another are other ones.
STREAMS = 1000
#: Seconds past the end that a task may take to notice it.
GRACE_S = 60.0
#: Cases of the table in one task.
CASES_A_TASK = 8


@dataclass(frozen=True)
class Task:
    """One piece of work. `key` names it in the state file; `seed` is a seed with the folder its paths start from."""

    key: str
    seed: tuple[dict[str, Any], str] | None = None
    inputs: int = 0
    rng_seed: int = 0
    first: int = 0
    draws: int = 0
    target: str = ""
    cases: tuple[int, int] = (0, 0)

    @property
    def kind(self) -> str:
        return self.key.split("/", 1)[0]


@dataclass
class Found:
    """What the tasks found, by key, and which did not end; `machine` and `versions` are those of the last run.

    `skipped`: seeds that could not run there, with the reason. `unfinished`: how many tasks the budget left undone.
    """

    tasks: dict[str, Any] = field(default_factory=dict)
    died: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    unfinished: int = 0
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def read(cls, path: Path) -> Found:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(vars(self)).encode())

    def _has(self, seed: str) -> bool:
        return any(key.split("/")[1] == seed for key in self.tasks)

    def merge(self, other: Found) -> None:
        """Take the tasks of `other`; of one that both have, the one with more executions, or else the later one."""
        for key, result in other.tasks.items():
            mine = self.tasks.get(key)
            if mine is None or result.get("executions", 0) >= mine.get("executions", 0):
                self.tasks[key] = result
        self.died += [line for line in other.died if line not in self.died]
        self.unfinished += other.unfinished
        self.skipped = {name: why for name, why in (self.skipped | other.skipped).items() if not self._has(name)}
        self.machine, self.versions = self.machine or other.machine, self.versions or other.versions
        self.seconds += other.seconds


def synthetic_models() -> list[Model]:
    """The two modules of `mutants`, with the seed that asks for signed zeros."""
    base = {"model": {"source": "builder", "builder": "benchmarks.mutants:Synthetic", "path": "."}}
    small = Seed.model_validate(
        base
        | {
            "name": "synthetic",
            "signed_zero": True,
            "inputs": {"x": {"kind": "floats", "shape": [4, 64], "range": [-2, 2]}},
        }
    )
    large = Seed.model_validate(base | {"name": "large", "inputs": {"x": {"kind": "floats", "shape": [LARGE]}}})
    return [Model(small.at(ROOT), Synthetic().eval()), Model(large.at(ROOT), Large().eval())]


def planned(
    examples: Sequence[Seed],
    ill: Sequence[Seed],
    executions: int,
    heavy: int,
    *,
    rng_seed: int,
    draws: int,
    targets: Iterable[str],
    cache: Path,
) -> list[Task]:
    """The tasks, those that take longest first. Light seeds share `executions`, each heavy one has `heavy`.

    Mutants are planted in the outputs of `examples` alone.
    """
    seeds = [*examples, *ill]
    texts = {seed.name: (seed_to_json(seed), str(seed.base)) for seed in seeds}
    slow = {seed.name for seed in seeds if _seconds(seed, cache) > HEAVY_S}
    light = [seed.name for seed in seeds if seed.name not in slow]
    share = math.ceil(executions / max(len(light), 1))
    tasks = []
    applying = {seed.name: controls_of(seed) for seed in seeds}
    for name in [*sorted(slow), *light]:
        size, inputs = (HEAVY_INPUTS, heavy) if name in slow else (LIGHT_INPUTS, share)
        for k in range(math.ceil(inputs / (size * applying[name]))):
            # windows of one stream for a heavy seed, of which few inputs are run; a stream of its own each for others
            stream = rng_seed * STREAMS
            first, stream = (PLAIN_INPUTS + (k - 1) * size, stream) if name in slow and k else (0, stream + k)
            tasks.append(Task(f"controls/{name}/{rng_seed}/{k}", texts[name], size, stream, first))
    if draws:
        tasks += [Task(f"mutants/{seed.name}", texts[seed.name], draws=draws) for seed in examples]
        tasks += [Task("mutants/synthetic", draws=draws), Task("mutants/large", draws=1)]
    for target in targets:
        for low in range(0, len(CASES), CASES_A_TASK):
            tasks.append(Task(f"given/{target}/{low}", target=target, cases=(low, low + CASES_A_TASK)))
    return tasks


def _seconds(seed: Seed, cache: Path) -> float:
    model = build_model(seed, cache)
    return forward_seconds(Computed("", lambda sample: call(model, sample)), base_sample(seed, 0), time.perf_counter)


def run_task(task: Task, cache: Path, ends_at: float) -> dict[str, Any] | None:
    """The task's result as JSON; None where the time is over before it starts. `ends_at`: of `time.monotonic`."""
    torch.set_num_threads(1)
    if time.monotonic() >= ends_at:
        return None
    seed = None if task.seed is None else seed_from_json(task.seed[0], Path(task.seed[1]))
    if task.kind == "controls":
        assert seed is not None
        tally = run_window(
            seed,
            task.inputs,
            rng_seed=task.rng_seed,
            first=task.first,
            cache=cache,
            over=lambda: time.monotonic() >= ends_at,
        )
        return tally.to_json()
    if task.kind == "mutants":
        caught = Caught()
        small, large = synthetic_models()
        model = build_model(seed, cache) if seed is not None else large if task.key == "mutants/large" else small
        hunt(model, task.draws, caught, ("one element moved", "two elements swapped") if model is large else None)
        return vars(caught)
    return judge_table([task.target], CASES[slice(*task.cases)]).to_json()


def run_tasks(
    tasks: Sequence[Task], found: Found, state: Path | None, *, cache: Path, jobs: int, ends_at: float
) -> None:
    """Run what `found` lacks, `jobs` at a time, and keep each result in `found` and in the file `state`.

    A task whose process dies, or is not done `GRACE_S` after the end, is named in `found.died`; the others go on.
    """
    left = [task for task in tasks if not _whole(found.tasks.get(task.key), task)]
    started = time.monotonic()
    processes = _Processes()
    with ThreadPoolExecutor(jobs) as threads:
        futures = {threads.submit(processes.run, task, cache, ends_at): task for task in left}
        unfinished = {task.key for task in left}
        try:
            for future in as_completed(futures, timeout=max(ends_at - started, 0.0) + GRACE_S):
                unfinished.discard(futures[future].key)
                _keep(futures[future], future, found, state)
                if len(unfinished) % 20 == 0:
                    print(
                        f"{len(unfinished)} tasks left, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
                    )
        except TimeoutError:
            found.died += sorted(f"{key}: not done {GRACE_S:g} s after the end" for key in unfinished)
            threads.shutdown(wait=False, cancel_futures=True)
        finally:
            processes.close()
            found.unfinished = sum(not _whole(found.tasks.get(task.key), task) for task in tasks)


def _keep(task: Task, future: Future[dict[str, Any] | None], found: Found, state: Path | None) -> None:
    try:
        result = future.result()
    except BrokenProcessPool:
        found.died.append(f"{task.key}: its process died")
        print(found.died[-1], file=sys.stderr, flush=True)
        return
    if result is None:
        return
    found.merge(Found({task.key: result}))
    if state is not None:
        found.write(state)
    for loud in result.get("false_reports") or result.get("missed") or result.get("wrong") or ():
        print(loud, file=sys.stderr, flush=True)


class _Processes:
    """A process for each thread that asks: one that dies takes no other thread's task with it."""

    def __init__(self) -> None:
        self._of_thread = threading.local()
        self._all: list[ProcessPoolExecutor] = []

    def run(self, task: Task, cache: Path, ends_at: float) -> dict[str, Any] | None:
        """Raises BrokenProcessPool where the process dies."""
        pool = getattr(self._of_thread, "pool", None)
        if pool is None:
            pool = self._of_thread.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            self._all.append(pool)
        try:
            result: dict[str, Any] | None = pool.submit(run_task, task, cache, ends_at).result()
        except BrokenProcessPool:
            self._of_thread.pool = None
            raise
        return result

    def close(self) -> None:
        """End all processes, also those in the middle of a task."""
        for pool in self._all:
            children = list((pool._processes or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.kill()


def _whole(result: Mapping[str, Any] | None, task: Task) -> bool:
    return result is not None and (task.kind != "controls" or result["inputs"] >= task.inputs)
