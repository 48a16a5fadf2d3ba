"""The screen: which elements are so close that judging them would be a waste.

It remembers, element by element, the smallest noise floor that the judge has measured for this seed, in itself and as
a share of the leaf's largest element, and lets half the judge's threshold of the smaller pass: what is nothing beside
1 may be all of an answer of 1e-7. Inputs whose floor is smaller than any before can slip through by at most that much,
which is why a sample of what passes is judged too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.tensors import same_bits
from fuzzer.trees import Leaf, Leaves
from fuzzer.verify.compare import LARGE_GAP, Screen
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


class Nearness(IntEnum):
    """How two sets of leaves lie to each other."""

    SAME = 0  # the same bits
    WITHIN = 1  # `compare` would find no difference, and no large gap
    BEYOND = 2  # or it is not known without comparing them


def nearness(
    reference: Leaves, target: Leaves, *, tolerance: Tolerance | None, signed_zero: bool, screen: Screen | None
) -> Nearness:
    """The criteria of `compare` without its statistics, at a tenth of the cost.

    Looks at real tensors alone; of those that differ, only at float32 and float64 that are finite throughout.
    """
    if list(reference) != list(target):
        return Nearness.BEYOND
    found = (_of_leaf(path, leaf, target[path], tolerance, screen) for path, leaf in reference.items())
    worst = max(found, default=Nearness.SAME)
    return Nearness.BEYOND if worst is Nearness.WITHIN and signed_zero else worst


def _of_leaf(path: str, r: Leaf, t: Leaf, tolerance: Tolerance | None, screen: Screen | None) -> Nearness:
    if not (isinstance(r, Tensor) and isinstance(t, Tensor)) or r.layout != torch.strided or t.layout != torch.strided:
        return Nearness.BEYOND
    if r.dtype != t.dtype or r.shape != t.shape or r.is_complex() or r.is_quantized:
        return Nearness.BEYOND
    if same_bits(r, t):
        return Nearness.SAME
    if r.dtype not in (torch.float32, torch.float64):
        return Nearness.BEYOND
    a, b = (side.detach().to("cpu", torch.float64).numpy() for side in (r, t))
    with np.errstate(invalid="ignore", over="ignore"):
        gap, sizes = np.abs(b - a), np.abs(a)
    widest, largest = float(gap.max()), float(sizes.max())
    if not math.isfinite(widest) or widest > LARGE_GAP * torch.finfo(r.dtype).eps * largest:
        return Nearness.BEYOND
    if tolerance is not None:
        allowed = tolerance.atol + tolerance.rtol * sizes
    else:
        known = None if screen is None else screen.allowance(path, r)
        allowed = np.zeros(1) if known is None else known.numpy()
    return Nearness.WITHIN if bool((gap <= allowed).all()) else Nearness.BEYOND


def _smaller(known: Tensor | None, floor: Tensor) -> Tensor:
    return floor if known is None else torch.minimum(known, floor)


def _largest(leaf: Tensor) -> float:
    """The largest finite magnitude, 0 where there is none."""
    sizes = leaf.detach().abs().to("cpu", torch.float64).numpy()
    sizes = sizes[np.isfinite(sizes)]
    return float(sizes.max()) if sizes.size else 0.0
