"""How fast a campaign runs: `python -m benchmarks.throughput [--json] [--inputs N] [--seed NAME]… [--cores N]`.

For each seed and target, a campaign over base inputs, with batches where the seed calls its samples independent and
without, beside a bare loop that runs the same forwards of reference and target one by one, in one process, on the same
cores. A ratio of 1 means that comparing, recording and talking to worker processes cost nothing that a second process
does not win back. Preparation is not counted, nor the first inputs.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.controls import machine, versions
from benchmarks.local import Local
from fuzzer.backends.registry import availability, parse
from fuzzer.backends.session import State
from fuzzer.campaign import Campaign, Options
from fuzzer.campaign.plan import run_seed
from fuzzer.campaign.stream import Search, Stream
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.place import cache_folder, surroundings
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seeds

#: Inputs at the beginning that are not timed: blocks have grown to their full size by then, and a compiler has seen it.
WARM_UP = 128


@dataclass(frozen=True)
class Rate:
    """Inputs a minute on one target. `batched` is None where the seed does not call its samples independent."""

    seed: str
    target: str
    bare: float
    unbatched: float
    batched: float | None


def bare_rate(seed: Seed, target: str, inputs: int, cache: Path | None, search: str) -> float:
    """Inputs a minute of a loop over reference and target. Raises RuntimeError where a side refuses the model."""
    sides = []
    for spec in (seed.reference, target):
        model = build_model(seed, cache)
        assert model.module is not None
        sides.append(Local(seed, spec, model.module, base_sample(seed, 0)))
    refused = [side.reason for side in sides if side.state is not State.READY]
    if refused:
        raise RuntimeError(refused[0])
    stream = Stream(seed, 0, Search.named(search))
    samples = [apply_recipe(seed, stream.recipe(index)) for index in range(inputs)]
    started = 0.0
    for index, sample in enumerate(samples):
        if index == WARM_UP:
            started = time.perf_counter()
        for side in sides:
            # as in a worker; `torch.manual_seed` also keeps a stack trace for every device that is not there
            torch.default_generator.manual_seed(run_seed(0, index))
            side.compute(sample)
    return 60.0 * (inputs - WARM_UP) / (time.perf_counter() - started)


def campaign_rate(seed: Seed, target: str, inputs: int, cache: Path, search: str) -> float:
    """Inputs a minute of a campaign on one target, from the WARM_UP-th on."""
    seen: list[tuple[float, int]] = []

    def watch(campaign: Campaign) -> None:
        if not seen or seen[-1][1] != campaign.executions:
            seen.append((time.perf_counter(), campaign.executions))

    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            out=Path(folder), max_execs=inputs, backends=(target,), search=search, confirm_s=0, reduce_s=0, private=True
        )
        campaign = Campaign([seed], options, surroundings(cache), watch=watch)
        ended = campaign.run()
    if ended.executions < inputs:
        raise RuntimeError("; ".join(entry["reason"] for entry in ended.targets if entry["reason"]) or "it ended early")
    timed = [(at, count) for at, count in seen if count >= WARM_UP]
    (first, before), (last, after) = timed[0], timed[-1]
    return 60.0 * (after - before) / (last - first)


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(math.log(value) for value in values) / len(values)) if values else None


def report(rates: Sequence[Rate], skipped: dict[str, str]) -> dict[str, Any]:
    """The JSON object: ratios are geometric means over seeds and targets, a campaign's rate over the bare loop's."""
    batched = [rate.batched / rate.bare for rate in rates if rate.batched is not None]
    return {
        "batched_ratio": geometric_mean(batched),
        "unbatched_ratio": geometric_mean([rate.unbatched / rate.bare for rate in rates]),
        "rates": [asdict(rate) for rate in rates],
        "skipped": skipped,
    }


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--inputs", default=1024, show_default=True, help="For each target; the first 128 are not timed.")
@click.option("--seed", "names", multiple=True, help="Default: digits and transformer, those under 5 ms a forward.")
@click.option("--target", "targets", multiple=True, default=("aot_eager:cpu", "onnxruntime:cpu"), show_default=True)
@click.option("--search", type=click.Choice(["full", "blind", "uniform", "seeds"]), default="seeds", show_default=True)
@click.option("--cores", default=2, show_default=True, help="How many cores both may use.")
def main(as_json: bool, inputs: int, names: tuple[str, ...], targets: tuple[str, ...], search: str, cores: int) -> None:
    """Measure the rate of campaigns over the shipped seeds."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    os.sched_setaffinity(0, allowed)
    torch.set_num_threads(1)
    cache = cache_folder(None)
    chosen = [seed for seed in load_seeds([Path("seeds")]) if seed.name in (names or ("digits", "transformer"))]
    rates, skipped = [], {}
    for seed in chosen:
        for target in targets:
            where = f"{seed.name} on {target}"
            try:
                reason = availability(parse(target))
                if reason is not None:
                    raise RuntimeError(reason)
                alone = seed.model_copy(update={"independent": None}).at(seed.base)
                bare = bare_rate(seed, target, inputs, cache, search)
                unbatched = campaign_rate(alone, target, inputs, cache, search)
                batched = None if seed.independent is None else campaign_rate(seed, target, inputs, cache, search)
            except RuntimeError as error:  # shown as what it is: this pair was not measured
                skipped[where] = str(error)
                continue
            rates.append(Rate(seed.name, target, bare, unbatched, batched))
            print(f"{where}: {rates[-1]}", file=sys.stderr)
    found = report(rates, skipped) | {
        "inputs": inputs,
        "search": search,
        "cores": len(allowed),
        "machine": machine(),
        "versions": versions(),
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    for rate in rates:
        with_batches = "" if rate.batched is None else f", {rate.batched:.0f} in batches"
        click.echo(
            f"{rate.seed} on {rate.target}: {rate.bare:.0f} bare, {rate.unbatched:.0f} alone{with_batches} a minute"
        )
    click.echo(f"ratios: batched {found['batched_ratio']}, unbatched {found['unbatched_ratio']}")


if __name__ == "__main__":
    main()
