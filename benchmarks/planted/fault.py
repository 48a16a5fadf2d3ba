"""What a planted fault is: an operator, a trigger, a wrong answer, and the canary that tells what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from fuzzer.tensors import same_bits


class Mechanism(StrEnum):
    """Where a fault sits."""

    OPERATOR = "operator"  # one operator's answer is replaced; whoever removes other nodes of the graph keeps the fault
    STATE = "state"  # so too, but it depends on what was run before, or on more than the operator's own answer
    PROCESS = "process"  # one operator kills, stops or swells the process: needs a real worker
    INDUCTOR = "inductor"  # torch.compile itself, with one of PyTorch's own injected faults
    CONTROL = "control"  # no fault


@dataclass
class Call:
    """One call of an operator, with its right answer. `acted` is set by a fault that does more than answer."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    right: Any
    acted: bool = False

    @property
    def x(self) -> Tensor:
        """The first operand."""
        first = self.args[0]
        assert isinstance(first, Tensor)
        return first

    def get(self, place: int, name: str, default: Any) -> Any:
        """An argument by place or name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def on(self, x: Tensor) -> Any:
        """The operator's own answer with another first operand."""
        return self.function(x, *self.args[1:], **self.kwargs)


#: Gives the faulty answer to a call, or None where the right one stands.
Wrong = Callable[[Call], Any]


@dataclass(frozen=True)
class Fault:
    """One planted fault. `label` is the right one of the taxonomy, empty for a control.

    `build` makes the fault anew for each prepared backend, since some remember. `operators` are ATen overload packets.
    `minimal` says what the smallest failing input looks like. `injects` is the option of `torch._inductor.config`
    (PyTorch's own fault) with its value. `effect`: what happens to the process once the fault strikes. `also`: other
    labels whose definition in the taxonomy is met by some inputs. `remembers`: what was run before counts.
    """

    name: str
    label: str
    about: str
    minimal: str
    operators: frozenset[str]
    build: Callable[[], Wrong]
    mechanism: Mechanism = Mechanism.OPERATOR
    injects: tuple[str, str] | None = None
    effect: Callable[[], None] | None = None
    also: frozenset[str] = frozenset()
    remembers: bool = False

    @property
    def labels(self) -> frozenset[str]:
        """Every label that is right."""
        return self.also | {self.label}


@dataclass
class Canary:
    """Calls of the faulty operator, and how many of them answered wrongly, in the last run of the backend."""

    reached: int = 0
    triggered: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def same(one: Any, other: Any) -> bool:
    """Whether two answers of an operator hold the same bits, −0 and NaN payloads included."""
    left, right = tree_leaves(one), tree_leaves(other)
    if len(left) != len(right):
        return False
    return all(
        same_bits(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(left, right, strict=True)
    )
