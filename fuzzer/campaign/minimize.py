"""A smaller corpus with the same features: a greedy cover, in which what a user put there always stays.

An entry is a campaign's own where its JSON says `kept_by: campaign`, both of its files are there, and its name is
still the hash of its content. Everything else in the folder is somebody's, and is not touched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzer import tensors
from fuzzer.errors import InputError

#: What `corpus.keep` writes under `kept_by`.
CAMPAIGN = "campaign"


@dataclass(frozen=True)
class Entry:
    """One kept input. `own`: a campaign wrote it, and nobody has changed it since."""

    path: Path  # of the JSON file
    features: frozenset[str]
    steps: int
    own: bool


@dataclass
class Minimized:
    """What minimizing one seed's folder came to."""

    seed: str
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    yours: list[str] = field(default_factory=list)  # among the kept, those that no campaign wrote
    features: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "kept": self.kept,
            "removed": self.removed,
            "yours": self.yours,
            "features": self.features,
        }


def cover(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that stay: all that are a user's, then greedily those with the most features still missing.

    Of equals the one with fewer steps, then the first by name.
    """
    chosen = [entry for entry in entries if not entry.own]
    missing = frozenset[str]().union(*(entry.features for entry in entries))
    missing -= frozenset[str]().union(*(entry.features for entry in chosen))
    left = sorted((entry for entry in entries if entry.own), key=lambda entry: (entry.steps, entry.path.name))
    while missing:
        best = max(left, key=lambda entry: len(entry.features & missing))  # the first of equals
        chosen.append(best)
        left.remove(best)
        missing -= best.features
    return chosen


def minimize(folder: Path, *, dry_run: bool = False) -> Minimized:
    """Remove from one seed's corpus folder the campaign's entries whose features others have too.

    `dry_run`: only say what would go. Raises InputError where there is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no corpus folder")
    entries = [_entry(path) for path in sorted(folder.glob("*.json"))]
    stays = cover(entries)
    found = Minimized(folder.name, features=len(frozenset[str]().union(*(entry.features for entry in entries))))
    for entry in entries:
        if entry in stays:
            found.kept.append(entry.path.stem)
            found.yours += [] if entry.own else [entry.path.stem]
            continue
        found.removed.append(entry.path.stem)
        if not dry_run:
            entry.path.unlink()  # first: a tensor file without its JSON is no entry
            entry.path.with_suffix(".safetensors").unlink()
    return found


def _entry(path: Path) -> Entry:
    """What lies at `path`; something that cannot be read as an entry is a user's file without features."""
    nothing = Entry(path, frozenset(), 0, own=False)
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        features = frozenset(str(feature) for feature in about["features"])
        steps = len(about["recipe"]["steps"])
        unchanged = tensors.content_hash(tensors.decode(path.with_suffix(".safetensors").read_bytes())) == path.stem
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return nothing
    return Entry(path, features, steps, own=about.get("kept_by") == CAMPAIGN and unchanged)
