"""Which elements of a tensor a mutation touches.

A `Where` is a few small numbers, not a list of indices: it stays short on a large image, and it still means something
when a dimension has changed since it was drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.randomness import KEY_LIMIT, distinct, draws, new_key
from fuzzer.seeds.schema import Strict

Key = Annotated[int, Field(ge=0, lt=KEY_LIMIT)]
Axis = Annotated[int, Field(ge=-16, lt=16)]
Place = Literal["some", "line", "row", "slab", "window", "head", "tail", "all"]

PLACES: tuple[Place, ...] = ("some", "line", "row", "slab", "window", "head", "tail", "all")
COUNTS = (1, 1, 2, 3, 4, 8, 16, 64)


class Where(Strict):
    """some: `count` elements anywhere. line: `count` elements of one line along `axis`. row: that whole line.
    slab: all elements with one coordinate along `axis`. window: a block with sides of `count` in the last two axes.
    head, tail: the first or last `count` elements in memory. all: every element. `key` says which.
    """

    place: Place
    key: Key
    count: Annotated[int, Field(ge=1, le=4096)] = 1
    axis: Axis = -1


def propose_where(
    shape: Sequence[int], rng: random.Random, places: Sequence[Place] = PLACES, counts: Sequence[int] = COUNTS
) -> Where:
    """A random `Where` for a tensor of `shape`, of one of `places`, with one of `counts`."""
    return Where(
        place=rng.choice(places), key=new_key(rng), count=rng.choice(counts), axis=rng.randrange(-max(len(shape), 1), 0)
    )


def positions(where: Where, shape: Sequence[int]) -> Tensor:
    """Flat indices, int64, each once, of the elements of a contiguous tensor of `shape` that `where` names.

    Total: an axis wraps around, a count is cut to what there is, and a tensor without elements has no positions.
    """
    sides = tuple(shape) or (1,)
    numel = math.prod(sides)
    if numel == 0:
        return torch.empty(0, dtype=torch.int64)
    if where.place == "all":
        return torch.arange(numel)
    if where.place in ("head", "tail"):
        count = min(where.count, numel)
        return torch.arange(count) + (0 if where.place == "head" else numel - count)
    words = draws(where.key, len(sides) + where.count)
    anchor, rest = words[: len(sides)], words[len(sides) :]
    if where.place == "some":
        return torch.from_numpy(distinct(rest, numel))
    axis = where.axis % len(sides)
    at = [np.array([int(word) % side]) for word, side in zip(anchor, sides, strict=True)]
    if where.place == "slab":
        at = [at[i] if i == axis else np.arange(side) for i, side in enumerate(sides)]
    elif where.place == "window":
        for i in range(max(len(sides) - 2, 0), len(sides)):
            length = min(where.count, sides[i])
            at[i] = int(anchor[i]) % (sides[i] - length + 1) + np.arange(length)
    else:
        at[axis] = np.arange(sides[axis]) if where.place == "row" else distinct(rest, sides[axis])
    return torch.from_numpy(np.ravel_multi_index(np.ix_(*at), sides).reshape(-1).astype(np.int64))
