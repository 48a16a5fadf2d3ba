"""How long tier 2 takes: `python -m benchmarks.activations [--json] [--target BACKEND]…`.

For each model and target, sessions are prepared, then one input is observed (`observe_finding`: both sides with and
without observation, float64, four runs under random rounding). The input is an ordinary one, so `gap` is what benign
rounding reaches on the way, in noise floors; past the threshold it would be a false alarm.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from fuzzer.backends.session import State, Where
from fuzzer.crashes.replay import close_bench, fresh_bench
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Bench
from fuzzer.verify.observation import observe_finding

_VIT = {"image_size": 32, "patch_size": 8, "num_layers": 4, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
MODELS: dict[str, dict[str, Any]] = {
    "resnet18@64": {"name": "resnet18", "size": 64},
    "mobilenet_v3_small@64": {"name": "mobilenet_v3_small", "size": 64},
    "vit_small@32": {"name": "VisionTransformer", "size": 32},
}


def seed_for(model: str) -> Seed:
    """The seed of one of MODELS: calibrated weights, one image."""
    about = MODELS[model]
    built: dict[str, Any] = {"source": "library", "name": about["name"], "args": {"num_classes": 10}}
    if about["name"] == "VisionTransformer":
        arguments = {**_VIT, "num_classes": 10}
        built = {
            "source": "builder",
            "builder": "torchvision.models.vision_transformer:VisionTransformer",
            "args": arguments,
        }
    built["weights"] = {"kind": "calibrated", "seed": 0}
    size = about["size"]
    inputs = {"image": {"kind": "image", "shape": [1, 3, size, size]}}
    data = {"name": model.replace("@", "-"), "model": built, "inputs": inputs, "deadline_s": 60}
    return Seed.model_validate(data).at(Path.cwd())


def measure(model: str, target: str, where: Where) -> dict[str, Any]:
    """One row: the seconds of the first and of a second observation in the same processes."""
    seed = seed_for(model)
    bench = fresh_bench(seed, "eager:cpu", target, where)
    row: dict[str, Any] = {"model": model, "target": target}
    try:
        for session in _sessions(bench):
            if session.prepare() is not State.READY:
                return row | {"error": session.reason}
        sample = base_sample(seed, 1)
        times = []
        for _ in range(2):
            started = time.perf_counter()
            seen = observe_finding(bench, sample, rng_seed=0)
            times.append(time.perf_counter() - started)
    finally:
        close_bench(bench)
    gap = max((point.gap for point in seen.curve.points), default=math.nan)
    return row | {
        "tier2_s": round(times[0], 3),
        "again_s": round(times[1], 3),
        "aligned": len(seen.curve.points),
        "not_observed": len(seen.lost),
        "changed": list(seen.changed),
        "status": seen.status,
        "gap": round(gap, 3) if math.isfinite(gap) else str(gap),
        "sentence": seen.sentence(),
    }


def _sessions(bench: Bench) -> list[Any]:
    return [session for session in (bench.reference, bench.target, bench.oracle) if session is not None]


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="Default: all.")
@click.option("--target", "targets", multiple=True, default=["onnxruntime:cpu", "aot_eager:cpu", "inductor:cpu"])
def main(as_json: bool, models: tuple[str, ...], targets: tuple[str, ...]) -> None:
    """Measure tier 2."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(m, t, Where(Path(folder))) for m in models or MODELS for t in targets]
    if as_json:
        click.echo(json.dumps({"rows": rows}, indent=1))
        return
    for row in rows:
        click.echo("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
