"""A finding as a diagnosis sees it, and what became of it when it was run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.diagnose.label import Label
from fuzzer.diagnose.primary import primary
from fuzzer.diagnose.rerun import Change, Rerun, Sample
from fuzzer.verify.examine import Examined
from fuzzer.verify.verdict import Difference, Outcome


class Seen(StrEnum):
    """What a rerun shows of the disagreement."""

    GONE = "gone"
    UNCHANGED = "unchanged"
    OTHER = "other"  # the sides differ, in another way
    NOTHING = "nothing"  # nothing was compared, or the rerun could not be made


@dataclass(frozen=True)
class Finding:
    """A confirmed difference. `label` is the provisional one; `ordinary` a base input of the seed, on which it was
    prepared; `examined` the verdict, seen by the reruns themselves."""

    sample: Sample
    examined: Examined
    label: Label
    target: str
    ordinary: Sample
    rng_seed: int = 0

    @property
    def difference(self) -> Difference:
        found = primary(self.examined.verdict)
        if found is None:
            raise ValueError("a finding has a difference")
        return found

    @property
    def spec(self) -> BackendSpec:
        return BackendSpec.parse(self.target)

    @property
    def resized(self) -> bool:
        """Whether an input has another shape than the one that the backends were prepared with."""
        return any(self.sample[name].shape != self.ordinary[name].shape for name in self.sample)

    def floats(self) -> dict[str, Tensor]:
        return {name: t for name, t in self.sample.items() if t.is_floating_point() and t.numel()}

    def has_boxes(self) -> bool:
        """Whether boxes go in or come out: a leaf called `boxes`, or a float input whose last dimension is 4."""
        leaves = self.examined.reference.leaves or {}
        inputs = (t.dim() == 2 and t.shape[-1] == 4 for t in self.floats().values())
        return any(path.endswith(".boxes") for path in leaves) or any(inputs)

    def integers(self) -> dict[str, Tensor]:
        whole = {n: t for n, t in self.sample.items() if not (t.is_floating_point() or t.is_complex())}
        return {name: t for name, t in whole.items() if t.numel() and t.dtype != torch.bool}

    def judged(self, examined: Examined) -> Seen:
        """What `examined`, seen with something changed, says of this finding."""
        verdict = examined.verdict
        if verdict.outcome is Outcome.PASS:
            return Seen.GONE
        both_raise = examined.reference.failure is not None and examined.target.failure is not None
        if verdict.outcome is Outcome.NOT_COMPARED:
            return Seen.GONE if both_raise and self.difference.kind == "exception" else Seen.NOTHING
        if verdict.outcome is Outcome.VACUOUS:
            return Seen.NOTHING
        other = primary(verdict)
        if other is None:
            return Seen.NOTHING
        mine = self.difference
        if mine.kind == other.kind and mine.near_tie == other.near_tie and mine.blame == other.blame:
            return Seen.UNCHANGED
        return Seen.OTHER


@dataclass(frozen=True)
class Trial:
    """One intervention and its outcome. `before` and `after` say how far apart the sides were."""

    name: str
    changed: str
    seen: Seen
    before: str = ""
    after: str = ""
    detail: str = ""
    change: Change = field(default_factory=Change)
    #: The label that it proves where that is another than its intervention says.
    label: str = ""
    #: Whether it rules the suspected cause out though the sides differ in another way now.
    rules_out: bool = False

    @property
    def gone(self) -> bool:
        return self.seen is Seen.GONE

    @property
    def sentence(self) -> str:
        """For the evidence: "ties broken by rank: gone (was 3 of 8 elements, …)"."""
        text = f"{self.changed}: {self.seen}"
        if self.gone and self.before:
            text += f" (was {self.before})"
        elif self.after:
            text += f" ({self.after})"
        return text + (f"; {self.detail}" if self.detail else "")

    def to_json(self) -> dict[str, Any]:
        found = {"name": self.name, "changed": self.changed, "outcome": str(self.seen)}
        return found | {k: v for k, v in (("before", self.before), ("after", self.after), ("detail", self.detail)) if v}


def size(examined: Examined) -> str:
    """How far apart two sides are, in a few words; empty where they are not."""
    found = primary(examined.verdict)
    if found is None:
        return ""
    words = [str(found.kind)]
    if found.compared:
        words.append(f"{found.mismatched} of {found.compared} elements")
    drifts = (found.drift_target, found.drift_reference)
    if None not in drifts:
        words.append(f"target {drifts[0]:.3g} and reference {drifts[1]:.3g} noise floors from float64")
    return ", ".join(words)


def rerun_with(finding: Finding, rerun: Rerun, sample: Mapping[str, Tensor], change: Change) -> tuple[Seen, Examined]:
    """Run the finding with another sample, or with something changed. Raises CannotRerun."""
    examined = rerun(sample, change)
    return finding.judged(examined), examined
