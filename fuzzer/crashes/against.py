"""A crash folder across two interpreters: what an upgrade fixes, and what it breaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.replay import CrashState, Replayed


class Change(StrEnum):
    """What became of a crash from this interpreter to the other."""

    FIXED = "fixed-in"
    REGRESSED = "regressed-in"
    UNCHANGED = "unchanged"
    OTHER = "changed-in"  # flaky on one side, or another signature
    UNKNOWN = "unavailable"  # one of the two could not say


@dataclass(frozen=True)
class Across:
    """One crash, replayed here and there."""

    here: Replayed
    there: Replayed

    @property
    def change(self) -> Change:
        states = self.here.state, self.there.state
        if CrashState.UNAVAILABLE in states:
            return Change.UNKNOWN
        if states[0] is states[1]:
            return Change.UNCHANGED
        if states[1] is CrashState.FIXED and states[0] is not CrashState.FLAKY:
            return Change.FIXED
        if states[0] is CrashState.FIXED and states[1] is not CrashState.FLAKY:
            return Change.REGRESSED
        return Change.OTHER

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.here.id,
            "change": str(self.change),
            "here": str(self.here.state),
            "there": str(self.there.state),
            "detail": self.there.detail,
        }


def under(crash: Crash, python: str) -> Crash:
    """The crash with both its sides run by that interpreter, as someone who upgrades would run them.

    The float64 oracle stays here, so that both interpreters are judged by one truth.
    """
    reference, target = (str(BackendSpec.parse(text).under(python)) for text in (crash.reference, crash.target))
    return replace(crash, reference=reference, target=target)


def versions_between(pairs: Iterable[Across]) -> list[str]:
    """What the two interpreters have in other versions: `onnxruntime 1.32.0 → 1.30.0`."""
    found: dict[str, str] = {}
    for pair in pairs:
        for name in dict.fromkeys((*pair.here.versions, *pair.there.versions)):
            here, there = pair.here.versions.get(name), pair.there.versions.get(name)
            if here != there and pair.there.versions:
                found[name] = f"{name} {here or 'none'} → {there or 'none'}"
    return list(found.values())


def table(pairs: Sequence[Across]) -> str:
    """A heading that names the versions, a line for each crash, and a line that counts."""
    between = versions_between(pairs)
    lines = ["; ".join(between) if between else "the two interpreters have the same versions"]
    width = max((len(pair.here.id) for pair in pairs), default=0)
    for pair in pairs:
        detail = f": {pair.there.detail}" if pair.there.detail else ""
        states = f"{pair.here.state} → {pair.there.state}"
        lines.append(f"{pair.change:<13} {pair.here.id:<{width}}  {states}{detail}")
    counts = {change: sum(pair.change is change for pair in pairs) for change in Change}
    lines.append(", ".join(f"{count} {change}" for change, count in counts.items() if count) or "no crashes")
    return "\n".join(lines)
