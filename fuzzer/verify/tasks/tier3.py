"""Tier 3 on two sets of leaves: read both answers, compare them, and ask for evidence only where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fuzzer.seeds import Task
from fuzzer.trees import Leaves
from fuzzer.verify.judge import OracleAnswer
from fuzzer.verify.tasks.base import TENSORS, Evidence, NoAnswer, TaskKind, blame_of, find_task, not_run
from fuzzer.verify.verdict import Blame, Difference, Kind, TaskVerdict


@dataclass(frozen=True)
class _Side:
    """An answer, or None and the reason."""

    answer: Any
    reason: str = ""


def evaluate(
    task: Task,
    reference: Leaves,
    target: Leaves,
    *,
    truth: Leaves | None = None,
    decide_draws: Callable[[], list[Leaves] | None] = lambda: None,
    plain: Leaves | None = None,
) -> TaskVerdict:
    """What the difference between two sets of leaves means for `task`. Never raises on account of the leaves.

    `truth` is float64's answer, `plain` the module's own (the reference, where None), and `decide_draws` gives the
    module's answers under random rounding at the judge's threshold in places; it is asked once, where the task fails.
    An answer that is on neither side is `not-run`, one that is on one side only fails.
    Raises InputError where no task of that kind is registered.
    """
    if task.kind == TENSORS:
        return not_run("the seed names no task")
    kind = find_task(task.kind)
    sides = [_read(kind, task, leaves) for leaves in (reference, target)]
    r, t = (side.answer for side in sides)
    if r is None or t is None:
        return _one_sided(kind, task, sides, truth)
    if r.shape != t.shape:
        return _other_shape(r, t, None if truth is None else _read(kind, task, truth).answer)
    found = _compare(kind, r, t, Evidence())
    if found.status != "fail":
        return found

    def like(leaves: Leaves | None) -> Any:
        answer = None if leaves is None else _read(kind, task, leaves).answer
        return answer if answer is not None and answer.shape == r.shape else None

    draws = [answer for answer in map(like, decide_draws() or []) if answer is not None]
    return _compare(kind, r, t, Evidence(like(truth), like(plain), draws))


def tier3(
    task: Task,
    reference: Leaves,
    target: Leaves,
    oracle: OracleAnswer | None,
    ask: Callable[[bool], OracleAnswer | None],
) -> TaskVerdict:
    """`evaluate` with the oracle behind it. `ask(decide)` is called only where the task fails: for float64's answer
    where `oracle` is None, and for draws at a wide amplitude. None says that there is no such answer.
    """
    quick = evaluate(task, reference, target)
    if quick.status != "fail":
        return quick
    known = oracle if oracle is not None else ask(False)
    wide = ask(True)
    return evaluate(
        task,
        reference,
        target,
        truth=None if known is None else known.truth,
        decide_draws=lambda: None if wide is None else [*wide.draws, *([] if known is None else known.draws)],
        plain=None if wide is None else wide.plain,
    )


def plainly_alike(task: Task, reference: Leaves, target: Leaves) -> bool:
    """Whether `evaluate` would surely not fail, seen at a glance; False where it has to look."""
    if task.kind == TENSORS:
        return True
    kind = find_task(task.kind)
    r, t = (_read(kind, task, leaves).answer for leaves in (reference, target))
    if r is None or t is None or r.shape != t.shape:
        return False
    try:
        return bool(kind.plainly_alike(r, t))
    except Exception:  # a plug-in's own fault: then it is looked at, and `compare` tells what is wrong
        return False


def lists_of(task: Task, leaves: Leaves) -> list[list[str]]:
    """The leaves whose rows belong together and have no place of their own, as the task knows them."""
    if task.kind == TENSORS:
        return []
    try:
        return find_task(task.kind).lists(task.outputs, leaves)
    except NoAnswer:
        return []


def task_difference(task: TaskVerdict) -> Difference | None:
    """The difference that a verdict gets where the task fails and no tensor differs; None where the task holds."""
    if task.status != "fail":
        return None
    return Difference(
        task.leaf or "$",
        Kind.TASK,
        task.sentence,
        compared=task.elements,
        near_tie=task.near_tie,
        blame=task.blame,
    )


def over_set(task: Task, pairs: Sequence[tuple[Leaves, Leaves]]) -> dict[str, float]:
    """The task's metrics of targets against references, over a set of (reference, target), by torchmetrics.

    `pairs` counts those that went in, `left_out` those that could not be read or have another shape on either side.
    Raises InputError where the task has no such metrics, XbfuzzError where torchmetrics is not installed.
    """
    kind = find_task(task.kind)
    read = [(_read(kind, task, r).answer, _read(kind, task, t).answer) for r, t in pairs]
    both = [(r, t) for r, t in read if r is not None and t is not None and r.shape == t.shape]
    return {"pairs": float(len(both)), "left_out": float(len(pairs) - len(both)), **kind.over_set(both)}


def _read(kind: TaskKind[Any], task: Task, leaves: Leaves) -> _Side:
    try:
        return _Side(kind.read(task.outputs, leaves))
    except NoAnswer as error:
        return _Side(None, str(error))
    except Exception as error:  # a plug-in's own fault, as below
        return _Side(None, f"the task {kind.name!r} itself failed: {type(error).__name__}: {error}")


def _compare(kind: TaskKind[Any], reference: Any, target: Any, evidence: Evidence[Any]) -> TaskVerdict:
    try:
        return kind.compare(reference, target, evidence)
    except Exception as error:  # a plug-in's own fault must not end a campaign: recorded, and never a pass
        return not_run(f"the task {kind.name!r} itself failed: {type(error).__name__}: {error}")


def _one_sided(kind: TaskKind[Any], task: Task, sides: Sequence[_Side], truth: Leaves | None) -> TaskVerdict:
    reference, target = sides
    if reference.answer is None and target.answer is None:
        return not_run(reference.reason)
    lacking, reason = ("reference", reference.reason) if reference.answer is None else ("target", target.reason)
    blame = Blame.UNKNOWN
    if truth is not None:
        there = _read(kind, task, truth).answer is not None
        blame = blame_of((target.answer is not None) != there, (reference.answer is not None) != there)
    leaf = (reference.answer or target.answer).path
    return TaskVerdict("fail", f"the {lacking} has no answer: {reason}", elements=1, blame=blame, leaf=leaf)


def _other_shape(reference: Any, target: Any, truth: Any) -> TaskVerdict:
    sentence = f"the target answers in shape {target.shape}, the reference in {reference.shape}"
    blame = Blame.UNKNOWN
    if truth is not None:
        blame = blame_of(target.shape != truth.shape, reference.shape != truth.shape)
    return TaskVerdict("fail", sentence, elements=1, blame=blame, leaf=reference.path)
