"""Crashes in groups: by label, target, stage, seed or operator, the gravest group first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.severity import SEVERITIES

NONE = "-"


def operator_of(crash: Crash) -> str | None:
    """The operator to which reruns traced a crash; else where drift starts, if activations were looked at."""
    if crash.diagnosis.get("operator"):
        return str(crash.diagnosis["operator"])
    points: Iterable[Mapping[str, object]] = crash.activations.get("points", ())
    found = next((point for point in points if point.get("origin")), None)
    return None if found is None else str(found.get("module") or found.get("name") or "") or None


#: How crashes can be grouped: a name for a user, and what it reads of a crash.
BY: dict[str, Callable[[Crash], str | None]] = {
    "label": lambda crash: crash.label.name,
    "target": lambda crash: crash.signature.target,
    "stage": lambda crash: crash.stage,
    "seed": lambda crash: crash.signature.seed,
    "operator": operator_of,
}


@dataclass(frozen=True)
class Group:
    """`name` is `-` for the crashes of which this is not known. The crashes are in the order of `order`."""

    name: str
    crashes: Sequence[Crash]

    @property
    def severity(self) -> str:
        """That of its gravest crash."""
        return min((crash.severity for crash in self.crashes), key=SEVERITIES.index)


def order(crashes: Iterable[Crash]) -> list[Crash]:
    """Gravest first, then by label and id."""
    return sorted(crashes, key=lambda crash: (SEVERITIES.index(crash.severity), str(crash.label), crash.id))


def groups(crashes: Iterable[Crash], by: str) -> list[Group]:
    """The crashes by one of BY: gravest group first, then the largest, then by name. Raises KeyError on another."""
    found: dict[str, list[Crash]] = {}
    for crash in order(crashes):
        found.setdefault(BY[by](crash) or NONE, []).append(crash)
    listed = [Group(name, members) for name, members in found.items()]
    return sorted(listed, key=lambda group: (SEVERITIES.index(group.severity), -len(group.crashes), group.name))
