"""A prepared backend in a worker process: start it, hand it samples, read answers, start it again after a death."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer import tensors
from fuzzer.backends.interpreter import worker_command
from fuzzer.backends.process import Death, Limits, Worker
from fuzzer.backends.protocol import Failure, Frame, ProtocolError, unpack_leaves
from fuzzer.backends.spec import BackendSpec
from fuzzer.models.graph import CannotCapture, Graph
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_to_json
from fuzzer.trees import Leaves


@dataclass
class Answer:
    """What a backend said to one sample: leaves, or the exception it raised, or how its process died.

    `changed` names inputs, parameters and buffers that the run changed. `inside`: words about what passed inside the
    model, where they were asked for (`fuzzer.backends.watch`).
    """

    leaves: Leaves | None = None
    failure: Failure | None = None
    death: Death | None = None
    seconds: float = 0.0
    changed: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    @property
    def error(self) -> str:
        """The exception or death in one line; empty where there are leaves."""
        if self.death is not None:
            return self.death.message
        return f"{self.failure.type}: {self.failure.message}" if self.failure is not None else ""


@dataclass(frozen=True)
class Forward:
    """One of several samples that are handed over together: its bytes (`fuzzer.tensors.encode`), and how to run it."""

    payload: bytes
    rng_seed: int = 0
    check: bool = False
    inside: bool = False


class State(StrEnum):
    """Where a session stands."""

    IDLE = "idle"  # no process
    PREPARING = "preparing"
    READY = "ready"
    REFUSED = "unsupported"  # the backend said no to this model, with the reason
    DEAD = "dead"  # its process died while it prepared


@dataclass(frozen=True)
class Where:
    """What a session needs to know of its surroundings. `start` makes a worker from its name (injected in tests).

    It is given a `command` as well where a backend names another interpreter.
    """

    cache: Path | None
    start: Callable[..., Worker] = Worker


class Session:
    """One backend for one seed. A session outlives its processes: `prepare_begin` starts a fresh one."""

    def __init__(self, seed: Seed, backend: str, example: Mapping[str, Tensor], where: Where) -> None:
        self.seed = seed
        self.backend = backend
        self.state = State.IDLE
        self.reason = ""
        self.failure: Failure | None = None
        self.death: Death | None = None
        self.evidence: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.weights_hash = ""
        self.prepare_s = 0.0
        self.starts = 0
        self.adaptation: dict[str, Any] = {}  # what `fuzzer.backends.adapted` changes, as JSON
        self._example = dict(example)
        self._where = where
        self._worker: Worker | None = None
        self._reply: Frame | Death | None = None  # came before `finish` asked for it
        self._reused = False
        self._keeps_spare = self._has_died = False
        self._spare: Worker | None = None
        self._outdated = False  # the spare has been asked to prepare another model

    @property
    def pid(self) -> int | None:
        """The process that holds the backend, while there is one."""
        return None if self._worker is None else self._worker.pid

    def prepare_begin(self) -> None:
        """Start a process and ask it to prepare; `prepare_poll` tells when it has."""
        if self._reused and self._worker is not None and self._worker.dead is None:
            self._ask_to_prepare(self._worker)
            return
        spare, self._spare = self._spare, None
        self.close()
        if spare is not None and not self._outdated:  # it prepares this model already, or has died of it
            self._worker, self.state = spare, State.PREPARING
        elif spare is not None and not isinstance(spare.wait(), Death):
            self._worker = spare
            self._ask_to_prepare(spare)
        else:
            self._worker = self._started(BackendSpec.parse(self.backend))
            self._ask_to_prepare(self._worker)
        if self._keeps_spare and self._has_died:
            self._spare = self._started(BackendSpec.parse(self.backend))
            self._ask_to_prepare(self._spare)
            self._outdated = False

    def keep_spare(self) -> None:
        """Once a process has died, have another one prepare the model in advance, to stand in for the next that dies.

        For a long row of inputs on which a backend may die: none of them has to wait for the whole start.
        """
        self._keeps_spare = True

    def take(self, seed: Seed, example: Mapping[str, Tensor]) -> None:
        """Go on with another model, which is prepared next, from now on in the process that there is.

        For many small models, since a compiler takes longer to start than to compile one. What one model does to the
        process the next one sees: what matters must be seen in a fresh process too.
        """
        self.seed, self._example, self._reused = seed, dict(example), True
        self.state = State.IDLE
        self._outdated = True

    def _started(self, spec: BackendSpec) -> Worker:
        how = {"command": worker_command(spec.python)} if spec.python else {}
        self.starts += 1
        return self._where.start(f"{self.backend} for {self.seed.name}", **how)

    def _ask_to_prepare(self, worker: Worker) -> None:
        if worker is self._worker:
            self.state = State.PREPARING
        header = {
            "do": "prepare",
            "seed": seed_to_json(self.seed),
            "base": str(self.seed.base.resolve()),
            "backend": str(BackendSpec.parse(self.backend).under("")),
            "cache": str(self._where.cache) if self._where.cache else None,
            "adaptation": self.adaptation,
        }
        limits = Limits(self.seed.prepare_deadline_s, self.seed.memory_mb)
        worker.send(header, tensors.encode(self._example), limits=limits)

    def prepare_poll(self) -> State:
        """The state, after looking whether preparation has ended. Does not block."""
        if self.state is State.PREPARING and self._worker is not None:
            answer = self._worker.poll()
            if answer is not None:
                self._prepared(answer)
        return self.state

    def prepare(self) -> State:
        """Start and wait until prepared, refused or dead."""
        self.prepare_begin()
        assert self._worker is not None
        self._prepared(self._worker.wait())
        return self.state

    def begin(
        self,
        sample: Mapping[str, Tensor],
        *,
        rng_seed: int = 0,
        check: bool = False,
        observe: bool = False,
        inside: bool = False,
        **variant: Any,
    ) -> None:
        """Hand over a sample; `finish` gives the answer. `check`: hash the parameters afterwards. `inside`: tell of it.

        `observe`: answer an observation's leaves (`fuzzer.backends.observe`) in place of the output's.
        """
        if self._worker is None or self.state is not State.READY:
            raise RuntimeError(f"{self.backend} is not ready to run")
        header: dict[str, Any] = {"do": "run", "rng_seed": rng_seed, "check": check, "observe": observe}
        if inside:
            header["inside"] = True
        if variant:
            header["variant"] = variant | {"rng_seed": rng_seed}
        limits = Limits(self.seed.deadline_s * (20 if variant or observe else 1), self.seed.memory_mb)
        self._worker.send(header, tensors.encode(sample), limits=limits)

    def begin_all(self, forwards: Sequence[Forward]) -> None:
        """Hand over several samples in one message, each run by itself; `finish_all` gives the answers.

        For quick ones: they have the deadline of one together.
        """
        if self._worker is None or self.state is not State.READY:
            raise RuntimeError(f"{self.backend} is not ready to run")
        each = [
            {"rng_seed": one.rng_seed, "check": one.check, "inside": one.inside, "length": len(one.payload)}
            for one in forwards
        ]
        limits = Limits(self.seed.deadline_s, self.seed.memory_mb)
        self._worker.send({"do": "runs", "each": each}, b"".join(one.payload for one in forwards), limits=limits)

    def answered(self, seconds: float) -> bool:
        """Whether the answer is there, or comes within `seconds`: `finish` then has it at once."""
        assert self._worker is not None
        if self._reply is None:
            self._reply = self._worker.wait_for(seconds)
        return self._reply is not None

    def finish(self) -> Answer:
        """Wait for the answer. After a death the session is idle: prepare it again before the next sample."""
        reply = self._replied()
        return Answer(death=reply) if isinstance(reply, Death) else self._answer(reply.header, reply.payload)

    def finish_all(self, count: int) -> list[Answer | None]:
        """Wait for the answers to `count` samples handed over together.

        After a death there is at most one, of the sample that was running, where it is known; the others are None.
        """
        reply = self._replied()
        if isinstance(reply, Death):
            at = 0 if count == 1 else reply.at
            return [Answer(death=reply) if place == at else None for place in range(count)]
        if reply.failure is not None:
            return [Answer(failure=reply.failure)] * count
        try:
            answers: list[Answer | None] = []
            begin = 0
            for header in reply.header["each"]:
                end = begin + int(header["length"])
                answers.append(self._answer(header, reply.payload[begin:end]))
                begin = end
            if len(answers) != count:
                raise ValueError(f"{len(answers)} answers to {count} samples")
        except (KeyError, TypeError, ValueError) as error:
            return [Answer(failure=Failure("internal", type(error).__name__, str(error)))] * count
        return answers

    def _replied(self) -> Frame | Death:
        assert self._worker is not None
        reply, self._reply = self._reply or self._worker.wait(), None
        if isinstance(reply, Death):
            self._died()
        return reply

    def _answer(self, header: Mapping[str, Any], payload: bytes) -> Answer:
        self.evidence = header.get("evidence", self.evidence)
        words = [str(word) for word in header.get("inside", ())]
        failure = Frame(dict(header)).failure
        if failure is not None:
            return Answer(failure=failure, inside=words)
        try:
            leaves = unpack_leaves(header["leaves"], payload)
            return Answer(leaves, seconds=float(header["seconds"]), changed=list(header["changed"]), inside=words)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            return Answer(failure=Failure("internal", type(error).__name__, str(error)))

    def run(
        self,
        sample: Mapping[str, Tensor],
        *,
        rng_seed: int = 0,
        check: bool = False,
        observe: bool = False,
        **variant: Any,
    ) -> Answer:
        """`begin` and `finish`."""
        self.begin(sample, rng_seed=rng_seed, check=check, observe=observe, **variant)
        return self.finish()

    def boundary(self, sample: Mapping[str, Tensor], *, rng_seed: int, names: list[str], key: int) -> Any:
        """The changes that take a decision of the model to its boundary (`fuzzer.backends.boundary`), as JSON values.

        None where there are none, where the backend has no gradients, or where its process died of the question.
        """
        if self._worker is None or self.state is not State.READY:
            return None
        header = {"do": "boundary", "rng_seed": rng_seed, "names": names, "key": key}
        limits = Limits(self.seed.deadline_s * 20, self.seed.memory_mb)
        self._worker.send(header, tensors.encode(sample), limits=limits)
        reply = self._worker.wait()
        if isinstance(reply, Death):
            self.state = State.IDLE
            self.close()
            return None
        return reply.header.get("changes") if reply.ok else None

    def weights(self) -> dict[str, Tensor] | None:
        """The state dict of the prepared model, or None where the worker cannot tell it."""
        if self._worker is None or self.state is not State.READY:
            return None
        self._worker.send({"do": "weights"}, limits=Limits(self.seed.prepare_deadline_s, self.seed.memory_mb))
        reply = self._worker.wait()
        if isinstance(reply, Death):
            self.close()
            return None
        return tensors.decode(reply.payload) if reply.ok else None

    def graph(self, sample: Mapping[str, Tensor], *, rng_seed: int = 0) -> tuple[Graph, dict[str, Tensor]]:
        """The prepared module as a graph of operators, recorded on `sample`, with the values of its constants.

        Raises CannotCapture.
        """
        if self._worker is None or self.state is not State.READY:
            raise RuntimeError(f"{self.backend} is not ready to run")
        limits = Limits(self.seed.prepare_deadline_s, self.seed.memory_mb)
        self._worker.send({"do": "graph", "rng_seed": rng_seed}, tensors.encode(sample), limits=limits)
        reply = self._worker.wait()
        if isinstance(reply, Death):
            self.state = State.IDLE
            self.close()
            raise CannotCapture(reply.message)
        if reply.failure is not None:
            raise CannotCapture(reply.failure.message)
        try:
            return Graph.from_json(reply.header["graph"]), tensors.decode(reply.payload)
        except (KeyError, ValueError) as error:
            raise CannotCapture(f"{self.backend} answers with no graph: {error}") from error

    def close(self) -> None:
        """End the process, if there is one. A ready session becomes idle; one that was refused stays so."""
        self._reply = None
        if self._worker is not None:
            self._worker.kill()
            self._worker = None
        self._drop_spare()
        if self.state in (State.READY, State.PREPARING):
            self.state = State.IDLE

    def _died(self) -> None:
        """The process is gone; a spare one stays for the next sample."""
        assert self._worker is not None
        self._worker.kill()
        self._worker, self.state, self._has_died = None, State.IDLE, True

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def _prepared(self, reply: Frame | Death) -> None:
        if isinstance(reply, Death):
            self.state, self.reason, self.death = State.DEAD, reply.message, reply
            self._worker, self._has_died = None, True
            return
        self.failure = reply.failure
        if self.failure is not None:
            self.state = State.REFUSED
            stage = f"{self.failure.stage}: " if self.failure.stage else ""
            self.reason = f"{stage}{self.failure.message}"
            if not self._reused:
                self.close()
            return
        self.state = State.READY
        self.evidence = reply.header.get("evidence", {})
        self.versions = reply.header.get("versions", {})
        self.weights_hash = reply.header.get("weights_hash", "")
        self.prepare_s = float(reply.header.get("seconds", 0.0))
