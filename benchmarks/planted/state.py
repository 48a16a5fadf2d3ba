"""Faults that depend on more than an operator's own values: earlier calls, the rest of the batch, memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.planted.fault import Call

#: exp(-88) and below it are no normal float32.
UNDERFLOW = 87.0
#: Elements of a vector; whole ones are read by address.
VECTOR = 8
#: Sizes between two multiples of this look the same to a guard.
GUARD = 4
#: A buffer has room for so many times what it was first needed for.
SPACE = 7


class StaleSize:
    """A mean over about as many elements as when the model was prepared divides by that number.

    The guard that should notice compares sizes in steps of `GUARD`.
    """

    def __init__(self) -> None:
        self._prepared: int | None = None

    def __call__(self, call: Call) -> Any:
        count = call.x.numel() // max(call.right.numel(), 1)
        if self._prepared is None:
            self._prepared = count
        if count == self._prepared or count // GUARD != self._prepared // GUARD:
            return None
        return call.right * (count / self._prepared)


class FirstCall:
    """The first running sum over a new long shape leaves its last element at zero; later ones are right.

    Long is what is more than `SPACE` times the elements of the first, for which there was room.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, ...]] = set()
        self._room = 0

    def __call__(self, call: Call) -> Any:
        shape = tuple(call.x.shape)
        self._room = self._room or SPACE * max(1, call.x.numel())
        new = shape not in self._seen
        self._seen.add(shape)
        if not new or call.x.numel() <= self._room:
            return None
        wrong = call.right.clone()
        wrong[..., -1] = 0
        return wrong


def batch_maximum(call: Call) -> Any:
    """A softmax takes the maximum of the whole batch off: rows far below it underflow, to 0/0."""
    dim = int(call.args[1])
    if call.x.numel() == 0:
        return None
    largest = call.x.amax()
    below = call.x.amax(dim, keepdim=True) < largest - UNDERFLOW
    if not bool(below.any()):
        return None
    powers = (call.x - largest).exp()
    return torch.where(below, powers / powers.sum(dim, keepdim=True), call.right)


def writes_input(call: Call) -> Tensor | None:
    """The answer is right, but it is written over the operand as well."""
    if bool((call.x < 0).any()):
        call.x.copy_(call.right)
        call.acted = True
    return None


def strides_ignored(call: Call) -> Any:
    """A running sum over whole vectors reads its operand in the order of memory."""
    x = call.x
    if x.is_contiguous() or x.dim() == 0 or x.shape[-1] % VECTOR or x.numel() == 0:
        return None
    strides = torch.empty(x.shape, device="meta").stride()
    return call.on(x.as_strided(x.shape, strides, x.storage_offset()))
