"""How honest the oracle is: `python -m benchmarks.controls [--json] [--executions N] [--budget S] [--seeds FILE]…`.

Runs the controls (`harmless`) on the seeds' own streams of inputs and on ill-conditioned modules, the mutants on their
real outputs, and the table of known cases; times a screened execution and tier 2. All in this process, on one thread.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks import ill_conditioned
from benchmarks.given import Given, judge_table
from benchmarks.harmless import call
from benchmarks.known_cases import ALL
from benchmarks.local import Local
from benchmarks.mutants import LARGE, Caught, Large, Synthetic, hunt
from benchmarks.silence import Tally, run_all
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Answer
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model
from fuzzer.place import cache_folder
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seeds
from fuzzer.verify.examine import Bench, examine
from fuzzer.verify.screen import FloorScreen

ROOT = Path(__file__).resolve().parent.parent
#: A reference slower than this makes a seed heavy: a few hundred executions are enough for it.
HEAVY_S = 0.002


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


def controls_job(
    texts: list[tuple[dict[str, Any], str]], executions: int, heavy: int, rng_seed: int, budget_s: float, cache: Path
) -> list[Tally]:
    """What one process does: the streams of `rng_seed` of all seeds."""
    torch.set_num_threads(1)
    seeds = [Seed.model_validate(data).at(Path(base)) for data, base in texts]
    return run_all(
        seeds,
        executions,
        heavy=heavy,
        heavy_s=HEAVY_S,
        cache=cache,
        rng_seed=rng_seed,
        budget_s=budget_s,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )


def run_controls(
    seeds: list[Seed], executions: int, heavy: int, rng_seed: int, budget_s: float, cache: Path, jobs: int
) -> list[Tally]:
    """One tally for each seed and job; each job has a stream of its own."""
    texts = [(seed.model_dump(), str(seed.base)) for seed in seeds]
    shares = [(texts, executions // jobs, heavy // jobs, rng_seed + job, budget_s, cache) for job in range(jobs)]
    if jobs == 1:
        return controls_job(*shares[0])
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(controls_job, *share) for share in shares]
        return [tally for future in futures for tally in future.result()]


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


def tier2(cache: Path, targets: tuple[str, ...]) -> dict[str, float]:
    """Seconds of tier 2 by model: the slowest of `targets`."""
    from benchmarks.activations import MODELS, measure
    from fuzzer.backends.session import Where

    found: dict[str, float] = {}
    for model in MODELS:
        rows = [measure(model, target, Where(cache)) for target in targets]
        found[model] = max((row["tier2_s"] for row in rows if "tier2_s" in row), default=math.nan)
    return found


def report(
    tallies: list[Tally], mutants: Caught, given: Given, overhead: dict[str, Any], tier2_s: dict[str, float]
) -> dict[str, Any]:
    """The JSON object; see `benchmarks/README.md` for its keys."""
    executions = sum(tally.executions for tally in tallies)
    false = [vars(loud) for tally in tallies for loud in tally.false_reports]
    planted, caught = sum(mutants.planted.values()), sum(mutants.caught.values())
    return {
        "executions": executions,
        "false_reports": false,
        "false_rate": {"share": len(false) / max(executions, 1), "wilson": wilson(len(false), executions)},
        "near_ties": sum(tally.near_ties for tally in tallies),
        "kernel_faults": sum(len(tally.kernel_faults) for tally in tallies),
        "mutants": planted,
        "caught": {"count": caught, "share": caught / max(planted, 1), "wilson": wilson(caught, planted)},
        "missed": mutants.missed,
        "by_mutant": {name: [mutants.caught.get(name, 0), count] for name, count in sorted(mutants.planted.items())},
        "given": given.to_json(),
        "screen_overhead": overhead,
        "tier2_s": tier2_s,
        "by_seed": [_summary(tally) for tally in tallies],
    }


def _summary(tally: Tally) -> dict[str, Any]:
    """A tally with its near-ties and kernel faults as counts, and the first of each in full."""
    data = tally.to_json()
    data["false_reports"] = len(tally.false_reports)
    data["kernel_faults"] = len(tally.kernel_faults)
    data["kernel_faults_shown"] = [vars(loud) for loud in tally.kernel_faults[:2]]
    data["near_ties_shown"] = [vars(loud) for loud in tally.near_ties_shown[:2]]
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
@click.option("--executions", default=5000, show_default=True, help="Inputs times controls, over all seeds.")
@click.option("--heavy", default=300, show_default=True, help="At most so many for a seed slower than 2 ms.")
@click.option("--budget", "budget_s", default=600.0, show_default=True, help="Seconds for the controls.")
@click.option("--seeds", "paths", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--ill-conditioned/--no-ill-conditioned", "ill", default=True)
@click.option("--rng-seed", default=0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Processes for the controls.")
@click.option("--draws", default=2, show_default=True, help="Base inputs of each seed on which mutants are planted.")
@click.option("--given", "targets", multiple=True, default=ALL, help="Targets of the known cases.")
@click.option("--tier2", "tier2_targets", multiple=True, default=["onnxruntime:cpu", "aot_eager:cpu"])
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
    tier2_targets: tuple[str, ...],
) -> None:
    """Measure the oracle. Exits 1 where there is a false report or a missed mutant."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    cache = cache_folder()
    seeds = load_seeds(list(paths) or [ROOT / "seeds"])
    run = [*seeds, *(ill_conditioned.seeds(ROOT) if ill else [])]
    tallies = run_controls(run, executions, heavy, rng_seed, budget_s, cache, jobs)
    mutants = Caught()
    for model in [*(build_model(seed, cache) for seed in seeds), *synthetic_models()]:
        large = model.seed.name == "large"
        hunt(model, 1 if large else draws, mutants, ("one element moved", "two elements swapped") if large else None)
    given = judge_table(targets)
    overhead = {seed.name: screen_overhead(seed, cache) for seed in seeds}
    with tempfile.TemporaryDirectory() as folder:
        tier2_s = tier2(Path(folder), tier2_targets)
    found = report(tallies, mutants, given, overhead, tier2_s)
    found |= {"machine": machine(), "versions": versions(), "seconds": round(time.perf_counter() - started, 1)}
    click.echo(json.dumps(found, indent=1) if as_json else _table(found))
    sys.exit(1 if found["false_reports"] or found["missed"] else 0)


def _table(found: dict[str, Any]) -> str:
    given = found["given"]
    lines = [
        f"{found['executions']} executions of controls: {len(found['false_reports'])} false reports, "
        f"{found['near_ties']} near-ties, {found['kernel_faults']} faults of a kernel",
        f"{found['caught']['count']} of {found['mutants']} mutants caught",
        f"known cases: {given['flagged']} of {given['pairs']} pairs flagged, {given['raising_flagged']} of "
        f"{given['raising']} that raise; controls {given['controls_flagged']} of {given['controls']}, benign "
        f"{given['benign_flagged']} of {given['benign']}",
    ]
    for tally in found["by_seed"]:
        lines.append(
            f"  {tally['seed']}: {tally['executions']} executions, {tally['judged']} judged, "
            f"{tally['near_ties']} near-ties, {tally['false_reports']} false"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
