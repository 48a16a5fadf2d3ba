"""How far apart noise and faults are, in noise floors: `python -m benchmarks.floor [--json] [--inputs N]`.

For each model and input, the same model computed in other ways (the controls) and with small faults, each measured as
the judge does: the largest gap between the sides, or the largest distance of a side from float64 where that is less,
element by element, in floors. The judge's threshold must lie above every benign one and below every fault. The same is
told for more and fewer runs under random rounding (K), with what a run costs. How small a step of one element shows is
a matter of the model: `moved` tells it.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.activations import seed_for
from benchmarks.controls import machine, versions
from benchmarks.harmless import CONTROLS, Sample, call
from benchmarks.local import Local
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.rounding import each_tensor
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model
from fuzzer.place import cache_folder
from fuzzer.seeds import Seed
from fuzzer.verify.examine import DRAWS
from fuzzer.verify.judge import THRESHOLD, OracleAnswer
from fuzzer.verify.noise import noise_floor
from fuzzer.verify.ulp import ulp

#: Model → pixels of its image.
MODELS = {"resnet18": 64, "mobilenet_v3_small": 64, "squeezenet1_1": 64, "vit_b_16": 32}
#: Runs under random rounding that are compared.
RUNS = (1, 2, 4, 8, 16, 32)
#: Shares of the output's standard deviation by which one element is moved.
MOVED = (1e-4, 1e-3, 1e-2)


@dataclass
class Apart:
    """Of one model, by name: the largest of each benign way, the smallest of each fault, in floors, at each K.

    `moved`, by step: the distances of each element of each input, were it the one that is moved, at K as judged.
    Seconds are medians: of a forward, of a float64 run, and of a run under random rounding.
    """

    model: str
    inputs: int = 0
    benign: dict[int, dict[str, float]] = field(default_factory=dict)
    faults: dict[int, dict[str, float]] = field(default_factory=dict)
    moved: dict[float, list[Tensor]] = field(default_factory=dict)
    forward_s: float = 0.0
    truth_s: float = 0.0
    draw_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        at = DRAWS
        return {
            "model": self.model,
            "inputs": self.inputs,
            "benign": _rounded(self.benign[at]),
            "faults": _rounded(self.faults[at]),
            "moved": {f"{step:g}": _steps(torch.cat(apart)) for step, apart in self.moved.items()},
            "by_runs": {
                k: {
                    "benign": _short(max(self.benign[k].values())),
                    "fault": _short(min(self.faults[k].values())),
                    "seconds": _short(self.truth_s + k * self.draw_s),
                }
                for k in sorted(self.benign)
            },
            "forward_s": _short(self.forward_s),
            "truth_s": _short(self.truth_s),
            "draw_s": _short(self.draw_s),
        }


def _steps(apart: Tensor) -> dict[str, float]:
    """The least and the median distance, and the share of the elements at which the judge would speak."""
    over = float((apart > THRESHOLD).double().mean())
    return {"least": _short(float(apart.min())), "median": _short(float(apart.median())), "over": round(over, 4)}


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: _short(value) for name, value in values.items()}


class Tf32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products and convolutions on operands of ten bits of fraction, as a GPU's TF32 takes them, summed in float32."""

    _PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "convolution"))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        short = func.overloadpacket.__name__ in self._PRODUCTS
        return func(*(each_tensor(ten_bits, args) if short else args), **(kwargs or {}))


