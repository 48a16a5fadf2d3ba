"""The diagnosis: interventions until one proves a cause, then the stage, then what a user can switch on.

Bounded in time: each part begins only while there is some left, and a rerun is never begun after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuzzer.diagnose.finding import Finding, Seen, Trial
from fuzzer.diagnose.interventions import Intervention, registered
from fuzzer.diagnose.label import TAXONOMY, UNKNOWN, Label, suspected
from fuzzer.diagnose.mitigate import Mitigation, mitigations
from fuzzer.diagnose.operator import operator_of
from fuzzer.diagnose.plan import RULED_OUT, plan
from fuzzer.diagnose.rerun import CannotRerun, Rerun
from fuzzer.diagnose.stage import Ladder, climb, rungs
from fuzzer.verify.verdict import Kind

#: Labels whose cause is proven where this intervention leaves the disagreement as it is.
_PROVEN_BY_SURVIVAL = {
    ("structure/shape", "example"),
    ("structure/dtype", "example"),
    ("execution/hang", "longer-deadline"),
}


@dataclass(frozen=True)
class Diagnosed:
    """A label, proven or not, the interventions tried, the stage and operator where drift enters, and what helps."""

    label: Label
    trials: tuple[Trial, ...] = ()
    stage: str | None = None
    operator: str = ""
    ladder: Ladder = field(default_factory=Ladder)
    mitigations: tuple[Mitigation, ...] = ()
    unfinished: bool = False
    detail: str = ""

    @property
    def evidence(self) -> list[str]:
        """One sentence an intervention, and one for the ladder; reruns that told nothing only where none proved it."""
        told = (trial for trial in self.trials if trial.seen is not Seen.NOTHING or not self.label.confirmed)
        lines = [trial.sentence for trial in told]
        if self.ladder.climbed:
            lines.append("stages: " + "; ".join(self.ladder.sentences))
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "label": str(self.label),
            "interventions": [trial.to_json() for trial in self.trials],
            "stages": self.ladder.sentences,
            "stage": self.stage,
            "operator": self.operator or None,
            "mitigations": [one.to_json() for one in self.mitigations],
            "unfinished": self.unfinished,
            **({"detail": self.detail} if self.detail else {}),
        }


def diagnose(
    finding: Finding,
    rerun: Rerun,
    *,
    clock: Callable[[], float],
    budget_s: float,
    known: Mapping[str, Intervention] | None = None,
    mitigate: bool = True,
) -> Diagnosed:
    """Find the cause of `finding` by reruns, within about `budget_s` seconds of `clock`."""
    ends = clock() + budget_s

    def late(share: float = 1.0) -> bool:
        return clock() >= ends - (1.0 - share) * budget_s

    trials: list[Trial] = []
    label = finding.label
    interventions = plan(finding, dict(registered() if known is None else known))
    for intervention in interventions:
        if late(0.7):  # the rest is for the stage and the mitigations
            break
        trial = _tried(intervention, finding, rerun)
        trials.append(trial)
        proven = _proven(intervention, trial, _left(finding, trials))
        if proven is not None:
            label = proven
            break
    ladder = Ladder()
    if _has_stages(finding, label) and not late(0.8):
        ladder = climb(finding, rerun, lambda: late(0.9))
    operator = next((operator_of(trial) for trial in trials if operator_of(trial)), "")
    found = Diagnosed(label, tuple(trials), _stage(ladder, operator), operator, ladder, unfinished=late())
    if mitigate and not late():
        found = replace(found, mitigations=tuple(mitigations(finding, rerun, trials, ladder, late)), unfinished=late())
    return found


def _tried(intervention: Intervention, finding: Finding, rerun: Rerun) -> Trial:
    try:
        return intervention.attempt(finding, rerun)
    except CannotRerun as error:
        return Trial(intervention.name, intervention.changed, Seen.NOTHING, detail=str(error)[:300])


def _proven(intervention: Intervention, trial: Trial, label: Label) -> Label | None:
    """The label that a trial proves, if it does."""
    if trial.seen is Seen.UNCHANGED and (label.name, trial.name) in _PROVEN_BY_SURVIVAL:
        return replace(label, confirmed=True)
    if not trial.gone or (label.name, trial.name) == ("execution/hang", "longer-deadline"):
        return None
    if trial.label:
        name = trial.label
    elif label.cause == UNKNOWN and "numeric/wrong-value" in intervention.confirms:
        name = "numeric/wrong-value"
    else:
        name = intervention.proves(label.name)
    if name not in TAXONOMY:
        return None
    cls, _, cause = name.partition("/")
    return Label(cls, cause, confirmed=True)


def _left(finding: Finding, trials: Sequence[Trial]) -> Label:
    """The suspected label, or what is left of it where a trial has ruled it out."""
    by, left = RULED_OUT.get(finding.label.name, ("", ""))
    asked = [trial for trial in trials if trial.name == by and (trial.seen is Seen.UNCHANGED or trial.rules_out)]
    if not asked:
        return finding.label
    if finding.difference.kind is not Kind.NONFINITE or asked[0].rules_out:
        left = "numeric/wrong-value"
    return suspected(left)


def _has_stages(finding: Finding, label: Label) -> bool:
    return bool(rungs(finding.target)) and label.name not in ("state/nondeterminism", "execution/hang")


def _stage(ladder: Ladder, operator: str) -> str | None:
    if not ladder.stage:
        return None
    return f"{ladder.stage} of {operator}" if operator and ladder.stage == "inductor: lowering" else ladder.stage
