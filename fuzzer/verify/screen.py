"""The screen: which elements are so close that judging them would be a waste.

It remembers, element by element, the smallest noise floor that the judge has measured for this seed, in itself and as
a share of the leaf's largest element, and lets half the judge's threshold of the smaller pass: what is nothing beside
1 may be all of an answer of 1e-7. Inputs whose floor is smaller than any before can slip through by at most that much,
which is why a sample of what passes is judged too.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.judge import THRESHOLD

_Key = tuple[str, tuple[int, ...]]


class FloorScreen:
    """Smallest noise floors seen, by leaf and shape; float64. Before the first, nothing is allowed but equality."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self._floors: dict[_Key, Tensor] = {}
        self._shares: dict[_Key, Tensor] = {}

    def allowance(self, path: str, reference: Tensor) -> Tensor | None:
        """How far each element may be off, float64, or None where nothing is known."""
        key = (path, tuple(reference.shape))
        floor = self._floors.get(key)
        if floor is None:
            return None
        if key in self._shares:
            floor = torch.minimum(floor, self._shares[key] * _largest(reference))
        return floor * (self._threshold / 2)

    def learn(self, floors: Mapping[str, Tensor], reference: Leaves) -> None:
        """Take in the floors that were measured on the input to which the reference gave these leaves."""
        for path, floor in floors.items():
            key = (path, tuple(floor.shape))
            self._floors[key] = _smaller(self._floors.get(key), floor)
            leaf = reference.get(path)
            largest = _largest(leaf) if isinstance(leaf, Tensor) else 0.0
            if largest > 0.0:  # zeros have no share
                self._shares[key] = _smaller(self._shares.get(key), floor / largest)


def _smaller(known: Tensor | None, floor: Tensor) -> Tensor:
    return floor if known is None else torch.minimum(known, floor)


def _largest(leaf: Tensor) -> float:
    """The largest finite magnitude, 0 where there is none."""
    sizes = leaf.detach().abs().to(torch.float64)
    sizes = sizes[torch.isfinite(sizes)]
    return float(sizes.max()) if sizes.numel() else 0.0
