"""Many floats moved to neighbouring ones at a cost near that of reading them: for the weights of large models.

A random number for each of sixty million weights, and six passes over memory, cost more than the model's own forward
pass. Here a tensor takes its steps from one long row of random ones, from a random place in it on, and is moved piece
by piece in the processor's cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Tensors with at least so many elements are moved here.
LARGE = 2**15
#: Steps in the row. A prime, so that the rows of no weight matrix fall on the same steps again and again.
ROW = 1048583
#: Elements that are moved at once; a few of these fit into a core's cache.
_PIECE = 2**15


class Steps:
    """Steps of up to `amplitude` places, each as likely as any other, drawn once from `generator`.

    `move_zeros`: zeros take as many of the smallest subnormals in place of none.
    """

    def __init__(self, amplitude: int, generator: torch.Generator, *, move_zeros: bool = False) -> None:
        self._amplitude = amplitude
        self._generator = generator
        self._move_zeros = move_zeros
        narrow = torch.int8 if amplitude <= torch.iinfo(torch.int8).max else torch.int16
        drawn = torch.randint(-amplitude, amplitude + 1, (ROW,), generator=generator, dtype=narrow)
        self._row = drawn.to(torch.int32)

    def move(self, bits: Tensor, magnitude: int, infinity: int) -> None:
        """Move the floats that `bits` are, int16, int32 or int64 in one dense row on the CPU, in place.

        `magnitude` masks the sign away, and `infinity` has the bits of +∞, from which on nothing moves. Nor does what a
        step might take past that or past zero.
        """
        row = self._row.to(bits.dtype)
        place = int(torch.randint(ROW, (1,), generator=self._generator))
        scratch = torch.empty(_PIECE, dtype=bits.dtype)
        start = 0
        while start < bits.numel():
            length = min(_PIECE, ROW - place, bits.numel() - start)
            piece, step, size = bits[start : start + length], row[place : place + length], scratch[:length]
            torch.bitwise_and(piece, magnitude, out=size)
            least, most = torch.aminmax(size)
            if int(least) <= self._amplitude or int(most) >= infinity - self._amplitude:
                piece.add_(self._where_possible(step, size, magnitude, infinity))
            else:
                piece.add_(step)
            start += length
            place = (place + length) % ROW

    def _where_possible(self, step: Tensor, size: Tensor, magnitude: int, infinity: int) -> Tensor:
        """What to add to the bits of a piece that has elements near zero or infinity; `size` are its magnitudes."""
        kept = step.masked_fill((size <= self._amplitude) | (size >= infinity - self._amplitude), 0)
        if not self._move_zeros:
            return kept
        from_zero = torch.where(step < 0, (-step) | ~magnitude, step)
        return torch.where(size == 0, from_zero, kept)
