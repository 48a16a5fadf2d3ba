"""The data that comparing produces: differences at leaves, statistics, and the verdict that holds them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal


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
    TASK = "task"  # the task's answer breaks while no tensor does


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
    `largest` is ‖r‖∞. `norm_ok` is the study's criterion ‖t − r‖∞ ≤ atol + rtol·‖r‖∞ at atol 1e-6, 1e-5, 1e-4, 1e-3
    and rtol 1e-5.
    """

    path: str
    elements: int
    finite: int = 0
    max_abs: float = 0.0
    mean_abs: float = 0.0
    p95_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: int = 0
    largest: float = 0.0
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
class TaskVerdict:
    """What a difference means for the task that the outputs serve (tier 3).

    `elements` counts the decisions, boxes, rows or values that were compared; with none the task was not run.
    `near_tie`: every change hangs on a margin within the noise (a segmentation that changes only so is a pass still).
    `leaf` is the path at which the answer is read. `metrics` are named by their task and written to files as they are.
    `boxes`: what a detector found, for a drawing: for each image with boxes in dispute the rows of each side
    (`reference`, `target`, `float64`), each x1, y1, x2, y2, score, label, and 1 where the other side has it, else 0.
    """

    status: Literal["pass", "fail", "not-run"]
    sentence: str
    elements: int = 0
    metrics: dict[str, float | int | str] = field(default_factory=dict)
    near_tie: bool = False
    blame: Blame = Blame.NEITHER
    leaf: str = ""
    boxes: list[dict[str, list[list[float]]]] = field(default_factory=list)

    @property
    def state(self) -> str:
        """pass, fail, near-tie or not-run: the status, except that a near-tie is called one."""
        return "near-tie" if self.near_tie and self.status != "not-run" else self.status

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state}


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
    task: TaskVerdict | None = None

    @property
    def tensors(self) -> str:
        """Tier 1 in one word: fail, vacuous, pass, or not-run where there was nothing to compare."""
        if any(difference.kind is not Kind.TASK for difference in self.differences):
            return "fail"
        if self.outcome is Outcome.NOT_COMPARED:
            return "not-run"
        return "pass" if self.informative else "vacuous"

    def tiers(self, activations: str = "not-run") -> dict[str, str]:
        """Each tier's own answer; they may disagree. `activations` is what tier 2 said, where it was run."""
        task = "not-run" if self.task is None else self.task.state
        return {"tensors": self.tensors, "activations": activations, "task": task}

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
            "task": None if self.task is None else self.task.to_json(),
        }


def sentence_of(verdict: Verdict) -> str:
    """Tier 1 and tier 3 in one sentence: "tensors agree, but top-1 flips on 1 of 4 samples: …"."""
    state, task = verdict.tensors, verdict.task
    if task is None:
        return _tensors(verdict)
    if task.status == "not-run":
        return f"{_tensors(verdict)}; the task was not run: {task.sentence}"
    opposed = (state == "fail") != (task.state != "pass") or state in ("vacuous", "not-run")
    return f"{_tensors(verdict)}, {'but' if opposed else 'and'} {task.sentence}"


def _tensors(verdict: Verdict) -> str:
    state = verdict.tensors
    if state == "fail":
        paths = list(dict.fromkeys(d.path for d in verdict.differences if d.kind is not Kind.TASK))
        excused = all(d.near_tie or d.blame is Blame.NEITHER for d in verdict.differences if d.kind is not Kind.TASK)
        where = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        return f"tensors differ at {where}" + (", within the noise" if excused else "")
    if state == "pass":
        apart = any(stats.max_abs > 0 for stats in verdict.stats)
        return "tensors within the noise" if apart else "tensors agree"
    return "the tensors could tell nothing" if state == "vacuous" else "no tensors were compared"
