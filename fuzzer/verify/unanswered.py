"""The verdict where a side gives no answer: it raised, its process died, or the harness failed.

Which side is to blame for an exception follows from float64: where that answers, the side that raised is wrong to
raise; where it raises the same error, the model itself refuses the input, and the side that answers is wrong to answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fuzzer.backends.session import Answer
from fuzzer.verify.noise import OracleAnswer
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

#: The names of float dtypes in messages: the same error names another one in float64.
_FLOATS = re.compile(r"\b(c10::)?(float32|float64|float|double)\b", re.IGNORECASE)
#: Characters of an error's first line that tell it from another.
_TOLD = 200


class OracleDown(Exception):
    """The oracle could not be asked; the verdict is then not judged, and says why."""


def without_leaves(reference: Answer, target: Answer, truth: Callable[[], OracleAnswer]) -> Verdict | None:
    """The verdict where a side has no leaves; None where both have.

    `truth` gives the float64 answer alone, or raises OracleDown; it is asked only where one side raised.
    """
    for side, answer in (("reference", reference), ("target", target)):
        if answer.failure is not None and answer.failure.kind == "internal":
            return Verdict(Outcome.NOT_COMPARED, notes=[f"harness error on the {side}: {answer.error}"])
        if answer.failure is not None and answer.failure.kind == "unsupported":
            return Verdict(Outcome.NOT_COMPARED, notes=[f"the {side} cannot run this input: {answer.error}"])
    if reference.leaves is not None and target.leaves is not None:
        return None
    died = _deaths(reference, target)
    if died:
        return Verdict(Outcome.MISMATCH, differences=died)
    if reference.failure is not None and target.failure is not None:
        kinds = f"{reference.failure.type} and {target.failure.type}"
        return Verdict(Outcome.NOT_COMPARED, notes=[f"both sides raise: {kinds}"])
    return _one_raised(reference, target, truth)


def _deaths(reference: Answer, target: Answer) -> list[Difference]:
    texts = reference.error or "answers", target.error or "answers"
    found = []
    for side, answer, other, blame in (
        ("target", target, reference, Blame.TARGET),
        ("reference", reference, target, Blame.REFERENCE),
    ):
        if answer.death is None:
            continue
        does = "dies too" if other.death else "raises" if other.failure else "answers"
        message = f"the {side} dies ({answer.death.message}); the other side {does}"
        kind = Kind(str(answer.death.kind))
        found.append(Difference("$", kind, message, blame=blame, reference=texts[0], target=texts[1]))
    return found


def _one_raised(reference: Answer, target: Answer, truth: Callable[[], OracleAnswer]) -> Verdict:
    by_reference = reference.failure is not None
    raised = (reference if by_reference else target).error
    side, other = ("reference", "target") if by_reference else ("target", "reference")
    raiser = Blame.REFERENCE if by_reference else Blame.TARGET
    message = f"the {side} raises, the other side answers"
    notes: list[str] = []
    judged, answered = False, ""
    try:
        exact = truth()
    except OracleDown as error:
        blame, notes = Blame.UNKNOWN, [f"not judged: {error}"]
    else:
        judged = True
        if exact.truth is not None:
            blame, answered = raiser, "answers"
            message += ", and so does float64"
        elif by_reference and _same_error(raised, exact.no_truth):
            blame, answered = Blame.TARGET, exact.no_truth
            message += f"; float64 raises too: the model refuses this input, and the {other} does not"
        else:
            blame = Blame.UNKNOWN
            notes.append(f"no float64 answer: {exact.no_truth}")
    texts = reference.error or "answers", target.error or "answers"
    difference = Difference(
        "$", Kind.EXCEPTION, message, blame=blame, reference=texts[0], target=texts[1], truth=answered
    )
    return Verdict(Outcome.MISMATCH, differences=[difference], judged=judged, notes=notes)


def _same_error(first: str, second: str) -> bool:
    """Whether two errors (`Type: message`) have one type and, but for the names of float dtypes, one first line."""
    return _plain(first) == _plain(second)


def _plain(error: str) -> str:
    line = error.split("\n", 1)[0].split(" / ", 1)[0].strip()
    return _FLOATS.sub("float", line)[:_TOLD]
