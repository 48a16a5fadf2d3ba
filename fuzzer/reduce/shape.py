"""The shape passes: slices of a named dimension are left out, in all inputs that share it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzer.reduce.engine import Changes, Pass, Sample
from fuzzer.reduce.space import Axes, Space


def shape_passes(space: Space) -> list[Pass]:
    """One pass a dimension."""
    return [_fewer_slices(axes) for axes in space.axes]


def _fewer_slices(axes: Axes) -> Pass:
    def offer(sample: Sample) -> Changes[Sample]:
        lengths = {sample[name].shape[axis] for name, axis in axes.places}
        if len(lengths) != 1:  # an input from elsewhere may not hold together
            return Changes(0, lambda which: None)
        (length,) = lengths

        def without(which: Sequence[int]) -> Sample | None:
            dropped = set(which)
            kept = torch.tensor([i for i in range(length) if i not in dropped], dtype=torch.int64)
            if len(kept) < axes.least:
                return None
            smaller = dict(sample)
            for name, axis in axes.places:
                smaller[name] = smaller[name].index_select(axis, kept).contiguous()
            return smaller

        return Changes(length, without)

    return offer
