"""The question that a reduction asks: does this input still show the crash, and not something else?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.replay import diagnosed, examine_crash, prepare_bench, signature_seen
from fuzzer.crashes.signature import Signature
from fuzzer.diagnose import primary
from fuzzer.reduce.case import Case
from fuzzer.seeds import Task
from fuzzer.verify.examine import Bench, Examined


class Fault(NamedTuple):
    """What must stay while the input shrinks. The signature alone would let a wrong answer become a tie."""

    signature: Signature
    cls: str  # of the provisional label
    blame: str
    near_tie: bool

    def __str__(self) -> str:
        tie = ", a near-tie" if self.near_tie else ""
        return f"{self.cls} ({self.signature.kind}) at {self.signature.leaf}, blame {self.blame}{tie}"


def fault_of(crash: Crash, examined: Examined) -> Fault | None:
    """What the two sides show on the crash's input; None where they do not differ."""
    signature = signature_seen(crash, examined)
    difference = primary(examined.verdict)
    if signature is None or difference is None:
        return None
    label = diagnosed(crash, examined).label
    return Fault(signature, label.cls, str(examined.verdict.blame), difference.near_tie)


@dataclass
class Slip:
    """Another fault that candidates showed: how many, and the first of them, with its graph where it is one.

    `examined`: what was seen on the first. `task`: what was asked of a graph's outputs.
    """

    count: int
    sample: Mapping[str, Tensor]
    examined: Examined
    case: Case | None = None
    task: Task = field(default_factory=lambda: Task(kind="tensors"))


class Probe:
    """Asks the sessions of `bench` about inputs of `crash`, and puts aside what fails in another way.

    A session that died is started again before the next question. A side that answers with a death, an exception or
    another leaf shows another signature, so none of these can stand in for what is reduced.
    """

    def __init__(self, crash: Crash, bench: Bench) -> None:
        self._crash = crash
        self._bench = bench
        bench.reference.keep_spare()
        bench.target.keep_spare()
        self.slips: dict[Fault, Slip] = {}
        self._examined: Examined | None = None
        self.wanted: Fault | None = None
        self.refused = ""

    def begin(self) -> bool:
        """Whether the crash's own input shows its signature here; what else it shows must stay from now on."""
        found = self._ask(self._crash.inputs)
        if found is None or found.signature != self._crash.signature:
            return False
        self.wanted = found
        return True

    def __call__(self, sample: Mapping[str, Tensor]) -> bool:
        """Whether `sample` shows the same fault."""
        found = self._ask(sample)
        if found is not None and found != self.wanted:
            assert self._examined is not None
            self.slips.setdefault(found, Slip(0, sample, self._examined)).count += 1
        return found is not None and found == self.wanted

    def _ask(self, sample: Mapping[str, Tensor]) -> Fault | None:
        refused = prepare_bench(self._bench)
        if refused is not None:
            self.refused = f"{refused.backend}: {refused.reason}"
            return None
        candidate = replace(self._crash, inputs=dict(sample))
        self._examined = examine_crash(candidate, self._bench)
        return fault_of(candidate, self._examined)
