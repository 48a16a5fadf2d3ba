"""What a rule of symptoms may look at: the primary difference of a failed verdict, and all around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from fuzzer.trees import ROOT, Leaf, Leaves
from fuzzer.verify.verdict import Difference, Verdict


@dataclass(frozen=True)
class Case:
    """What a rule may look at: the primary difference, its leaf on both sides, and all around it."""

    difference: Difference
    verdict: Verdict
    reference: Leaves
    target: Leaves
    truth: Leaves
    sample: Mapping[str, Tensor]

    def leaf(self, leaves: Leaves) -> Leaf:
        return leaves.get(self.difference.path)

    @property
    def pair(self) -> tuple[Tensor, Tensor] | None:
        """Both sides' tensors at the leaf, where both are tensors of one shape, and complex together or not at all."""
        left, right = self.leaf(self.reference), self.leaf(self.target)
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            return None
        if left.shape == right.shape and left.is_complex() == right.is_complex():
            return left, right
        return None

    def siblings(self) -> list[tuple[str, Tensor, Tensor]]:
        """Other leaves of the same parent (`[0].scores` beside `[0].boxes`) that are tensors on both sides."""
        parent = parent_of(self.difference.path)
        found = []
        for path, left in self.reference.items():
            right = self.target.get(path)
            if path == self.difference.path or parent_of(path) != parent:
                continue
            if isinstance(left, Tensor) and isinstance(right, Tensor):
                found.append((path, left, right))
        return found

    def has_boxes(self) -> bool:
        """Is there a list of boxes about: a leaf called `boxes`, or an input (…, 4) of one list or of a batch of lists.

        An input of more dimensions is an image, or maps, four elements wide.
        """
        named = any(path.endswith(".boxes") for path in self.reference)
        return named or any(
            t.dim() in (2, 3) and t.shape[-1] == 4 and t.is_floating_point() for t in self.sample.values()
        )


#: Names a label and why, or passes.
Rule = Callable[[Case], tuple[str, str] | None]


def parent_of(path: str) -> str:
    """`[0]` for `[0].scores`."""
    if path == ROOT:
        return ROOT
    return path[: max(path.rfind("."), path.rfind("["))]
