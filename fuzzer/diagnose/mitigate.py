"""Mitigations: what a user can switch on so that the two sides agree again, and what it costs.

They are interventions that can stay: a flag, an earlier stage, an operator in eager mode, a fixed order, full
precision. Each is tried on the finding, and the target is timed with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuzzer.backends.adapted import Adaptation
from fuzzer.diagnose.finding import Finding, Seen, Trial
from fuzzer.diagnose.operator import operator_of
from fuzzer.diagnose.plan import built_in
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change, Rerun
from fuzzer.diagnose.stage import Ladder
from fuzzer.verify.verdict import Outcome

#: Runs of which the median is a latency.
TIMES = 7


@dataclass(frozen=True)
class Mitigation:
    """`what` is switched on, on the target alone or on both sides; `restores`: whether the sides agree then.

    `tiers`: what each tier says then. Latencies in milliseconds: the median of so many runs of the target on the
    finding's input, with the mitigation and without.
    """

    what: str
    how: str
    sides: str
    restores: bool
    tiers: dict[str, str]
    latency_ms: float | None = None
    unmitigated_ms: float | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"what": self.what, "how": self.how, "sides": self.sides, "restores": self.restores}
        found["tiers"] = dict(self.tiers)
        for name in ("latency_ms", "unmitigated_ms"):
            value = getattr(self, name)
            found[name] = None if value is None else float(f"{value:.4g}")
        return found | ({"detail": self.detail} if self.detail else {})


@dataclass(frozen=True)
class Candidate:
    """Something to switch on: in words, how it is written, and the change that it is."""

    what: str
    how: str
    change: Change


def candidates(finding: Finding, trials: Sequence[Trial], ladder: Ladder) -> list[Candidate]:
    """What might help: what has made the disagreement go away, and what is known to help with such a label."""
    found = [Candidate(words, _how(change), change) for words, change in ladder.without]
    for trial in trials:
        if trial.gone and trial.name in ("operator", "exact-operator"):
            words = f"{operator_of(trial)} in eager mode, all else on the target"
            found.append(Candidate(words, _how(trial.change), trial.change))
        elif trial.gone and trial.name not in built_in() and trial.change != NOTHING:
            how = _how(trial.change) or f"the intervention {trial.name}"
            found.append(Candidate(trial.changed, how, trial.change))
    cls, name = finding.label.cls, finding.label.name
    if cls == "order" or name in ("structure/shape",):
        for order in ("nms", "nms-quantised", "stable"):
            change = Change(adaptation=Adaptation(order=order), both=True)
            found.append(Candidate(_ORDER[order], _how(change), change))
    if name in ("numeric/reduced-precision", "numeric/overflow") or (
        finding.examined.oracle is not None and _narrow(finding)
    ):
        found.append(Candidate("no 16-bit floats", "fuzzer.adapters.Float32()", _BOTH_FLOAT32))
        if finding.spec.runtime == "inductor":
            change = Change(adaptation=Adaptation(inductor={"emulate_precision_casts": True}))
            found.append(Candidate("eager mode's casts emulated", _how(change), change))
    if name in ("state/rng", "state/nondeterminism") and finding.spec.runtime == "inductor":
        change = Change(adaptation=Adaptation(inductor={"fallback_random": True}))
        found.append(Candidate("eager mode's random numbers", _how(change), change))
    unique: dict[str, Candidate] = {}
    for one in found:
        unique.setdefault(one.how, one)
    return list(unique.values())


_ORDER = {
    "nms": "a fixed order before NMS",
    "nms-quantised": "a fixed order before NMS, scores quantised",
    "stable": "stable sort, topk and argmax",
}
_ORDER_CALLS = {
    "nms": "fuzzer.adapters.StableOrder(nms_only=True)",
    "nms-quantised": "fuzzer.adapters.StableOrder(2**-10, nms_only=True)",
    "stable": "fuzzer.adapters.StableOrder()",
}
_BOTH_FLOAT32 = Change(adaptation=Adaptation(float32=True), both=True)


def _narrow(finding: Finding) -> bool:
    """Whether 16-bit floats go in; what the model makes of them inside is not known here."""
    return any(t.element_size() == 2 for t in finding.floats().values())


def _how(change: Change) -> str:
    """How a change is written by a user."""
    adaptation = change.adaptation
    if adaptation.order:
        return _ORDER_CALLS[adaptation.order]
    if adaptation.inductor:
        return "; ".join(f"torch._inductor.config.{name} = {value!r}" for name, value in adaptation.inductor.items())
    if adaptation.optimizers:
        return f"onnxruntime.InferenceSession(…, disabled_optimizers={list(adaptation.optimizers)})"
    if adaptation.captures:
        return "fuzzer.adapters.split"
    return change.target or ""


def mitigations(
    finding: Finding, rerun: Rerun, trials: Sequence[Trial], ladder: Ladder, late: Callable[[], bool]
) -> Iterator[Mitigation]:
    """Each candidate tried and, where it restores agreement, timed. Ends where `late()`."""
    tried = []
    for candidate in candidates(finding, trials, ladder):
        if late():
            break
        tried.append(_tried(finding, rerun, candidate))
    plain = None
    if any(one.restores for one in tried) and not late():
        plain = _seconds(rerun, finding, NOTHING)
    for one in tried:
        yield replace(one, unmitigated_ms=plain) if one.restores else one


def _tried(finding: Finding, rerun: Rerun, candidate: Candidate) -> Mitigation:
    sides = "both" if candidate.change.both else "target"
    try:
        examined = rerun(finding.sample, candidate.change)
    except CannotRerun as error:
        return Mitigation(candidate.what, candidate.how, sides, False, {}, detail=str(error)[:300])
    restores = finding.judged(examined) is Seen.GONE
    latency = _seconds(rerun, finding, candidate.change) if restores else None
    tiers = examined.verdict.tiers() if examined.verdict.outcome is not Outcome.NOT_COMPARED else {}
    return Mitigation(candidate.what, candidate.how, sides, restores, tiers, latency)


def _seconds(rerun: Rerun, finding: Finding, change: Change) -> float | None:
    """Milliseconds."""
    found = rerun.seconds(finding.sample, change, TIMES)
    return None if found is None else found * 1000.0
