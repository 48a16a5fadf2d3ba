"""The oracle, observed: float64 values and noise floors of what a model computes on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.backends.base import Sample
from fuzzer.backends.observe import movement, observe_eager
from fuzzer.backends.oracle import Oracle
from fuzzer.trees import Leaves

_TRUTH, _FLOOR, _NO_TRUTH = "truth:", "floor:", "no_truth"


class ObservingOracle(Oracle):
    """An oracle that also answers for the steps in between."""

    _observing = False

    def observe_variant(self, sample: Sample, variant: dict[str, Any]) -> Leaves:
        """`truth:NAME`, `floor:NAME` (the most that K perturbed runs moved each element), both float64; `no_truth`.

        `variant` is that of `run_variant`.
        """
        self._observing = True
        try:
            answer = self.run_variant(sample, variant)
        finally:
            self._observing = False
        leaves: Leaves = {}
        if "no_truth" in answer.get("truth", {}):
            leaves[_NO_TRUTH] = str(answer["truth"]["no_truth"])
        else:
            leaves |= {_TRUTH + name: value for name, value in answer["truth"].items()}
        floors = movement(answer["plain"], answer["draws"])
        return leaves | {_FLOOR + name: value for name, value in floors.items()}

    def _call(self, module: nn.Module, sample: Sample) -> Any:
        if not self._observing:
            return super()._call(module, sample)
        args, kwargs = self._model.call(sample)
        with torch.no_grad():
            seen = observe_eager(module, args, kwargs)
        return seen.values


def split(leaves: Leaves) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    """Truth by name, noise floors by name, and why there is no truth (empty where there is), from an oracle's reply."""
    truth, floors = (
        {path.removeprefix(head): leaf for path, leaf in leaves.items() if path.startswith(head)}
        for head in (_TRUTH, _FLOOR)
    )
    return _only_tensors(truth), _only_tensors(floors), str(leaves.get(_NO_TRUTH, ""))


def _only_tensors(leaves: Leaves) -> dict[str, Tensor]:
    return {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
