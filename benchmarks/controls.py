"""How honest the oracle is: `python -m benchmarks.controls [--json] [--executions N] [--jobs J] [--budget S]`.

Runs the controls (`harmless`) on the seeds' own streams of inputs and on ill-conditioned modules, the mutants on their
real outputs, and the table of known cases; times a screened execution and tier 2. The work is cut into tasks that run
side by side in processes of one thread each. `--state FILE` keeps what each task found as it ends, so that a run which
its budget cuts short goes on where it stopped; `--merge FILE…` reports on the tasks of several such files together.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks import ill_conditioned
from benchmarks.given import Given
from benchmarks.harmless import call
from benchmarks.known_cases import ALL
from benchmarks.local import Local
from benchmarks.mutants import Caught
from benchmarks.silence import Tally
from benchmarks.tasks import ROOT, Found, planned, run_tasks
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Answer
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.place import cache_folder
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seeds
from fuzzer.verify.examine import Bench, examine
from fuzzer.verify.screen import FloorScreen


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share, at 95 % by default (Wilson, 1927)."""
    if trials == 0:
        return 0.0, 1.0
    share = hits / trials
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low, high = (middle - half) / scale, (middle + half) / scale
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # the share itself, past what rounding did


def screen_overhead(seed: Seed, cache: Path, repeats: int = 20) -> dict[str, float]:
    """Seconds of a screened execution (both forwards and the comparison) and of the two bare forwards, medians."""
    model = build_model(seed, cache)
    assert model.module is not None
    sample = base_sample(seed, 0)
    side = Local(seed, "eager:cpu", model.module, sample)
    oracle = Local(seed, ORACLE, build_model(seed, cache).module or model.module, sample)
    bench = Bench(seed, side, side, oracle)  # type: ignore[arg-type]
    screen = FloorScreen()

    def execution(judge: bool = False) -> None:
        answers: list[Answer] = [side.run(sample, rng_seed=0) for _ in range(2)]
        examine(bench, sample, *answers, rng_seed=0, vacuity=None, screen=screen, always_judge=judge)

    execution(judge=True)
    bare = _median(lambda: (call(model, sample), call(model, sample)), repeats)
    screened = _median(execution, repeats)
    return {"bare_s": bare, "screened_s": screened, "overhead": screened / bare - 1}


