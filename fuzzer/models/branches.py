"""Residual branches of a calibrated network are made weak, as those of trained ones are.

Where every branch weighs as much as what it is added to, a deep random network is chaotic: a rounding error grows at
each block, and after fifty layers a thousandth of the output's spread drowns in the noise. Training starts from weak
branches (Goyal et al., arXiv 1706.02677; Fixup, 1901.09321), and so does calibration: BatchNorm's output that is added
to something else is scaled down, by its weight and bias.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

#: What a branch weighs beside what it is added to.
WEIGHT = 0.25

_SUMS = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)


class Branches:
    """Which tensors are outputs of which norm, and which norms have been scaled; one for all calls of a module."""

    def __init__(self) -> None:
        self._outputs = WeakTensorKeyDictionary()
        self._weak: set[int] = set()

    def saw(self, norm: nn.Module, output: Any) -> None:
        """To be called with each output of each norm."""
        scalable = isinstance(getattr(norm, "weight", None), Tensor) and isinstance(getattr(norm, "bias", None), Tensor)
        if isinstance(output, Tensor) and scalable and id(norm) not in self._weak:
            self._outputs[output] = (norm, output._version)

    def added(self, left: Any, right: Any) -> None:
        """To be called before two values are added: weakens the one that is a norm's output, where the other is not.

        Where both are, one is the block's shortcut, and nothing tells which.
        """
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
            return
        found = [(value, norm) for value in (left, right) if (norm := self._norm(value)) is not None]
        if len(found) != 1:
            return
        value, norm = found[0]
        del self._outputs[value]
        value.mul_(WEIGHT)
        if id(norm) not in self._weak:
            self._weak.add(id(norm))
            for parameter in (norm.weight, norm.bias):
                assert isinstance(parameter, Tensor)
                parameter.mul_(WEIGHT)

    def _norm(self, value: Tensor) -> nn.Module | None:
        norm, version = self._outputs.get(value, (None, 0))  # type: ignore[no-untyped-call]
        return norm if value._version == version else None  # else something, such as an in-place ReLU, came after


class WeakBranches(TorchFunctionMode):
    """Tells `branches` of every addition that a module makes."""

    def __init__(self, branches: Branches) -> None:
        super().__init__()
        self._branches = branches

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _SUMS and len(args) == 2 and not kwargs:
            self._branches.added(*args)
        return func(*args, **(kwargs or {}))
