"""The worker: a process that holds one prepared backend and answers requests on its standard streams.

`python -m fuzzer.worker`. Standard output belongs to the protocol, so whatever a model or a library prints goes to
standard error. The worker seeds the random generators before every call, hands out copies of the inputs, watches
whether a call changes inputs or parameters, and reports every exception as what it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fuzzer.backends.protocol import (
    ORACLE,
    PROGRESS,
    PROTOCOL,
    Failure,
    Frame,
    encode_header,
    failure_header,
    pack_leaves,
    read_frame,
    send_frame,
)

if TYPE_CHECKING:  # imported when a model is prepared: a worker must be able to say why it cannot
    from fuzzer.backends.base import Backend


def main() -> None:
    """Serve until the stream ends or `exit` is asked for."""
    reader, writer = _take_streams()
    faulthandler.enable()
    # A descriptor of its own: the stream that closes when this process ends by itself must not look like a lost parent.
    watched = os.dup(writer.fileno())
    threading.Thread(target=_die_with_parent, args=(os.getppid(), watched), daemon=True).start()
    _serve(reader, writer)


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's streams, with file descriptors 0 and 1 given to /dev/null and standard error."""
    reader = os.fdopen(os.dup(0), "rb")
    writer = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return reader, writer


def _die_with_parent(parent: int, output: int) -> None:
    """A campaign that was killed leaves no worker behind, not even one in the middle of a compile, nor its children.

    That nobody holds the other end of `output` tells it too: the parent may be gone before this process could look.
    """
    poller = select.poll()
    poller.register(output, 0)  # errors only
    while os.getppid() == parent and not poller.poll(500):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _serve(reader: BinaryIO, writer: BinaryIO) -> None:
    desk = Desk()
    while (frame := read_frame(reader)) is not None:
        if frame.header.get("do") == "exit":
            return
        header, payload = desk.answer(frame)
        try:
            start = encode_header(header, len(payload))
        except (TypeError, ValueError) as error:  # recorded and sent: what the harness itself gets wrong must be seen
            payload = b""
            start = encode_header(failure_header(_failure("internal", error)), 0)
        send_frame(writer, start, payload)