def _median(function: Any, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return sorted(times)[repeats // 2]


def tier2(model: str, targets: tuple[str, ...]) -> dict[str, Any]:
    """Seconds of tier 2 on `model`, by target: the `first` time, and in fresh processes once `compiled`."""
    from benchmarks.activations import measure

    found = {}
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            row = measure(model, target, Path(folder))
        found[target] = row.get("error") or {"first": row["first_s"], "compiled": row["tier2_s"]}
    return found


def run_timings(
    seeds: Sequence[Seed], targets: tuple[str, ...], found: Found, state: Path | None, cache: Path, ends_at: float
) -> None:
    """Time what has to be timed alone, where `found` lacks it."""
    from benchmarks.activations import MODELS

    work = {f"overhead/{seed.name}": partial(screen_overhead, seed, cache) for seed in seeds}
    work |= {f"tier2/{model}": partial(tier2, model, targets) for model in MODELS}
    for key, function in work.items():
        if key in found.tasks or time.monotonic() >= ends_at:
            continue
        found.tasks[key] = function()
        if state is not None:
            found.write(state)


def report(found: Found) -> dict[str, Any]:
    """The JSON object; see `benchmarks/README.md` for its keys."""
    tallies: dict[str, Tally] = {}
    mutants, given = Caught(), Given()
    timings: dict[str, dict[str, Any]] = {"overhead": {}, "tier2": {}}
    for key, result in sorted(found.tasks.items()):
        kind, name = key.split("/", 1)
        if kind == "controls":
            tally = Tally.from_json(result)
            tallies.setdefault(tally.seed, Tally(tally.seed)).add(tally)
        elif kind == "mutants":
            mutants.add(Caught(**result))
        elif kind == "given":
            given.add(Given(**result))
        else:
            timings[kind][name] = result
    executions = sum(tally.executions for tally in tallies.values())
    false = [vars(loud) for tally in tallies.values() for loud in tally.false_reports]
    planted, caught = sum(mutants.planted.values()), sum(mutants.caught.values())
    return {
        "executions": executions,
        "false_reports": false,
        "false_rate": {"share": len(false) / max(executions, 1), "wilson": wilson(len(false), executions)},
        "near_ties": sum(tally.near_ties for tally in tallies.values()),
        "over_tolerance": sum(tally.over_tolerance for tally in tallies.values()),
        "kernel_faults": sum(tally.kernel_faults for tally in tallies.values()),
        "kernel_fault_groups": _groups(tallies.values(), "kernel_faults"),
        "reference_faults": sum(tally.reference_faults for tally in tallies.values()),
        "reference_fault_groups": _groups(tallies.values(), "reference_faults"),
        "mutants": planted,
        "caught": {"count": caught, "share": caught / max(planted, 1), "wilson": wilson(caught, planted)},
        "missed": mutants.missed,
        "by_mutant": {name: [mutants.caught.get(name, 0), count] for name, count in sorted(mutants.planted.items())},
        "given": given.to_json(),
        "screen_overhead": timings["overhead"],
        "tier2_s": timings["tier2"],
        "by_seed": [_summary(tally) for tally in tallies.values()],
        "died": found.died,
        "skipped": found.skipped,
        "unfinished": found.unfinished,
        "machine": found.machine,
        "versions": found.versions,
        "seconds": round(found.seconds, 1),
    }


def _groups(tallies: Iterable[Tally], name: str) -> list[dict[str, Any]]:
    """The faults of this name by the operator that lost it and how, most frequent first, with one of each in full."""
    groups: dict[str, dict[str, Any]] = {}
    for tally in tallies:
        for what, count in getattr(tally, f"{name}_by_group").items():
            group = groups.setdefault(what, {"group": what, "count": 0, "seeds": {}, "example": None})
            group["count"] += count
            group["seeds"][tally.seed] = count
            shown = [vars(loud) for loud in getattr(tally, f"{name}_shown") if loud.group == what]
            group["example"] = group["example"] or (shown[0] if shown else None)
    return sorted(groups.values(), key=lambda group: -group["count"])


def _summary(tally: Tally) -> dict[str, Any]:
    """A tally without what the report shows elsewhere."""
    data = tally.to_json()
    data["false_reports"] = len(tally.false_reports)
    del data["kernel_faults_shown"], data["reference_faults_shown"]
    return data


def machine() -> str:
    """The processor and how many cores this process may use, without the machine's name."""
    name = platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    return f"{torch.get_num_threads()} thread of {name}"


def versions() -> dict[str, str]:
    import onnxruntime
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--executions", default=5000, show_default=True, help="Inputs times controls, over all light seeds.")
@click.option("--heavy", default=300, show_default=True, help="As many for each seed slower than 5 ms.")
@click.option("--budget", "budget_s", default=600.0, show_default=True, help="Seconds for everything.")
@click.option("--seeds", "paths", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--ill-conditioned/--no-ill-conditioned", "ill", default=True)
@click.option("--rng-seed", default=0, show_default=True, help="Give two runs that are to be merged other ones.")
@click.option("--jobs", default=1, show_default=True, help="Processes.")
@click.option("--draws", default=2, show_default=True, help="Base inputs of each seed on which mutants are planted.")
@click.option("--given", "targets", multiple=True, default=ALL, help="Targets of the known cases.")
@click.option("--no-given", is_flag=True, help="Leave the table of known cases out.")
@click.option("--timings/--no-timings", default=True, help="Time the screen and tier 2 first, alone.")
@click.option("--tier2", "tier2_targets", multiple=True, default=["onnxruntime:cpu", "aot_eager:cpu", "inductor:cpu"])
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="Keep results here, and go on from it.")
@click.option("--merge", "merged", multiple=True, type=click.Path(exists=True, path_type=Path), help="Run nothing.")
def main(
    as_json: bool,
    executions: int,
    heavy: int,
    budget_s: float,
    paths: tuple[Path, ...],
    ill: bool,
    rng_seed: int,
    jobs: int,
    draws: int,
    targets: tuple[str, ...],
    no_given: bool,
    timings: bool,
    tier2_targets: tuple[str, ...],
    state: Path | None,
    merged: tuple[Path, ...],
) -> None:
    """Measure the oracle. Exits 1 where there is a false report or a missed mutant."""
    torch.set_num_threads(1)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # one core a process
    started = time.monotonic()
    found = Found.read(state) if state is not None and state.exists() else Found()
    for path in merged:
        found.merge(Found.read(path))
    if not merged:
        cache = cache_folder()
        loaded = load_seeds(list(paths) or [ROOT / "seeds"])
        seeds = [seed for seed in loaded if seed.unavailable is None]
        found.skipped = {seed.name: seed.unavailable for seed in loaded if seed.unavailable is not None}
        for name, reason in found.skipped.items():
            click.echo(f"{name}: left out: {reason}", err=True)
        ends_at = started + budget_s
        found.died = []
        found.machine, found.versions = f"{jobs} of {machine()}", versions()
        if timings:
            run_timings(seeds, tier2_targets, found, state, cache, ends_at)
        hard = ill_conditioned.seeds(ROOT) if ill else []
        wanted = () if no_given else targets
        tasks = planned(seeds, hard, executions, heavy, rng_seed=rng_seed, draws=draws, targets=wanted, cache=cache)
        run_tasks(tasks, found, state, cache=cache, jobs=jobs, ends_at=ends_at)
        found.seconds += time.monotonic() - started
        if state is not None:
            found.write(state)
    told = report(found)
    click.echo(json.dumps(told, indent=1) if as_json else _table(told))
    sys.exit(1 if told["false_reports"] or told["missed"] else 0)


def _table(found: dict[str, Any]) -> str:
    given = found["given"]
    lines = [
        f"{found['executions']} executions of controls: {len(found['false_reports'])} false reports, "
        f"{found['near_ties']} near-ties, {found['over_tolerance']} over a seed's own tolerance, "
        f"{found['kernel_faults']} faults of a kernel, "
        f"{found['reference_faults']} more of the reference",
        f"{found['caught']['count']} of {found['mutants']} mutants caught",
        f"known cases: {given['flagged']} of {given['pairs']} pairs flagged, {given['raising_flagged']} of "
        f"{given['raising']} that raise; controls {given['controls_flagged']} of {given['controls']}, benign "
        f"{given['benign_flagged']} of {given['benign']}",
    ]
    groups = found["kernel_fault_groups"] + found["reference_fault_groups"]
    lines += [f"  {group['count']} times {group['group']}" for group in groups]
    for tally in found["by_seed"]:
        lines.append(
            f"  {tally['seed']}: {tally['executions']} executions, {tally['judged']} judged, "
            f"{tally['near_ties']} near-ties, {tally['false_reports']} false"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
