"""Blocks: inputs in a row that are made from what was known before the block before theirs.

So they can run together, and be made while the block before runs. Where the inputs begin and end is a function of their
numbers alone: the stream of a campaign does not depend on how fast anything was.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """Blocks of `size` inputs; where `most` is larger, later ones grow to that: soon after the start there is more to
    learn than to save. Both are powers of two.
    """

    size: int = 1
    most: int = 0

    def start(self, index: int) -> int:
        """The first input of the block that holds `index`."""
        return index - index % self._size(index)

    def end(self, index: int) -> int:
        """One past the last input of the block that holds `index`."""
        return self.start(index) + self._size(index)

    def before(self, start: int) -> int:
        """The first input of the block before the one that begins at `start`; 0 before the first."""
        return self.start(start - 1) if start > 0 else 0

    def _size(self, index: int) -> int:
        """That of the block which holds `index`: the largest power of two within half of `index`, within the bounds."""
        grown: int = 2 ** max((index // 2).bit_length() - 1, 0)
        return max(self.size, min(self.most, grown))
