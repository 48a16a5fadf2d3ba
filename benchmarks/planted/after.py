"""What becomes of a finding: it is reduced, and it gets its label. One function for each, as a campaign does them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.diagnosing import diagnose_crash
from fuzzer.crashes.reduced import Outcome, Reduction
from fuzzer.crashes.reduction import reduce_crash, write_reduced
from fuzzer.crashes.store import load_crash


@dataclass
class Aftermath:
    """`label` as a crash would bear it, `?` where suspected only. `reduction`: the outcome of the reduction.

    `before` and `after` are sizes of the input (elements, and those that are not of the background).
    """

    label: str
    reduction: str = ""
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    tests: int = 0
    seconds: float = 0.0
    detail: str = ""

    @property
    def reduced(self) -> bool:
        """Whether a smaller input was confirmed, or none that is smaller shows the fault."""
        return self.reduction in (Outcome.REDUCED, Outcome.MINIMAL, "needless")


def aftermath(crash: Crash, where: Where, *, budget_s: float) -> Aftermath:
    """Reduce a confirmed crash and label what is left of it, each in `budget_s` seconds at most."""
    found = reduced(crash, where, budget_s)
    return Aftermath(
        label=label_of(found, where, budget_s),
        reduction=str(found.outcome),
        before=dict(found.before.__dict__),
        after=dict(found.after.__dict__),
        tests=found.tests,
        seconds=round(found.seconds, 3),
        detail=found.detail[:200],
    )


def reduced(crash: Crash, where: Where, budget_s: float) -> Reduction:
    return reduce_crash(crash, where, budget_s=budget_s)


def label_of(found: Reduction, where: Where, budget_s: float) -> str:
    """The label that reruns give to a reduced crash, with a `?` where none of them proved it.

    It is read from its files: a graph has constants that lie in none of the crash's fields.
    """
    with tempfile.TemporaryDirectory(prefix="xbfuzz-after-") as folder:
        crash = load_crash(write_reduced(Path(folder), found))
        return str(diagnose_crash(crash, where, budget_s=budget_s, mitigate=False)[1].label)