class Desk:
    """Answers requests, from wherever they come. Holds the backend that was prepared last."""

    def __init__(self) -> None:
        self._holder: _Holder | None = None

    def answer(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        """The header and the payload of the reply. Never raises."""
        try:
            return self._answer(frame)
        except Exception as error:  # recorded and sent, as above
            return failure_header(_failure("internal", error)), b""

    def _answer(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        action = frame.header.get("do")
        if action == "prepare":
            self._holder, header, payload = _prepare(frame)
            return header, payload
        if action == "run" and self._holder is not None:
            return self._holder.run(frame)
        if action == "runs" and self._holder is not None:
            return self._holder.runs(frame)
        if action == "boundary" and self._holder is not None:
            return self._holder.boundary(frame)
        if action == "weights" and self._holder is not None:
            return self._holder.weights()
        if action == "graph" and self._holder is not None:
            return self._holder.graph(frame)
        return failure_header(Failure("internal", "ProtocolError", f"cannot {action!r} now")), b""


def _prepare(frame: Frame) -> tuple[_Holder | None, dict[str, Any], bytes]:
    """Build the model and prepare the backend: a holder for it, or a header that says why not."""
    import torch

    torch.set_num_threads(1)
    from fuzzer import tensors
    from fuzzer.backends.oracle_observe import ObservingOracle
    from fuzzer.backends.registry import backend_class, parse
    from fuzzer.backends.spec import BackendSpec
    from fuzzer.errors import ModelError, SpecError, Unsupported
    from fuzzer.models import build_model
    from fuzzer.plugins import load_backends
    from fuzzer.seeds.load import seed_from_json

    request = frame.header
    started = time.perf_counter()
    seed = seed_from_json(request["seed"], Path(request["base"]))
    cache = Path(request["cache"]) if request.get("cache") else None
    backend: Backend
    if request["backend"] == ORACLE:
        backend = ObservingOracle(BackendSpec.parse(ORACLE))
    else:
        # A plug-in that this interpreter cannot import matters only where the backend is one of its own.
        missing = load_backends()
        try:
            spec = parse(request["backend"])
        except SpecError as error:
            reason = "; ".join([str(error), *missing])
            return None, failure_header(Failure("unsupported", "SpecError", reason, "plug-in")), b""
        backend = backend_class(spec.runtime)(spec)
    if request.get("adaptation"):
        backend = _adapted(backend, request["adaptation"])
    example = tensors.decode(frame.payload)
    try:
        model = build_model(seed, cache, convert=backend.needs_module)
    except ModelError as error:
        return None, failure_header(Failure("model", "ModelError", str(error))), b""
    holder = _Holder(backend, model)
    _seed_generators(0)
    try:
        backend.prepare(model, example)
    except Unsupported as error:
        return None, failure_header(Failure("unsupported", "Unsupported", error.reason, error.stage)), b""
    except Exception as error:  # a backend that fails in its own way refuses the model too; the traceback is kept
        return None, failure_header(_failure("unsupported", error, stage="prepare")), b""
    header = {
        "ok": True,
        "protocol": PROTOCOL,
        "seconds": time.perf_counter() - started,
        "weights_hash": holder.weights_before,
        "evidence": backend.evidence(),
        "versions": _versions(),
    }
    return holder, header, b""


def _adapted(backend: Backend, adaptation: dict[str, Any]) -> Backend:
    from fuzzer.backends.adapted import Adaptation, Adapted

    return Adapted(lambda: type(backend)(backend.spec), Adaptation.from_json(adaptation))


class _Holder:
    """A prepared backend with what rule 2 needs: fingerprints of the parameters, and copies of inputs."""

    def __init__(self, backend: Any, model: Any) -> None:
        from fuzzer.models import weights_hash

        self._backend = backend
        self._model = model
        self.weights_before = weights_hash(model.module) if model.module is not None else ""
        self._state_before = self._state_hash()
        self._told: dict[str, Any] | None = None

    def runs(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        """Several samples in one message, each run by itself; what became of each is in `each`."""
        answers, payloads, begin = [], [], 0
        progress = int(os.environ.get(PROGRESS, "-1"))
        for place, request in enumerate(frame.header["each"]):
            if progress >= 0:
                os.pwrite(progress, place.to_bytes(4, "big"), 0)
            end = begin + int(request["length"])
            header, payload = self.run(Frame(request, frame.payload[begin:end]))
            answers.append(header | {"length": len(payload)})
            payloads.append(payload)
            begin = end
        return {"ok": True, "each": answers}, b"".join(payloads)

    def run(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        from fuzzer import tensors
        from fuzzer.errors import Unsupported
        from fuzzer.tensors import same_bits
        from fuzzer.trees import flatten, map_tensors

        request = frame.header
        sample = tensors.decode(frame.payload)
        inputs = {name: tensor.clone() for name, tensor in sample.items()}
        before = self._watched(inputs)
        watch = self._watch() if request.get("inside") else contextlib.nullcontext()
        _seed_generators(int(request.get("rng_seed", 0)))
        started = time.perf_counter()
        try:
            if request.get("observe"):
                output = self._observe(inputs, request.get("variant"))
            elif "variant" in request:
                output = self._backend.run_variant(inputs, request["variant"])
            else:
                with watch:
                    output = self._backend.run(inputs)
            output = map_tensors(output, lambda tensor: tensor.detach().to("cpu"))
        except Exception as error:  # the model's or the backend's: an answer like any other
            # A backend may refuse one sample, such as a shape its graph was not made for: that is no answer to compare.
            kind = "unsupported" if isinstance(error, Unsupported) else "exception"
            header = failure_header(_failure(kind, error))
            return header | self._news() | {"inside": getattr(watch, "words", [])}, b""
        seconds = time.perf_counter() - started
        changed = [f"input {name}" for name in inputs if not same_bits(inputs[name], sample[name])]
        after = self._watched(inputs)
        if not _untouched(before, after):
            changed += _changed(_by_name(before), _by_name(after))
        if request.get("check") and self._state_hash() != self._state_before:
            changed.append("parameters (content hash)")
        header = {"ok": True, "seconds": seconds, "changed": sorted(set(changed)), **self._news()}
        header["inside"] = getattr(watch, "words", [])
        header["leaves"], payload = pack_leaves(output if request.get("observe") else flatten(output))
        return header, payload

    def _news(self) -> dict[str, Any]:
        """The evidence where it is not what was told last."""
        evidence = self._backend.evidence()
        if evidence == self._told:
            return {}
        self._told = evidence
        return {"evidence": evidence}

    def _watch(self) -> Any:
        """What tells of the inside of the model, for eager ones on which it changes nothing; else nothing does."""
        from fuzzer.backends.eager import Eager
        from fuzzer.backends.watch import Watch, watchable

        if not isinstance(self._backend, Eager) or not watchable(self._model.module):
            return contextlib.nullcontext()
        return Watch()

    def boundary(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        """Changes of a sample that lead to where one of the model's decisions turns."""
        from fuzzer import tensors
        from fuzzer.backends.boundary import towards_boundary
        from fuzzer.backends.eager import Eager

        if not isinstance(self._backend, Eager):
            return failure_header(Failure("unsupported", "Unsupported", "only eager models are followed")), b""
        request, rng_seed = frame.header, int(frame.header.get("rng_seed", 0))

        def forward(inputs: dict[str, Any]) -> Any:
            _seed_generators(rng_seed)
            return self._backend.forward(inputs)

        try:
            moved = towards_boundary(forward, tensors.decode(frame.payload), request["names"], int(request["key"]))
        except Exception as error:  # the model's: it has no gradient, or does not take the sample
            return failure_header(_failure("exception", error)), b""
        changes = None if moved is None else moved.changes
        return {"ok": True, "changes": changes, "margin": None if moved is None else moved.after}, b""

    def _observe(self, inputs: dict[str, Any], variant: dict[str, Any] | None) -> Any:
        """Leaves of an observation, by names that are no paths; the oracle's where there is a variant."""
        if variant is not None:
            return self._backend.observe_variant(inputs, variant)
        return self._backend.observe(inputs).to_leaves()

    def weights(self) -> tuple[dict[str, Any], bytes]:
        """The model's state dict, for a crash folder to keep."""
        import torch

        from fuzzer import tensors

        held = self._model.module if self._model.onnx is None else None  # an ONNX file is kept whole
        state = held.state_dict() if held is not None else {}
        return {"ok": True}, tensors.encode({k: v for k, v in state.items() if isinstance(v, torch.Tensor)})

    def graph(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        """The module as a graph of operators, for reduction."""
        from fuzzer import tensors
        from fuzzer.models.capture import capture
        from fuzzer.models.graph import CannotCapture

        _seed_generators(int(frame.header.get("rng_seed", 0)))
        try:
            graph, constants = capture(self._model, tensors.decode(frame.payload))
        except CannotCapture as error:
            return failure_header(Failure("unsupported", "CannotCapture", str(error), "graph")), b""
        return {"ok": True, "graph": graph.to_json()}, tensors.encode(constants)

    def _state(self) -> dict[str, Any]:
        """Parameters and buffers, those too that the state dict leaves out."""
        module = self._model.module
        if module is None:
            return {}
        state = {f"parameter {name}": value for name, value in module.named_parameters()}
        return state | {f"buffer {name}": value for name, value in module.named_buffers()}

    def _state_hash(self) -> str:
        from fuzzer.tensors import content_hash

        return content_hash(self._state())

    def _watched(self, inputs: dict[str, Any]) -> list[_Watched]:
        """The inputs, parameters and buffers as they are now.

        On every run, before and after: `named_parameters` would take longer than many a forward.
        """
        found = [("input ", name, tensor, _version(tensor)) for name, tensor in inputs.items()]
        if self._model.module is None:
            return found
        seen: set[int] = set()
        modules = [("", self._model.module)]
        while modules:
            prefix, module = modules.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            for kind, held in (("parameter ", module._parameters), ("buffer ", module._buffers)):
                for name, tensor in held.items():
                    if tensor is not None:
                        found.append((kind + prefix, name, tensor, _version(tensor)))
            modules += [(f"{prefix}{name}.", part) for name, part in module._modules.items() if part is not None]
        return found


#: What is watched in a run: the beginning of its name and the rest, the tensor, and its version counter.
_Watched = tuple[str, str, Any, int]


def _untouched(before: list[_Watched], after: list[_Watched]) -> bool:
    """Whether the same names stand for the same tensors, none of which was written to."""
    return len(before) == len(after) and all(
        new[2] is old[2] and new[3] == old[3] and new[1] == old[1] and new[0] == old[0]
        for old, new in zip(before, after, strict=True)
    )


def _by_name(watched: list[_Watched]) -> dict[str, tuple[Any, int]]:
    return {start + name: (tensor, version) for start, name, tensor, version in watched}


def _version(tensor: Any) -> int:
    """The version counter; tensors made in inference mode have none."""
    return 0 if tensor.is_inference() else int(tensor._version)


def _changed(before: dict[str, tuple[Any, int]], after: dict[str, tuple[Any, int]]) -> list[str]:
    """Names that came, went, were written to in place, or now stand for a tensor with other bits."""
    from fuzzer.tensors import same_bits

    names = set(before) ^ set(after)
    for name in set(before) & set(after):
        (old, version), (new, new_version) = before[name], after[name]
        if new is old:
            if new_version != version:
                names.add(name)
        elif _version(old) != version or not same_bits(old, new):  # a buffer that `forward` assigned anew
            names.add(name)
    return sorted(names)


def _seed_generators(rng_seed: int) -> None:
    """Seed torch, numpy and Python: a model may draw from any of them."""
    import numpy as np
    import torch

    if torch.cuda.is_initialized() or torch.accelerator.is_available():  # type: ignore[no-untyped-call]
        torch.manual_seed(rng_seed)
    else:  # for devices that are not there `torch.manual_seed` keeps the request, with a stack trace, for later
        torch.default_generator.manual_seed(rng_seed)
    np.random.seed(rng_seed % 2**32)
    random.seed(rng_seed)


def _failure(kind: str, error: BaseException, stage: str = "") -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(kind, type(error).__name__, _first_lines(str(error)), stage, text[-4000:])


def _first_lines(message: str, length: int = 500) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " / ".join(lines)[:length] or "(no message)"


def _versions() -> dict[str, str]:
    """Versions of what is loaded in this process, and of Python."""
    versions = {"python": sys.version.split()[0]}
    for name in ("torch", "torchvision", "onnxruntime", "onnx", "onnxscript", "numpy"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__version__", None):
            versions[name] = str(module.__version__)
    return versions


if __name__ == "__main__":
    main()
