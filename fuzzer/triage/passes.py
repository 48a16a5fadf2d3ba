"""How often each model passed on each backend: the statistics of the runs that lie beside a crash folder, added up."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fuzzer.errors import XbfuzzError

#: The order of what did not run, the most telling first, where runs differ.
_SILENT = ("crashes", "abandoned", "unsupported", "unavailable", "not-prepared")


class _Target(BaseModel):
    """What is read of one target in a run's statistics; the rest is left alone."""

    model_config = ConfigDict(extra="ignore", strict=True)
    seed: str
    backend: str
    status: str
    reason: str = ""
    executions: Annotated[int, Field(ge=0)]
    outcomes: dict[str, Annotated[int, Field(ge=0)]]


class _Stats(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    targets: list[_Target]


@dataclass
class Cell:
    """One seed on one target over all runs. `status` and `reason` are told where nothing ran."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    status: str = ""
    reason: str = ""

    @property
    def compared(self) -> int:
        """Executions that had something to compare. A vacuous one counts: it is no pass."""
        return self.executions - self.outcomes["not-compared"]

    @property
    def share(self) -> float | None:
        """Passes among what was compared, 0 to 1; None where nothing was."""
        return self.outcomes["pass"] / self.compared if self.compared > 0 else None

    @property
    def words(self) -> str:
        """The share in percent, cut and not rounded: only what always passed is 100 %. Else the status."""
        share = self.share
        if share is None:
            return self.status if self.status not in ("", "ok") else "nothing compared" if self.executions else "-"
        return "100 %" if share == 1.0 else f"{math.floor(share * 1000) / 10:.1f} %"

    @property
    def counts(self) -> str:
        """What became of the executions, in words."""
        parts = [f"{count} {name}" for name, count in sorted(self.outcomes.items()) if count]
        return ", ".join(parts) or self.reason


@dataclass(frozen=True)
class Passes:
    """Seeds and targets in the order of their names, and a cell for each pair that a run had."""

    seeds: Sequence[str]
    targets: Sequence[str]
    cells: Mapping[tuple[str, str], Cell]
    runs: int = 0

    @property
    def executions(self) -> int:
        return sum(cell.executions for cell in self.cells.values())


def read_passes(runs: Path) -> Passes:
    """What the `stats.json` of every run under `runs` says; of a run that was killed there is none.

    Raises XbfuzzError, one line, on a file that is no statistics of a run.
    """
    return add_up(_read(path) for path in sorted(runs.glob("*/stats.json")))


def add_up(runs: Iterable[Any]) -> Passes:
    """The statistics of several runs, the oldest first, as one table. Raises pydantic's ValidationError."""
    cells: dict[tuple[str, str], Cell] = {}
    count = 0
    for stats in runs:
        count += 1
        for target in _Stats.model_validate(stats).targets:
            cell = cells.setdefault((target.seed, target.backend), Cell())
            cell.executions += target.executions
            cell.outcomes.update(target.outcomes)
            if not cell.status or _rank(target.status) <= _rank(cell.status):
                cell.status, cell.reason = target.status, target.reason
    seeds, targets = (sorted({key[i] for key in cells}) for i in (0, 1))
    return Passes(seeds, targets, cells, count)


def _rank(status: str) -> int:
    return _SILENT.index(status) if status in _SILENT else len(_SILENT)


def _read(path: Path) -> Any:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        _Stats.model_validate(data)
    except (OSError, UnicodeDecodeError, ValueError) as error:  # a ValidationError is a ValueError
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else " ".join(str(error).split())
        raise XbfuzzError(f"{path}: no statistics of a run: {first}") from error
    return data
