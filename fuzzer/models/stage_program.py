"""`python -m fuzzer.models.stage_program`: captures the inputs of a seed's stages, in a process of its own.

Standard input: `{"seed": …, "base": …, "cache": …, "stages": {name: folder}}` as JSON. For each stage the base samples
are written as `0.safetensors`, … into its folder, and its seed as `seed.json` last. The last line of standard output is
JSON: why a stage could not be captured, by its name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from fuzzer.errors import ModelError, XbfuzzError
from fuzzer.files import write_atomically
from fuzzer.inputs import base_sample
from fuzzer.models.build import DRAWS, build_model
from fuzzer.models.model import Model
from fuzzer.models.stage import captured, stage_seed
from fuzzer.seeds import Seed, seed_from_json
from fuzzer.seeds.load import seed_to_json
from fuzzer.tensors import encode


def main() -> None:
    asked = json.load(sys.stdin)
    seed = seed_from_json(asked["seed"], Path(asked["base"]))
    cache = None if asked["cache"] is None else Path(asked["cache"])
    torch.set_num_threads(1)
    failed: dict[str, str] = {}
    try:
        model = build_model(seed, cache)
        if model.module is None:
            raise ModelError(f"the file is no PyTorch module: {model.no_module}")
    except XbfuzzError as error:
        failed = dict.fromkeys(asked["stages"], " ".join(str(error).split()))
    else:
        for name, folder in asked["stages"].items():
            try:
                write_stage(model, seed, name, Path(folder))
            except XbfuzzError as error:
                failed[name] = " ".join(str(error).split())
    print(json.dumps(failed), flush=True)


def write_stage(model: Model, seed: Seed, name: str, folder: Path) -> None:
    """Capture one stage into `folder`. Raises ModelError."""
    samples = [base_sample(seed, draw) for draw in range(DRAWS)]
    made, found = stage_seed(seed, name, captured(model, seed.stages[name].module, samples))
    folder.mkdir(parents=True, exist_ok=True)
    for i, sample in enumerate(found):
        write_atomically(folder / f"{i}.safetensors", encode(sample))
    write_atomically(folder / "seed.json", json.dumps(seed_to_json(made) | {"samples": len(found)}))


if __name__ == "__main__":
    main()