def ten_bits(value: Tensor) -> Tensor:
    """A float32 tensor rounded to ten bits of fraction, ties away from zero; others as they are."""
    if value.dtype != torch.float32:
        return value
    return ((value.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def in_tf32(model: Model, sample: Sample) -> Tensor:
    with Tf32():  # type: ignore[no-untyped-call]
        found: Tensor = call(model, sample)
    return found


def in_dtype(model: Model, sample: Sample, dtype: torch.dtype) -> Tensor:
    assert model.module is not None
    short = Model(model.seed, copy.deepcopy(model.module).to(dtype))
    found: Tensor = call(short, {name: x.to(dtype) if x.is_floating_point() else x for name, x in sample.items()})
    return found.float()


def top_two_swapped(output: Tensor) -> Tensor:
    """The two largest of each row in each other's place."""
    best = output.topk(2, -1)
    return output.scatter(-1, best.indices, best.values.flip(-1))


def floors_apart(reference: Tensor, target: Tensor, oracle: OracleAnswer) -> Tensor:
    """Element by element, what the judge's threshold is held against. Float64."""
    assert oracle.truth is not None
    floor, y = noise_floor("$", oracle), oracle.truth["$"]
    assert floor is not None
    assert isinstance(y, Tensor)
    unit = floor + ulp(y, torch.float32)
    gap, drift = (
        (target.double() - reference.double()).abs(),
        torch.maximum(*((x.double() - y).abs() for x in (reference, target))),
    )
    return torch.minimum(gap, drift) / unit


def faults_of(model: Model, sample: Sample, output: Tensor) -> dict[str, Tensor]:
    """The output with each fault."""
    return {
        "the top two swapped": top_two_swapped(output),
        "TF32": in_tf32(model, sample),
        "float16": in_dtype(model, sample, torch.float16),
        "bfloat16": in_dtype(model, sample, torch.bfloat16),
    }


def measure(name: str, inputs: int, cache: Path, clock: Callable[[], float] = time.perf_counter) -> Apart:
    """All distances of one model, over `inputs` base inputs."""
    seed: Seed = seed_for(name, {"name": name, "size": MODELS[name], "classes": 1000})
    model = build_model(seed, cache)
    assert model.module is not None
    oracle = Local(seed, ORACLE, copy.deepcopy(model.module), base_sample(seed, 0))
    controls = {c.name: c.build(Model(seed, copy.deepcopy(model.module))) for c in CONTROLS}
    found = Apart(name)
    seconds: dict[str, list[float]] = {"forward": [], "truth": [], "all": []}
    for draw in range(inputs):
        sample = base_sample(seed, draw)
        timed = partial(_timed, clock)
        output: Tensor = timed(seconds["forward"], call, model, sample)
        timed(seconds["truth"], oracle.run, sample, rng_seed=draw, kind="truth")
        runs = {"kind": "judge", "draws": max(RUNS), "amplitude": 1}
        answer = timed(seconds["all"], oracle.run, sample, rng_seed=draw, **runs)
        everything = OracleAnswer.from_leaves(answer.leaves or {})
        benign = {n: run(sample) for n, run in controls.items() if run is not None}
        faulty = faults_of(model, sample, output)
        for k in RUNS:
            told = replace(everything, draws=everything.draws[:k])
            most, least = found.benign.setdefault(k, {}), found.faults.setdefault(k, {})
            for n, other in benign.items():
                most[n] = max(most.get(n, 0.0), float(floors_apart(output, other, told).amax()))
            for n, other in faulty.items():
                least[n] = min(least.get(n, float("inf")), float(floors_apart(output, other, told).amax()))
        told = replace(everything, draws=everything.draws[:DRAWS])
        for step in MOVED:  # all elements at once here, each standing for itself
            apart = floors_apart(output, output + step * output.std(), told)
            found.moved.setdefault(step, []).append(apart.flatten())
        found.inputs += 1
    found.forward_s, found.truth_s, total = (sorted(s)[len(s) // 2] for s in seconds.values())
    found.draw_s = max(total - found.truth_s - found.forward_s, 0.0) / max(RUNS)
    return found


def _in_a_child(name: str, inputs: int) -> Apart:
    """`measure` in a process of its own, whose memory goes with it: a ViT needs gigabytes."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_alone, name, inputs).result()


def _alone(name: str, inputs: int) -> Apart:
    torch.set_num_threads(1)
    print(f"{name}…", file=sys.stderr, flush=True)
    return measure(name, inputs, cache_folder())


def _timed(
    clock: Callable[[], float], seconds: list[float], function: Callable[..., Any], *args: Any, **named: Any
) -> Any:
    started = clock()
    found = function(*args, **named)
    seconds.append(clock() - started)
    return found


def report(rows: list[Apart]) -> dict[str, Any]:
    """All models, and the threshold's margin: how many times it is above what is benign, and below what is not."""
    benign = max(max(row.benign[DRAWS].values()) for row in rows)
    fault = min(min(row.faults[DRAWS].values()) for row in rows)
    return {
        "threshold": THRESHOLD,
        "runs": DRAWS,
        "largest_benign": _short(benign),
        "smallest_fault": _short(fault),
        "margin": {"above_benign": _short(THRESHOLD / benign), "below_faults": _short(fault / THRESHOLD)},
        "models": [row.to_json() for row in rows],
    }


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Default: all.")
@click.option("--inputs", default=4, show_default=True, help="Base inputs of each model.")
def main(as_json: bool, models: tuple[str, ...], inputs: int) -> None:
    """Measure the margins of the judge's threshold. Exits 1 where it has none."""
    torch.set_num_threads(1)
    told = report([_in_a_child(name, inputs) for name in models or MODELS])
    told |= {"machine": machine(), "load": os.getloadavg()[0], "versions": versions()}
    click.echo(json.dumps(told, indent=1) if as_json else _table(told))
    raise SystemExit(0 if told["largest_benign"] < THRESHOLD < told["smallest_fault"] else 1)


def _table(told: Mapping[str, Any]) -> str:
    lines = [
        f"benign up to {told['largest_benign']} floors, faults from {told['smallest_fault']}; the threshold is "
        f"{told['threshold']:g}, over {told['runs']} runs"
    ]
    for row in told["models"]:
        lines.append(f"{row['model']}: forward {row['forward_s']} s, each run {row['draw_s']} s")
        lines += [f"  {name}: {value}" for part in ("benign", "faults") for name, value in row[part].items()]
        lines += [f"  one element moved by {step} of the spread: {at}" for step, at in row["moved"].items()]
        lines += [f"  {k} runs: {at}" for k, at in row["by_runs"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
