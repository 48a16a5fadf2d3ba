"""The question that reduction of a graph asks: does this smaller graph, on these tensors, still show the crash?

A case runs as the crash's own model did: on the reference, on the target and in float64, judged in full. The three
processes stay, and prepare one case after another, so that a compiler starts once; one that dies is started again.
Cases of one graph, shapes and constants share what was prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer.backends.session import Session, State
from fuzzer.crashes.crash import NO_ANSWER, Crash
from fuzzer.crashes.probe import Fault, Slip, fault_of
from fuzzer.crashes.replay import examine_crash, prepare_bench
from fuzzer.crashes.sides import export_found
from fuzzer.files import write_atomically
from fuzzer.inputs.dtypes import DTYPES
from fuzzer.models.graph import GETITEM, CannotCapture, Graph
from fuzzer.reduce.case import Case
from fuzzer.seeds import InputSpec, ModelSpec, Seed, Task, Weights
from fuzzer.tensors import content_hash, encode
from fuzzer.verify.examine import Bench, Examined

#: Where all values of a graph have more elements than this, they are not compared with each other.
MOST_ELEMENTS = 1 << 22
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TENSORS = Task(kind="tensors")


def seed_of_case(seed: Seed, case: Case, task: Task, weights: Path | None) -> Seed:
    """`seed` with the graph of `case` as its model, and inputs of just the sizes that the case has."""
    inputs = {name: _input(seed, name, tensor) for name, tensor in case.inputs.items()}
    kept = Weights() if weights is None else Weights(kind="file", file=str(weights))
    model = ModelSpec(source="graph", graph=case.graph.to_json(), weights=kept)
    changes = {"model": model, "inputs": inputs, "dims": {}, "call": None, "task": task}
    return seed.model_copy(update=changes).at(seed.base)


def _input(seed: Seed, name: str, tensor: Tensor) -> InputSpec:
    floats = tensor.is_floating_point() or tensor.is_complex()
    kind = "floats" if floats else "mask" if _DTYPE_NAMES[tensor.dtype] == "bool" else "integers"
    exact = not floats or (name in seed.inputs and seed.inputs[name].exact)
    about = {"kind": kind, "shape": list(tensor.shape), "dtype": _DTYPE_NAMES[tensor.dtype], "exact": exact}
    return InputSpec.model_validate(about)


class GraphProbe:
    """Asks the processes of `bench` about cases of `crash`, which must fail as `wanted`.

    `folder`: for the weights of cases that have constants. `task`: what is asked of the outputs, set by `begin`. The
    sessions hold other models than before when it is done.
    """

    def __init__(self, crash: Crash, wanted: Fault, bench: Bench, folder: Path) -> None:
        self._crash = crash
        self._whole = bench
        self._seed = bench.seed
        self._folder = folder
        self._prepared = ""
        self.wanted = wanted
        self.task = _TENSORS
        self.refused = ""
        self.slips: dict[Fault, Slip] = {}
        self.export: dict[str, Any] = {}
        self._sides = (bench.reference, bench.target)
        self._sessions = [*self._sides, *([bench.oracle] if bench.oracle is not None else [])]

    def begin(self) -> Case:
        """The whole model as a case that shows the crash. Raises CannotCapture, which says why there is none."""
        reference = self._sides[0]
        if reference.state is not State.READY and reference.prepare() is not State.READY:
            raise CannotCapture(f"{reference.backend}: {reference.reason}")
        graph, constants = reference.graph(self._crash.inputs, rng_seed=self._crash.rng_seed)
        case = Case.of(graph, {**self._crash.inputs, **constants})
        seen: list[str] = []
        for task in dict.fromkeys(["tensors", self._seed.task.kind]):
            self.task = _TENSORS if task == "tensors" else self._seed.task
            found = self._fault(case)
            if found == self.wanted:
                return case
            seen.append(self.refused or (str(found) if found is not None else "no difference"))
        raise CannotCapture(f"its graph of operators shows {seen[0]}")

    def __call__(self, case: Case) -> bool:
        """Whether `case` shows the same fault."""
        examined = self._examined(case)
        found = None if examined is None else fault_of(replace(self._crash, inputs=case.inputs), examined)
        if found == self.wanted:
            self.export = export_found(self._sides[1].evidence)
        elif found is not None and examined is not None:
            self.slips.setdefault(found, Slip(0, case.inputs, examined, case, self.task)).count += 1
        return found == self.wanted

    def values(self, case: Case) -> dict[str, Tensor]:
        """All tensors that the reference computes for `case`, by name; none where it does not answer."""
        self._take(_showing_all(case), self._sides[:1])
        session = self._sides[0]
        if session.prepare() is not State.READY:
            return {}
        leaves = session.run(case.inputs, rng_seed=self._crash.rng_seed).leaves or {}
        return {path.removeprefix("."): leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}

    def divergent(self, case: Case) -> list[str]:
        """The values of `case` at which the sides differ where the target must give them all, in order.

        That it must can change what it computes, so this is a guess; none where the crash is no difference of values.
        """
        if self.wanted.signature.kind in NO_ANSWER:
            return []
        if sum(value.numel() for value in self.values(case).values()) > MOST_ELEMENTS:
            return []
        examined = self._examined(_showing_all(case))
        paths = {d.path for d in examined.verdict.differences} if examined is not None else set()
        return [node.name for node in case.graph.nodes if f".{node.name}" in paths]

    def _bench(self) -> Bench:
        return replace(self._whole, seed=self._sides[0].seed)

    def _fault(self, case: Case) -> Fault | None:
        examined = self._examined(case)
        return None if examined is None else fault_of(replace(self._crash, inputs=case.inputs), examined)

    def _examined(self, case: Case) -> Examined | None:
        """The verdict on a case; None where it is no case at all: the reference raises, or a side refuses it."""
        self.refused = ""
        sizes = {name: list(tensor.shape) for name, tensor in case.inputs.items()}
        shared = f"{case.code} {sizes} {content_hash(case.constants)} {self.task.kind}"
        reference = self._sides[0]
        if shared != self._prepared:
            self._take(case, self._sessions)
            if self.wanted.signature.kind not in NO_ANSWER and not self._answers(case):
                return None
        bench = self._bench()
        refused = prepare_bench(bench)
        if refused is not None:
            self.refused = f"{refused.backend} refuses it: {refused.reason}"
            return None
        self._prepared = shared
        examined = examine_crash(replace(self._crash, inputs=case.inputs), bench)
        if reference.state is not State.READY or self._sides[1].state is not State.READY:
            self._prepared = ""
        return examined

    def _answers(self, case: Case) -> bool:
        """Whether the reference answers: a compiler need not be asked about what cannot run."""
        reference = self._sides[0]
        if reference.prepare() is not State.READY:
            return False
        answer = reference.run(case.inputs, rng_seed=self._crash.rng_seed)
        self.refused = answer.error
        return answer.leaves is not None

    def _take(self, case: Case, sessions: Sequence[Session]) -> None:
        weights = None
        if case.constants:
            weights = self._folder / f"{content_hash(case.constants)}.safetensors"
            if not weights.exists():
                write_atomically(weights, encode(case.constants))
        seed = seed_of_case(self._seed, case, self.task, weights)
        for session in sessions:
            session.take(seed, case.inputs)
        self._prepared = ""


def _showing_all(case: Case) -> Case:
    """The case with every tensor that it computes as an output of its own."""
    wholes = {use for node in case.graph.nodes if node.op == GETITEM for use in node.uses}
    shown = {node.name: f"%{node.name}" for node in case.graph.nodes if node.name not in wholes}
    graph: Graph = replace(case.graph, output=shown)
    return Case.of(graph, case.tensors)
