"""The judge on the table of known cases, at the inputs given there: all that diverges is flagged, nothing else is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch

from benchmarks.known_cases import BOTH_ORT, CASES, EAGER, Case, Kind
from benchmarks.known_versions import kind_on
from benchmarks.local import Local, between, seed_for
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import State
from fuzzer.verify.verdict import Kind as DifferenceKind
from fuzzer.verify.verdict import Outcome


@dataclass
class Given:
    """Pairs of case and target. `pairs` return values on both sides; in `raising` one side raises.

    `controls_flagged` and `benign_flagged` count at both the inputs in question and the ordinary ones.
    """

    pairs: int = 0
    flagged: int = 0
    raising: int = 0
    raising_flagged: int = 0
    controls: int = 0
    controls_flagged: int = 0
    benign: int = 0
    benign_flagged: int = 0
    wrong: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def add(self, other: Given) -> None:
        """Count the pairs of another part of the table in."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


def spec_of(case: Case, target: str) -> str:
    """The target with the exporter that the case needs."""
    if case.exporter == "dynamo" or target not in BOTH_ORT:
        return target
    return f"{target}{'&' if '?' in target else '?'}exporter={case.exporter}"


def judge_table(targets: Iterable[str], cases: Iterable[Case] = CASES) -> Given:
    """Every case on every one of `targets` that takes it and survives it, in this process."""
    found = Given()
    chosen = list(targets)
    for case in cases:
        for target in case.targets:
            if target in chosen and target not in case.refused and not case.kills:
                _judge(case, target, found)
    return found


def _judge(case: Case, target: str, found: Given) -> None:
    torch._dynamo.reset()
    of = seed_for(case.ordinary(), dynamic=case.dynamic)
    specs = (EAGER, spec_of(case, target), ORACLE)
    sides = [Local(of, spec, case.module(), case.ordinary()) for spec in specs]
    if any(side.state is not State.READY for side in sides):
        found.wrong.append(f"{case.name} on {target}: refused")
        return
    name = f"{case.name} on {target}"
    seen = between(of, sides[0], sides[1], sides[2], case.inputs()).verdict
    flagged = seen.outcome is Outcome.MISMATCH
    kind = kind_on(case, target, torch.__version__)
    if kind is Kind.DIVERGES:
        raising = any(d.kind is DifferenceKind.EXCEPTION for d in seen.differences)
        found.raising += int(raising)
        found.raising_flagged += int(raising and flagged)
        found.pairs += int(not raising)
        found.flagged += int(not raising and flagged)
        if not flagged:
            found.wrong.append(f"{name}: not flagged")
        return
    ordinary = between(of, sides[0], sides[1], sides[2], case.ordinary()).verdict
    loud = flagged or ordinary.outcome is Outcome.MISMATCH
    if kind is Kind.CONTROL:
        found.controls += 1
        found.controls_flagged += int(loud)
    else:
        found.benign += 1
        found.benign_flagged += int(loud)
    if loud:
        found.wrong.append(f"{name}: flagged")
