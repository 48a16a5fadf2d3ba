"""What a diagnosis needs of the world: to run a finding again with one thing changed. `crashes.rerun` has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from fuzzer.backends.adapted import Adaptation
from fuzzer.errors import XbfuzzError
from fuzzer.verify.examine import Examined

Sample = Mapping[str, Tensor]


class CannotRerun(XbfuzzError):
    """A rerun that did not take place, with the reason: a side refuses the model as it was changed."""


@dataclass(frozen=True)
class Change:
    """What is not as it was when the finding was seen; nothing by default.

    `target`: another backend in the target's place. `example`: what the target is compiled or exported with.
    `adaptation`: of the target, and where `both` of the reference too. `fresh`: in processes that ran nothing before.
    `rng_seed`: the generators start from another number. `deadline`: how many times as long a side may compute.
    """

    target: str | None = None
    example: Sample | None = field(default=None, hash=False, compare=False)
    adaptation: Adaptation = field(default_factory=Adaptation)
    both: bool = False
    fresh: bool = False
    rng_seed: int | None = None
    deadline: float = 1.0


NOTHING = Change()


class Rerun(Protocol):
    """Runs both sides on a sample and judges the answers, as the campaign does."""

    def __call__(self, sample: Sample, change: Change = NOTHING) -> Examined:
        """Raises CannotRerun."""

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the target of the last rerun says it is."""

    def seconds(self, sample: Sample, change: Change, times: int) -> float | None:
        """The median time of so many runs of the target; None where it did not answer."""
