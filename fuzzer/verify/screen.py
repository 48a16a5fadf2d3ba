"""The screen: which elements are so close that judging them would be a waste.

It remembers, element by element, the smallest noise floor that the judge has measured for this seed, and lets half the
judge's threshold of it pass. Inputs whose floor is smaller than any before can slip through by at most that much, which
is why a sample of what passes is judged too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fuzzer.verify.judge import THRESHOLD


class FloorScreen:
    """Smallest noise floors seen, by leaf and shape; float64. Before the first, nothing is allowed but equality."""

    def __init__(self, threshold: float = THRESHOLD) -> None:
        self._threshold = threshold
        self._floors: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def allowance(self, path: str, reference: Tensor) -> Tensor | None:
        floor = self._floors.get((path, tuple(reference.shape)))
        return None if floor is None else floor * (self._threshold / 2)

    def learn(self, floors: dict[str, Tensor]) -> None:
        for path, floor in floors.items():
            key = (path, tuple(floor.shape))
            known = self._floors.get(key)
            self._floors[key] = floor if known is None else torch.minimum(known, floor)
