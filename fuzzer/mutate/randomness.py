"""Random bits that are a function of a key alone: the same on every machine and with every version of numpy.

numpy promises that the raw stream of a bit generator never changes; it promises no such thing of what `Generator` makes
of it (choice, permutation). So everything here is built on raw words.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt

#: Keys are below this; a key is what a step carries in place of randomness.
KEY_LIMIT = 2**63


def new_key(rng: random.Random) -> int:
    return rng.randrange(KEY_LIMIT)


def draws(key: int, count: int) -> npt.NDArray[np.uint64]:
    """`count` random 64-bit words of the Philox stream that belongs to `key`."""
    words: npt.NDArray[np.uint64] = np.atleast_1d(np.random.Philox(key=key).random_raw(count))
    return words


def distinct(words: npt.NDArray[np.uint64], below: int) -> npt.NDArray[np.int64]:
    """The words modulo `below`, each value once, in the order of its first appearance."""
    values = (words % np.uint64(below)).astype(np.int64)
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def permutation(key: int, count: int) -> npt.NDArray[np.int64]:
    """The numbers 0 to count − 1, shuffled."""
    return np.argsort(draws(key, count), kind="stable").astype(np.int64)
