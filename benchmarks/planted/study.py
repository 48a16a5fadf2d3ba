"""All trials of a study, side by side over processes, stored as they end, so that a study that is cut off goes on."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.planted import backend
from benchmarks.planted.fault import Mechanism
from benchmarks.planted.faults import CONTROLS, FAULTS
from benchmarks.planted.rate import Rate, measure
from benchmarks.planted.trial import Trial, fault_named, run_trial
from fuzzer.errors import InputError
from fuzzer.plugins import PLUGINS

ARMS = ("full", "blind", "uniform", "seeds")


@dataclass(frozen=True)
class Scale:
    """How much is done. `rates`: inputs at most for the rate of a fault; `rate_s`: seconds of processor time at most.

    `followed`: trials a fault whose finding is reduced, for `follow_s` seconds at most, and labelled; `process_…` are
    the same for faults that kill, stop or swell their process. `control_trials`: of each control.
    """

    name: str
    budget: int
    trials: int
    arms: tuple[str, ...]
    rates: int
    rate_s: float
    followed: int
    follow_s: float
    process_trials: int
    process_followed: int
    control_trials: int


SCALES = {
    "smoke": Scale("smoke", 1000, 5, ("full", "uniform"), 20_000, 5.0, 1, 10.0, 1, 1, 5),
    "full": Scale("full", 5000, 20, ARMS, 100_000_000, 60.0, 10, 20.0, 20, 5, 10),
}

#: A unit of work: a trial (fault, arm, number), or the rate of a fault.
Job = tuple[str, str, int]
RATE = "rate"


@dataclass
class Record:
    """What a study has brought so far. `about`: scale, and machine."""

    about: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)

    def add(self, line: dict[str, Any]) -> None:
        """Take up a line of a file: a trial, a rate, or what the study is about."""
        if "trial" in line:
            self.trials.append(Trial.from_json(line["trial"]))
        elif "rate" in line:
            self.rates.append(Rate(**line["rate"]))
        else:
            self.about = line["about"]

    @property
    def done(self) -> set[Job]:
        trials: set[Job] = {(trial.fault, trial.arm, trial.number) for trial in self.trials}
        return trials | {(rate.fault, RATE, 0) for rate in self.rates}


def read(path: Path) -> Record:
    """The record in a file of `run`; a last line that was cut off is left out."""
    found = Record()
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            found.add(json.loads(line))
    return found


def jobs_of(scale: Scale, names: list[str], arms: tuple[str, ...]) -> list[Job]:
    """What belongs to a study, round by round: the trials of one number, all faults and arms. Rates follow the first.

    Base inputs are the same whatever the RNG seed, and what is wrong with every input needs no search: one trial each.
    """
    jobs: list[Job] = []
    for number in range(scale.trials):
        for name in names:
            for arm in arms:
                if number < _trials(scale, fault_named(name).mechanism, arm):
                    jobs.append((name, arm, number))
        if number == 0 and scale.rates:
            jobs += [(name, RATE, 0) for name in names if fault_named(name).mechanism not in _WITHOUT_SEARCH]
    return jobs


#: No fault to look for, and faults that are there on every input.
_WITHOUT_SEARCH = (Mechanism.CONTROL, Mechanism.INDUCTOR)


def _trials(scale: Scale, mechanism: Mechanism, arm: str) -> int:
    if mechanism in _WITHOUT_SEARCH and arm != "full":
        return 0
    if mechanism is Mechanism.INDUCTOR or arm == "seeds":
        return 1
    few = {Mechanism.PROCESS: scale.process_trials, Mechanism.CONTROL: scale.control_trials}
    return few.get(mechanism, scale.trials)


def whole_rounds(record: Record) -> int:
    """How many rounds, from the first on, have all their trials: comparisons rest on these alone.

    Of a round that was killed the trials that take long are missing, so that those that are there say too little.
    """
    if "trials" not in record.about:  # stored before this was told
        return 1 + max((trial.number for trial in record.trials), default=0)
    scale = replace(SCALES[record.about["scale"]], trials=record.about["trials"], rates=0)
    names = [name for name in all_names() if any(trial.fault == name for trial in record.trials)]
    arms = tuple(arm for arm in ARMS if any(trial.arm == arm for trial in record.trials))
    missing = set(jobs_of(scale, names, arms)) - record.done
    return min((number for _, _, number in missing), default=scale.trials)


def run(
    scale: Scale,
    names: list[str],
    arms: tuple[str, ...],
    jobs: int,
    *,
    store: Path | None,
    seconds: float,
    say: Callable[[str], None],
) -> Record:
    """Do what is not in `store` yet, in `jobs` processes, for about `seconds` at most; each end is written there.

    Raises InputError where `store` holds trials of another budget, or of another machine.
    """
    record = read(store) if store is not None and store.exists() else Record()
    here = {"budget": scale.budget, **machine()}
    for key, value in here.items():
        if record.about.get(key, value) != value:
            raise InputError(f"{store} holds trials with {key} {record.about[key]}, not {value}: take another file")
    record.about = {"scale": scale.name, "trials": scale.trials, **here}
    todo = [job for job in jobs_of(scale, names, arms) if job not in record.done]
    _mend(store)
    _write(store, {"about": record.about})
    ends = time.monotonic() + seconds
    for line in _ended(scale, todo, jobs, ends):
        record.add(line)
        _write(store, line)
        say(_told(line))
    left = len([job for job in todo if job not in record.done])
    record.about["left"] = left
    return record


def _ended(scale: Scale, todo: list[Job], jobs: int, ends: float) -> Iterator[dict[str, Any]]:
    """What jobs brought, as they end; with one process it is this one."""
    if jobs == 1:
        _begin()
        yield from (work(scale, job) for job in todo if time.monotonic() < ends)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as pool:
        waiting: dict[Future[dict[str, Any] | None], Job] = {}
        queue = iter(todo)
        while True:
            while len(waiting) < 2 * jobs and time.monotonic() < ends and (job := next(queue, None)) is not None:
                waiting[pool.submit(_in_time, scale, job, ends)] = job
            if not waiting:
                return
            future = next(as_completed(waiting))
            del waiting[future]
            if (line := future.result()) is not None:
                yield line


def _in_time(scale: Scale, job: Job, ends: float) -> dict[str, Any] | None:
    """None where it is too late to begin; what has begun is finished, so that no time limit drops what takes long."""
    return work(scale, job) if time.monotonic() < ends else None


def _begin() -> None:
    torch.set_num_threads(1)
    os.environ[PLUGINS] = backend.__name__  # workers must know the planted backends too
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all of it runs on the CPU; seeding a device each time would cost as much


def work(scale: Scale, job: Job) -> dict[str, Any]:
    """One job, as a line for the file."""
    name, arm, number = job
    if arm == RATE:
        return {"rate": measure(name, scale.rates, number, clock=time.process_time, seconds=scale.rate_s).to_json()}
    of_process = fault_named(name).mechanism is Mechanism.PROCESS
    followed = scale.process_followed if of_process else scale.followed
    follow = scale.follow_s if arm == "full" and number < followed else 0.0
    trial = run_trial(name, arm, number, scale.budget, clock=time.perf_counter, follow=follow)
    return {"trial": trial.to_json()}


def _mend(store: Path | None) -> None:
    """Cut off a last line that was not finished, so that the next one does not go on in it."""
    if store is not None and store.exists():
        data = store.read_bytes()
        os.truncate(store, data.rfind(b"\n") + 1)


def _write(store: Path | None, line: dict[str, Any]) -> None:
    if store is not None:
        with store.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _told(line: dict[str, Any]) -> str:
    if "rate" in line:
        return "{fault}: strikes {struck} of {executions} uniform inputs".format(**line["rate"])
    trial = line["trial"]
    found = f"found at {trial['detected_at']}" if trial["detected_at"] else f"not found in {trial['executions']}"
    return f"{trial['fault']} {trial['arm']} {trial['number']}: {trial['failed'] or found} ({trial['seconds']:.1f} s)"


def machine() -> dict[str, Any]:
    """Processor, cores and versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    return {
        "processor": model or platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def all_names() -> list[str]:
    return [*CONTROLS, *FAULTS]
