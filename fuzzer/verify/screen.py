"""The screen: which elements are so close that judging them would be a waste.

Noise has a least size beside what an answer shows of its own: its typical magnitude and that of the element itself. The
screen remembers the smallest share of these that the judge has measured for a leaf, on any input and at any element,
and lets four fifths of the judge's threshold of it pass. As the judge's floor of an element is at least the median of
its leaf, one number a leaf is enough, and it holds for all shapes. It takes many inputs to know a smallest share, so
that nothing but equality passes before. An input with less noise than any before can slip through by as much as it has
less, which is why a sample of what passes is judged too.
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
from fuzzer.verify.compare import LARGE_GAP, Screen, as_real
from fuzzer.verify.judge import THRESHOLD
from fuzzer.verify.ulp import ulp

#: Judged inputs that a leaf's smallest noise is known from: with half as many, eighty times as many small faults slip
#: through (docs/verdict.md).
LEAST_JUDGED = 64
#: Of the judge's threshold: what is left covers the inputs whose noise is less than any before.
MARGIN = 0.8


class FloorScreen:
    """Smallest noise seen of each leaf, as a share of `_scale`. Until `least` inputs were judged nothing is allowed."""

    def __init__(self, threshold: float = THRESHOLD, least: int = LEAST_JUDGED) -> None:
        self._allowed = MARGIN * threshold
        self._least = least
        self._judged: dict[str, int] = {}
        self._shares: dict[str, float] = {}

    def allowance(self, path: str, reference: Tensor) -> Tensor | None:
        """How far each element may be off, float64, or None where too little is known."""
        if self._judged.get(path, 0) < self._least:
            return None
        scale = _scale(reference)
        return None if scale is None else scale * (self._allowed * self._shares[path])

    def learn(self, floors: Mapping[str, Tensor], reference: Leaves) -> None:
        """Take in the floors that were measured on the input to which the reference gave these leaves."""
        for path, floor in floors.items():
            leaf = reference.get(path)
            values = as_real(leaf) if isinstance(leaf, Tensor) else None
            scale = None if values is None else _scale(values)
            if values is None or scale is None or values.shape != floor.shape:
                continue
            known = torch.isfinite(scale)
            step = ulp(values.to(torch.float64).nan_to_num(0, 0, 0), values.dtype)
            share = float(((floor + step) / scale)[known].min())
            self._judged[path] = self._judged.get(path, 0) + 1
            self._shares[path] = min(self._shares.get(path, math.inf), share)


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


def _scale(values: Tensor) -> Tensor | None:
    """What noise is measured by: a typical magnitude of the leaf and a sixteenth of the element's own; float64.

    Typical is a quarter of the median or, where less, the lower quartile: of a leaf whose one half is huge the noise of
    the other half is the floor. Zeros do not count. NaN beside NaN and infinities; None where nothing else is left.
    """
    sizes = values.detach().abs().to("cpu", torch.float64).numpy()
    counted = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not counted.size:
        return None
    quartile, median = (counted.size - 1) // 4, (counted.size - 1) // 2
    ordered = np.partition(counted, (quartile, median))
    typical = min(float(ordered[median]) / 4, float(ordered[quartile]))
    return torch.from_numpy(np.where(np.isfinite(sizes), typical + sizes / 16, np.nan))
