"""A small crash that the tests of storing and of triage share: max_pool2d drops a NaN on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzzer.crashes.crash import Crash, make_crash
from fuzzer.diagnose import provisional
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.verify.verdict import Blame, Difference, Kind, LeafStats, Outcome, Verdict

POOL = """from __future__ import annotations

import torch
from torch import nn


class Pool(nn.Module):
    def forward(self, x):
        return torch.nn.functional.max_pool2d(x, 2)
"""


def builder_seed(folder: Path, source: str = POOL, builder: str = "pool:Pool", **changes: Any) -> Seed:
    """A seed whose builder's file is in `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{builder.partition(':')[0]}.py").write_text(source)
    data: dict[str, Any] = {
        "name": "pool",
        "model": {"source": "builder", "path": ".", "builder": builder},
        "inputs": {"x": {"kind": "floats", "shape": [1, 1, 4, 4]}},
    }
    return Seed.model_validate(data | changes).at(folder)


def nan_image() -> Tensor:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    x[0, 0, 0, 1] = float("nan")
    return x


def nan_verdict() -> Verdict:
    difference = Difference(
        "$",
        Kind.NONFINITE,
        "NaN on the reference, 5.0 on the target",
        compared=4,
        mismatched=1,
        index=(0, 0, 0, 0),
        reference="nan",
        target="5.0",
        truth="nan",
        drift_reference=0.8,
        drift_target=3.1e4,
        blame=Blame.TARGET,
    )
    return Verdict(Outcome.MISMATCH, 4, 4, [difference], [LeafStats("$", 4, 3)], judged=True)


def pool_crash(seed: Seed, target: str = "onnxruntime:cpu", **fields: Any) -> Crash:
    x = nan_image()
    answer = F.max_pool2d(x, 2)
    diagnosis = provisional(nan_verdict(), {"$": answer}, {"$": answer.nan_to_num(5.0)}, None, {"x": x}, target)
    defaults: dict[str, Any] = {"recipe": Recipe(0), "original": {"x": x}}
    return make_crash(seed, target, nan_verdict(), diagnosis, {"x": x}, **(defaults | fields))
