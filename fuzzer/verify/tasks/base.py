"""What a task is: a class that finds its answer among the output leaves and says what a change of it means.

Tier 3 asks what a user would ask: is it still the same class, are the same things detected? An answer is data of the
task's own (decisions, boxes, vectors). Every task compares answers in float64 and is pure.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.seeds.schema import TASK_KINDS, Task
from fuzzer.trees import Leaves
from fuzzer.verify.compare import as_real
from fuzzer.verify.verdict import Blame, TaskVerdict

#: The kind of task that asks nothing beyond the tensors.
TENSORS = "tensors"


class NoAnswer(Exception):
    """The outputs hold no answer to this task, or none that can be read; the text says why."""


class Answer(Protocol):
    """What a task reads from the outputs; `path` is the leaf that a report names. Answers of one `shape` compare."""

    @property
    def path(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class Evidence(Generic[A]):
    """What is known beside the two answers: float64's, the module's own, and its own under random rounding.

    `draws` are answers of perturbed runs at an amplitude of the judge's threshold in places; empty where there were
    none. All have the shape of the two answers; what had another is left out.
    """

    truth: A | None = None
    plain: A | None = None
    draws: list[A] = field(default_factory=list)


class TaskKind(ABC, Generic[A]):
    """One kind of task, under the name by which a seed's `task.kind` asks for it."""

    name: ClassVar[str]

    @abstractmethod
    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> A:
        """The answer in `leaves`; `outputs` gives paths of leaves by name, as the seed does. Raises NoAnswer."""

    @abstractmethod
    def compare(self, reference: A, target: A, evidence: Evidence[A]) -> TaskVerdict:
        """What changed from one answer to another of its shape, and whose fault it is as far as the evidence says."""

    def plainly_alike(self, reference: A, target: A) -> bool:
        """Whether `compare` would surely not fail, seen at a glance, for a campaign that needs no metrics of what
        passes. False where it has to look.
        """
        return False

    def lists(self, outputs: Mapping[str, str], leaves: Leaves) -> list[list[str]]:
        """Paths of leaves whose rows belong together and have no place of their own, such as an image's boxes, scores
        and labels. Raises NoAnswer.
        """
        return []

    def over_set(self, pairs: Sequence[tuple[A, A]]) -> dict[str, float]:
        """Metrics of all targets against all references, each pair of one shape.

        Raises InputError where the task has none.
        """
        raise InputError(f"the task {self.name!r} has no metrics over a set")


_REGISTER: dict[str, TaskKind[Any]] = {}

K = TypeVar("K", bound=type[TaskKind[Any]])


def register(cls: K) -> K:
    """Class decorator: makes the task known, to seed files too, under its name.

    Raises ValueError where the name is taken.
    """
    if cls.name in _REGISTER:
        raise ValueError(f"there is already a task named {cls.name!r}")
    _REGISTER[cls.name] = cls()
    if cls.name not in TASK_KINDS:
        TASK_KINDS.append(cls.name)
    return cls


def task_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_REGISTER)


def find_task(name: str) -> TaskKind[Any]:
    """Raises InputError, with the nearest known name, where there is no such task."""
    if name not in _REGISTER:
        near = difflib.get_close_matches(name, _REGISTER, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(task_names())}"
        raise InputError(f"no task is named {name!r}; {hint}")
    return _REGISTER[name]


def check_task(task: Task) -> None:
    """Raises InputError, with the nearest known name, where a seed's task is of a kind that nothing here knows."""
    if task.kind != TENSORS:
        find_task(task.kind)


def find_leaf(outputs: Mapping[str, str], leaves: Leaves, names: Sequence[str], usual: Sequence[str] = ()) -> str:
    """The path of a task's only leaf: under one of `names` in `outputs`; where the seed gives no outputs, one of the
    `usual` paths, else the only float leaf, else the only integer leaf. Raises NoAnswer.
    """
    for name in names:
        if name in outputs:
            if outputs[name] not in leaves:
                raise NoAnswer(f"there is no output {outputs[name]}")
            return outputs[name]
    if outputs:
        raise NoAnswer(f"`outputs` names {', '.join(outputs)}; this task reads {' or '.join(names)}")
    for path in usual:
        if path in leaves:
            return path
    tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}
    floats = [path for path, leaf in tensors.items() if leaf.is_floating_point()]
    found = floats or [path for path, leaf in tensors.items() if not leaf.is_complex()]
    if len(found) != 1:
        many = f"{len(found)} outputs ({', '.join(found[:4])}) could be it" if found else "no output is a tensor"
        raise NoAnswer(f"{many}; name it under `task: outputs:`, as {' or '.join(names)}")
    return found[0]


def values(leaves: Leaves, path: str) -> tuple[Tensor, torch.dtype]:
    """The leaf at `path`, dense, on the CPU, and its own dtype. Floats come in float64, integers and bools in int64.

    Raises NoAnswer where it is no tensor of real numbers.
    """
    leaf = leaves.get(path)
    if not isinstance(leaf, Tensor):
        raise NoAnswer(f"the output {path} is {'missing' if path not in leaves else 'no tensor'}")
    if leaf.is_complex():
        raise NoAnswer(f"the output {path} is complex")
    try:
        return as_real(leaf).to(torch.float64 if leaf.is_floating_point() else torch.int64), leaf.dtype
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise NoAnswer(f"the output {path} cannot be read: {(str(error).splitlines() or [''])[0]}") from error


def not_run(reason: str) -> TaskVerdict:
    return TaskVerdict("not-run", reason, blame=Blame.UNKNOWN)


def blame_of(target_wrong: bool, reference_wrong: bool) -> Blame:
    """The side that differs from float64; unknown where neither does."""
    if target_wrong and reference_wrong:
        return Blame.BOTH
    if target_wrong:
        return Blame.TARGET
    return Blame.REFERENCE if reference_wrong else Blame.UNKNOWN


def count(number: int, what: str) -> str:
    """`1 sample`, `3 samples`, `2 boxes`."""
    plural = what + ("es" if what.endswith(("s", "x")) else "s")
    return f"{number} {what if number == 1 else plural}"
