"""Interventions: reruns of a finding with one thing changed. Each is a small class, registered by its name.

A disagreement that goes away when one thing is changed, and stays when something else is changed as much, is caused by
that thing.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.label import TAXONOMY
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change, Rerun, Sample
from fuzzer.errors import SpecError
from fuzzer.verify.examine import Examined


@dataclass(frozen=True)
class Variant:
    """One rerun: on another sample (None: the finding's), with something changed. `words`: which of several it is."""

    sample: Sample | None = None
    change: Change = NOTHING
    words: str = ""


class Intervention(ABC):
    """Something to change. Subclasses say what, in words, and which labels it proves where the disagreement goes away.

    Its variants are tried in order until one makes the disagreement go away.
    """

    name: ClassVar[str]
    #: What is changed, for a reader: "ties broken by rank".
    changed: ClassVar[str]
    confirms: ClassVar[tuple[str, ...]]
    #: Whether it needs processes of its own, because it changes what holds for a whole process.
    fresh: ClassVar[bool] = False

    def applies(self, finding: Finding) -> bool:
        """Whether there is anything to change. Looks at the finding alone; runs nothing."""
        return True

    @abstractmethod
    def variants(self, finding: Finding) -> Iterable[Variant]:
        """The reruns to try, the least change first."""

    def placebo(self, finding: Finding) -> Variant | None:
        """A change of the same size that leaves the supposed cause in place: the disagreement must survive it."""
        return None

    def proves(self, label: str) -> str:
        """The label that is proven, where `label` was suspected and the disagreement is gone."""
        return label if label in self.confirms else self.confirms[0]

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        """Try it. What cannot be run is told as `nothing`, with the reason."""
        trial = Trial(
            self.name, self.changed, Seen.NOTHING, size(finding.examined), detail="there was nothing to change"
        )
        for variant in self.variants(finding):
            trial = self._run(finding, rerun, variant)
            if trial.gone:
                return self._against_placebo(finding, rerun, trial)
        return trial

    def _run(self, finding: Finding, rerun: Rerun, variant: Variant) -> Trial:
        return self._ran(finding, rerun, variant)[0]

    def _ran(self, finding: Finding, rerun: Rerun, variant: Variant) -> tuple[Trial, Examined | None]:
        """The trial of one variant, and what it rests on; None where it could not be run."""
        changed = f"{self.changed} ({variant.words})" if variant.words else self.changed
        before = size(finding.examined)
        try:
            examined = rerun(finding.sample if variant.sample is None else variant.sample, variant.change)
        except CannotRerun as error:
            return Trial(self.name, changed, Seen.NOTHING, before, detail=str(error), change=variant.change), None
        seen = finding.judged(examined)
        detail = "; ".join(examined.verdict.notes[:1]) if seen is Seen.NOTHING else ""
        return Trial(self.name, changed, seen, before, size(examined), detail, variant.change), examined

    def _against_placebo(self, finding: Finding, rerun: Rerun, trial: Trial) -> Trial:
        variant = self.placebo(finding)
        if variant is None:
            return trial
        other = self._run(finding, rerun, variant)
        if not other.gone:
            return trial
        detail = "a change of the same size that keeps the cause makes it go away as well"
        return Trial(trial.name, trial.changed, Seen.NOTHING, trial.before, trial.after, detail, trial.change)


_REGISTER: dict[str, Intervention] = {}


def register(intervention: type[Intervention]) -> type[Intervention]:
    """Make an intervention known under its name; a class decorator.

    Raises SpecError where the class does not say what it is, or its name belongs to another class.
    """
    for attribute in ("name", "changed", "confirms"):
        if not getattr(intervention, attribute, None):
            raise SpecError(f"the intervention {intervention.__qualname__} has no `{attribute}`")
    unknown = [label for label in intervention.confirms if label not in TAXONOMY]
    if unknown:
        near = difflib.get_close_matches(unknown[0], TAXONOMY, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise SpecError(f"the intervention {intervention.name!r} confirms {unknown[0]!r}, no label{hint}")
    found = _REGISTER.setdefault(intervention.name, intervention())
    if type(found) is not intervention:
        other = type(found).__qualname__
        raise SpecError(f"two interventions are called {intervention.name!r}: {other} and {intervention.__qualname__}")
    return intervention


def registered() -> dict[str, Intervention]:
    """All interventions by name, built-in ones first."""
    return dict(_REGISTER)
