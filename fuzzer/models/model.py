"""A model as backends receive it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fuzzer.seeds import Seed
from fuzzer.trees import fill


@dataclass(frozen=True)
class Model:
    """A module in eval mode without gradients; `onnx` is the file where the seed's model is one.

    `module` is None for an ONNX file only: where it has no torch module, which `no_module` says why.
    """

    seed: Seed
    module: nn.Module | None
    onnx: Path | None = None
    no_module: str = ""

    def call(self, sample: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments of `forward` for `sample`, as the seed's call template lays them out."""
        if self.onnx is not None:  # a file takes its inputs by name, whatever the template
            return tuple(sample[name] for name in self.seed.inputs), {}
        template = self.seed.arguments
        if isinstance(template, Mapping) and set(template) == {"args", "kwargs"}:
            filled = fill(template, sample)
            return tuple(filled["args"]), dict(filled["kwargs"])
        return tuple(fill(template, sample)), {}
