"""What a reduction met on its way: candidates that failed otherwise. Each other fault is a finding of its own.

It becomes a crash like any finding: its first candidate is reproduced in fresh processes, and stored only then.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import TIERS, Crash, bounded
from fuzzer.crashes.graph_reduction import graph_crash
from fuzzer.crashes.probe import Fault, Slip
from fuzzer.crashes.replay import CrashState, diagnosed, replay
from fuzzer.crashes.severity import severity
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import XbfuzzError
from fuzzer.reduce import size_of

#: So many other faults of one reduction are tried in fresh processes, the ones seen most often first.
MOST_TRIED = 3


@dataclass(frozen=True)
class Aside:
    """What became of another fault that a reduction met. `folder`: where it is stored, None where it is not."""

    id: str
    fault: Fault
    count: int
    folder: Path | None
    detail: str

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "fault": str(self.fault),
            "count": self.count,
            "stored": self.folder is not None,
            "detail": self.detail,
        }


def keep_slips(
    crash: Crash,
    slips: Mapping[Fault, Slip],
    where: Where,
    folder: Path,
    *,
    private: bool = False,
    today: Callable[[], str] = lambda: time.strftime("%Y-%m-%d"),
) -> list[Aside]:
    """Reproduce other faults that the reduction of `crash` met, and store under `folder` those that do.

    A fault with the crash's own signature (it differs in blame, or is a near-tie) has no id of its own, and one whose
    id is stored already is known: these are told and not tried.
    """
    told: list[Aside] = []
    tried: set[str] = set()
    for fault, slip in sorted(slips.items(), key=lambda item: -item[1].count):
        name = fault.signature.id
        home: Path | None = None
        detail = ""
        if fault.signature == crash.signature:
            detail = "has this crash's own signature"
        elif (folder / name).exists() or name in tried:
            detail = "is stored already" if name not in tried else "has the signature of another one here"
        elif len(tried) == MOST_TRIED:
            detail = "was not tried in fresh processes: too many others"
        else:
            tried.add(name)
            try:
                home, detail = _kept(_staged(crash, fault, slip, today()), slip, where, folder, private)
            except XbfuzzError as error:
                detail = str(error)
        told.append(Aside(name, fault, slip.count, home, detail))
    return told


def _staged(crash: Crash, fault: Fault, slip: Slip, today: str) -> Crash:
    """The crash of another fault, on the first candidate that showed it."""
    base = crash if slip.case is None else graph_crash(crash, slip.case, slip.task)
    verdict = slip.examined.verdict
    other = replace(
        base,
        signature=fault.signature,
        inputs=dict(slip.sample),
        original=None,
        recipe=None,
        blame=str(verdict.blame),
        verdict=bounded(verdict),
        tiers={**TIERS, **verdict.tiers()},
        expect="diverges",
        stage=None,
        mitigations=(),
        sizes=_sizes(slip),
        activations={},
        diagnosis={},
        status="open",
        link="",
        found={"reducing": crash.id, "date": today},
    )
    about = diagnosed(other, slip.examined)
    return replace(other, label=about.label, evidence=tuple(about.evidence), severity=severity(verdict, about.label))


def _sizes(slip: Slip) -> dict[str, int]:
    size = size_of(slip.sample)
    nodes = {} if slip.case is None else {"nodes": slip.case.size.nodes}
    return {"original": size.elements, "reduced": size.elements, "filled": size.filled, **nodes}


def _kept(staged: Crash, slip: Slip, where: Where, folder: Path, private: bool) -> tuple[Path | None, str]:
    """Store what reproduces from its files alone, described by what was seen then."""
    weights = None if slip.case is None else slip.case.constants
    with tempfile.TemporaryDirectory(prefix="xbfuzz-slip-") as place:
        read = load_crash(write_crash(Path(place), staged, weights=weights))
        found = replay(read, where, keep_weights=True)
        if found.state is not CrashState.REPRODUCES or found.examined is None:
            return None, f"in fresh processes: {found.state}"
        about = diagnosed(read, found.examined, reproduced=True)
        named = replace(staged, label=about.label, evidence=tuple(about.evidence))
        return write_crash(folder, named, weights=found.weights, private=private), str(about.label)
