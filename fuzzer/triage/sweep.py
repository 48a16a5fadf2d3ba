"""What a fixed tolerance would see of the crashes, by the norm criterion of arXiv 2509.06977.

A side fails at the tolerance τ where ‖t − r‖∞ > τ + 1e-5·‖r‖∞ at some leaf. Other shapes, NaN at other places, other
integers and exceptions fail at every tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzer.crashes.crash import Crash
from fuzzer.triage.numbers import number
from fuzzer.verify.compare import STUDY_RTOL
from fuzzer.verify.verdict import Kind

#: The tolerances of the sweep.
LEVELS = tuple(10.0**exponent for exponent in range(-8, 0))
#: Differences of which a tolerance can make nothing.
_WITHIN = frozenset({Kind.VALUE, Kind.TASK, Kind.SIGNED_ZERO})


@dataclass(frozen=True)
class Sweep:
    """`seen`: how many of the `known` crashes fail at each of LEVELS. `always`: those that fail at any tolerance.

    `unknown` crashes lack the statistics: they were stored without ‖r‖∞.
    """

    levels: Sequence[float]
    seen: Sequence[int]
    always: int
    known: int
    unknown: int


def sweep(crashes: Iterable[Crash]) -> Sweep:
    """Count the crashes that each tolerance would see."""
    reaches = [gap_of(crash) for crash in crashes]
    known = [gap for gap in reaches if gap is not None]
    seen = [sum(gap > level for gap in known) for level in LEVELS]
    return Sweep(LEVELS, seen, sum(gap == float("inf") for gap in known), len(known), len(reaches) - len(known))


def gap_of(crash: Crash) -> float | None:
    """The least τ at which the crash is not seen; infinite where every tolerance sees it, None where it is not known.

    It is the largest of ‖t − r‖∞ − 1e-5·‖r‖∞ over the leaves, at least 0.
    """
    differences = crash.verdict.get("differences", ())
    if any(difference.get("kind") not in _WITHIN for difference in differences):
        return float("inf")
    found = [_gap(stats) for stats in crash.verdict.get("stats", ())]
    measured = [gap for gap in found if gap is not None]
    if not measured or len(measured) < len(found):
        return None
    return max(0.0, *measured)


def _gap(stats: Mapping[str, Any]) -> float | None:
    gap, largest = number(stats.get("max_abs")), number(stats.get("largest"))
    if gap is None or largest is None:
        return None
    return gap if gap == float("inf") else gap - STUDY_RTOL * largest
