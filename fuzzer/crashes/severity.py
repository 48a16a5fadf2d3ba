"""How grave a crash is, in four words."""

from __future__ import annotations

from fuzzer.diagnose import Label, primary
from fuzzer.verify.verdict import Blame, Kind, Verdict

#: crash: a process dies, hangs or exceeds its memory. wrong: an answer is not what it should be (structure, exceptions,
#: values beyond the noise, state). decision: an order or a near-tie goes another way. minor: rounding, signs of zero.
#: What is minor by its tensors is as grave as what the task makes of it.
SEVERITIES = ("crash", "wrong", "decision", "minor")


def severity(verdict: Verdict, label: Label) -> str:
    """One of SEVERITIES, by the primary difference and the label's class. Raises ValueError without a difference."""
    difference = primary(verdict)
    if difference is None:
        raise ValueError("a verdict without differences has no severity")
    if difference.kind in (Kind.CRASH, Kind.HANG, Kind.MEMORY):
        return "crash"
    if label.cls == "order":
        return "decision"
    excused = difference.kind is Kind.VALUE and difference.blame is Blame.NEITHER
    if difference.kind is Kind.SIGNED_ZERO or excused or label.name in ("numeric/rounding", "numeric/accumulation"):
        return _by_task(verdict)
    if difference.kind is Kind.TASK and difference.near_tie:
        return "decision"
    return "wrong"


def _by_task(verdict: Verdict) -> str:
    if verdict.task is None or verdict.task.status != "fail":
        return "minor"
    return "decision" if verdict.task.near_tie else "wrong"
