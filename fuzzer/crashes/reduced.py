"""What came of a reduction, as data and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.probe import Fault, Slip
from fuzzer.reduce import Size


class Outcome(StrEnum):
    """What came of a reduction."""

    REDUCED = "reduced"
    MINIMAL = "minimal"  # nothing smaller shows the crash
    UNFINISHED = "unfinished"  # the budget ended before anything smaller was found
    UNCONFIRMED = "unconfirmed"  # what was smaller did not reproduce in fresh processes
    IMPOSSIBLE = "impossible"  # the crash cannot be seen here


@dataclass(frozen=True)
class Reduction:
    """The outcome. `crash` is the smaller one, confirmed, or the one that was given. `finished`: nothing left to try.

    `slips`: other faults that candidates showed. `seconds` and `tests` are those of the searches alone. `nodes`: the
    operators of the model before and after, None where it stayed whole for the reason `whole`. `weights`: what to store
    the crash with (`write_reduced`), None where its folder has them.
    """

    outcome: Outcome
    crash: Crash
    before: Size
    after: Size
    tests: int = 0
    seconds: float = 0.0
    finished: bool = False
    detail: str = ""
    slips: Mapping[Fault, Slip] = field(default_factory=dict)
    nodes: tuple[int, int] | None = None
    whole: str = ""
    weights: Mapping[str, Tensor] | None = None

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        return self.input_sentence + self._whole

    @property
    def input_sentence(self) -> str:
        """The outcome in words, without why the model stays whole."""
        size = f"{self.before.elements} elements ({self.before.filled} not of the background)"
        if self.outcome is Outcome.REDUCED:
            size += f" → {self.after.elements} ({self.after.filled})"
        if self.nodes is not None:
            size = f"{self.nodes[0]} operators → {self.nodes[1]}, {size}"
        text = f"{self.outcome}: {size}, {self.tests} candidates tried in {self.seconds:.1f} s"
        if self.slips:
            text += f", {sum(slip.count for slip in self.slips.values())} put aside that failed otherwise"
        text += "" if self.finished or self.outcome is Outcome.IMPOSSIBLE else "; not all was tried"
        return text + (f": {self.detail}" if self.detail else "")

    @property
    def graph_sentence(self) -> str:
        """What came of the model, in words."""
        if self.nodes is None:
            return self._whole.removeprefix("; ") or f"the model: {self.outcome}"
        size = f"{self.nodes[0]} operators → {self.nodes[1]}, {self.before.elements} elements → {self.after.elements}"
        return f"{size}, {self.tests} candidates tried in {self.seconds:.1f} s"

    @property
    def _whole(self) -> str:
        return f"; the model stays whole: {self.whole}" if self.whole else ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.crash.id,
            "outcome": str(self.outcome),
            "before": dict(self.before.__dict__),
            "after": dict(self.after.__dict__),
            "tests": self.tests,
            "seconds": round(self.seconds, 3),
            "finished": self.finished,
            "detail": self.detail,
            "slips": {str(fault): slip.count for fault, slip in self.slips.items()},
            "nodes": None if self.nodes is None else {"before": self.nodes[0], "after": self.nodes[1]},
            "whole": self.whole,
        }
