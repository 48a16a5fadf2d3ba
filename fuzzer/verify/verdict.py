"""The data that comparing produces: differences at leaves, statistics, and the verdict that holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What kind of difference was seen. Part of a finding's signature, so a value never changes its meaning."""

    ARITY = "arity"  # leaves missing or extra, by path
    OBJECT = "object"  # a leaf that is no tensor differs
    SHAPE = "shape"
    DTYPE = "dtype"  # dtype or layout
    NONFINITE = "nonfinite"  # NaN or infinities at other places, or of other signs
    VALUE = "value"  # finite float or complex values too far apart
    INTEGER = "integer"  # an integer or bool leaf
    SIGNED_ZERO = "signed-zero"  # +0 against −0, where the seed asks for it
    EXCEPTION = "exception"  # one side raises, the other answers
    CRASH = "crash"  # a process died
    HANG = "hang"
    MEMORY = "out-of-memory"
    NONDETERMINISM = "nondeterminism"  # a backend disagrees with itself
    MUTATION = "mutation"  # a run changed an input, a parameter or a buffer


class Outcome(StrEnum):
    """A mismatch outranks vacuous, vacuous outranks pass."""

    MISMATCH = "mismatch"
    VACUOUS = "vacuous"  # no element was compared that could have told anything
    NOT_COMPARED = "not-compared"  # both sides raised: nothing to compare, no finding
    PASS = "pass"


class Blame(StrEnum):
    """Which side is far from the float64 answer, in units of the model's own noise."""

    TARGET = "target"
    REFERENCE = "reference"
    BOTH = "both"
    NEITHER = "neither"  # within the noise: rounding, or a near-tie
    UNKNOWN = "unknown"  # no float64 answer to judge by


@dataclass
class LeafStats:
    """How far two float leaves are apart, over the `finite` elements at which both are finite. All float64.

    `ulp` counts representable numbers of the leaf's dtype between the two values (0: same value, −0 equals +0).
    `norm_ok` is the study's criterion ‖t − r‖∞ ≤ atol + rtol·‖r‖∞ at atol 1e-6, 1e-5, 1e-4, 1e-3 and rtol 1e-5.
    """

    path: str
    elements: int
    finite: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    p95_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    norm_ok: dict[str, bool] = field(default_factory=dict)


@dataclass
class Difference:
    """One leaf, one kind of difference, with the facts that a report needs.

    `mismatched` of `compared` elements differ; `index` is that of the worst, with both sides' values there as text.
    `drift_target`, `drift_reference`: distance from float64 in noise floors at the worst element, once judged.
    """

    path: str
    kind: Kind
    message: str
    compared: int = 0
    mismatched: int = 0
    index: tuple[int, ...] | None = None
    reference: str = ""
    target: str = ""
    truth: str = ""
    drift_reference: float | None = None
    drift_target: float | None = None
    near_tie: bool = False
    blame: Blame = Blame.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Verdict:
    """The result of comparing one target with the reference on one input.

    `compared` counts the elements looked at, `informative` those in leaves that are known to change with the input.
    `notes` are sentences for a reader: what was not compared, what was screened only.
    """

    outcome: Outcome
    compared: int = 0
    informative: int = 0
    differences: list[Difference] = field(default_factory=list)
    stats: list[LeafStats] = field(default_factory=list)
    judged: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def blame(self) -> Blame:
        """The blame over all differences: both, where some fall on either side."""
        sides = {difference.blame for difference in self.differences}
        if {Blame.TARGET, Blame.REFERENCE} <= sides or Blame.BOTH in sides:
            return Blame.BOTH
        for side in (Blame.TARGET, Blame.REFERENCE, Blame.UNKNOWN):
            if side in sides:
                return side
        return Blame.NEITHER

    def to_json(self) -> dict[str, Any]:
        return {
            "outcome": str(self.outcome),
            "compared": self.compared,
            "informative": self.informative,
            "judged": self.judged,
            "blame": str(self.blame),
            "differences": [difference.to_json() for difference in self.differences],
            "stats": [asdict(stats) for stats in self.stats],
            "notes": list(self.notes),
        }
