"""Several inputs in one forward, where a seed says that its samples are independent along a dimension.

A batch is a screen: what it passes has passed; a hit is run again alone, and only that decides. What is learnt from the
reference comes from the batch, so a batch is always the same one: the inputs of one block, in order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fuzzer.backends.session import Answer
from fuzzer.seeds import Seed

Sample = Mapping[str, Tensor]

#: Elements of a forward that takes hardly longer than one of a few: so many are put together whatever `max` says.
SMALL = 2**15


def small(seed: Seed) -> bool:
    """Whether many inputs of a seed's usual sizes fit into one forward."""
    if seed.independent is None:
        return False
    elements = 0
    for spec in seed.inputs.values():
        elements += math.prod(side if isinstance(side, int) else seed.dims[side].size for side in spec.shape)
    return 0 < elements <= SMALL // 16


def groups(seed: Seed, samples: Sequence[Sample], small: int = SMALL) -> list[list[int]]:
    """Which of the samples can run together: neighbours or not, of the same sizes but for the independent dimension.

    The sum of their sizes there stays within what the dimension allows, or their elements within `small`. Samples
    without elements run alone.
    """
    assert seed.independent is not None
    allowed = seed.dims[seed.independent].most
    found: list[list[int]] = []
    filled: dict[tuple[tuple[int, ...], ...], tuple[list[int], int]] = {}
    for index, sample in enumerate(samples):
        rest = tuple(tuple(tensor.shape[1:]) for tensor in sample.values())
        size = length(sample)
        elements = sum(tensor.numel() for tensor in sample.values())
        if elements == 0:
            found.append([index])
            continue
        group, total = filled.get(rest, ([], 0))
        if not group or total + size > max(allowed, small * size // elements):
            group, total = [], 0
            found.append(group)
        group.append(index)
        filled[rest] = (group, total + size)
    return found


def length(sample: Sample) -> int:
    """The size of a sample along the independent dimension, the first of every input."""
    return int(next(iter(sample.values())).shape[0])


def joined(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The samples one after the other along the first dimension."""
    return {name: torch.cat([sample[name] for sample in samples]) for name in samples[0]}


def split(answer: Answer, sizes: Sequence[int]) -> list[Answer] | None:
    """The answer to a batch as answers to its samples; None where it has none, or leaves that do not belong to samples.

    What a run changed besides its output cannot be told apart either.
    """
    if answer.leaves is None or answer.changed:
        return None
    total = sum(sizes)
    parts: list[dict[str, Tensor]] = [{} for _ in sizes]
    for path, leaf in answer.leaves.items():
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != total:
            return None
        for part, piece in zip(parts, torch.split(leaf, list(sizes)), strict=True):
            part[path] = piece
    return [replace(answer, leaves=dict(part), seconds=answer.seconds / len(sizes), inside=[]) for part in parts]
