"""How long tier 2 takes: `python -m benchmarks.activations [--json] [--target BACKEND]…`.

For each model and target, sessions are prepared, then one input is observed (`observe_finding`: both sides with and
without observation, float64, four runs under random rounding). That happens twice, each time in fresh processes: at
first with empty caches, where a compiler has to compile the module with its intermediate values as outputs
(`first_s`), and then with that on disk, as for every later finding on this model and target (`tier2_s`). `again_s` is
another input in the same processes. The input is an ordinary one, so `gap` is what benign rounding reaches on the way,
in noise floors; past the threshold it would be a false alarm.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fuzzer.backends.process import Worker
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


def seed_for(model: str, about: Mapping[str, Any]) -> Seed:
    """A seed with calibrated weights and one image. `about`: torchvision's `name`, the image's `size` in pixels, and
    the number of `classes` (10)."""
    arguments: dict[str, Any] = {"num_classes": about.get("classes", 10)}
    if about["name"].startswith("vit"):
        arguments["image_size"] = about["size"]
    built: dict[str, Any] = {"source": "library", "name": about["name"], "args": arguments}
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


def measure(model: str, target: str, folder: Path) -> dict[str, Any]:
    """One row; `folder` is an empty one, for the caches."""
    seed = seed_for(model, MODELS[model])
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    where = Where(folder, functools.partial(Worker, environment=environment))
    row: dict[str, Any] = {"model": model, "target": target}
    times: list[float] = []
    for draws in ((1,), (1, 2)):
        bench = fresh_bench(seed, "eager:cpu", target, where)
        try:
            for session in _sessions(bench):
                if session.prepare() is not State.READY:
                    return row | {"error": session.reason}
            for draw in draws:
                sample = base_sample(seed, draw)
                started = time.perf_counter()
                seen = observe_finding(bench, sample, rng_seed=0)
                times.append(time.perf_counter() - started)
        finally:
            close_bench(bench)
    gap = max((point.gap for point in seen.curve.points), default=math.nan)
    return row | {
        "first_s": round(times[0], 3),
        "tier2_s": round(times[1], 3),
        "again_s": round(times[2], 3),
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
    rows = []
    for model in models or MODELS:
        for target in targets:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(model, target, Path(folder)))
    if as_json:
        click.echo(json.dumps({"rows": rows}, indent=1))
        return
    for row in rows:
        click.echo("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
