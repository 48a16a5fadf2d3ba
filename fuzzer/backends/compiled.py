"""`torch.compile`: the stages Dynamo, AOTAutograd and Inductor, each on top of the one before, and what they did.

What is known comes from Dynamo's own books (one record a compiled frame, counters of breaks), not from a wrapped
backend: so what runs is exactly what `torch.compile(module, backend=...)` runs. Those books belong to the process: the
evidence is right where one prepared instance lives in a process, as in a worker.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import Tensor

from fuzzer.backends.base import Sample
from fuzzer.backends.eager import ModuleBackend, duplicate, write_back
from fuzzer.backends.observe import ExtraOutputs, Observation, from_extra_outputs, observe_eager, on_cpu
from fuzzer.backends.refusals import first_line, one_line
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.seeds import Seed

_BOOLEAN = ("true", "false")
#: Dynamo keeps this many records; its own default of 64 would lose some in a long campaign.
_RECORDS = 4096
#: So many reasons of one sort are told.
_SHOWN = 20
_LIMIT_HIT = "Dynamo recompile limit exceeded"


class Compiled(ModuleBackend):
    """A backend of `torch.compile`. Options: dynamic (default: PyTorch's own choice), fullgraph (false), tf32 (cuda).

    Without `dynamic`, the named dimensions of the seed are marked as dynamic, so that one graph serves their sizes.
    A model that does not compile is refused. One that compiles and then raises on the example is prepared: it raises
    when it is run, too, and `example_raised` in the evidence says so.
    """

    torch_backend: ClassVar[str]
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"dynamic": _BOOLEAN, "fullgraph": _BOOLEAN, "tf32": _BOOLEAN}

    def prepare(self, model: Model, example: Sample) -> None:
        from torch import _dynamo

        module = self.place(model)
        _dynamo.reset()
        _dynamo.utils.counters.clear()
        _dynamo.utils.set_compilation_metrics_limit(_RECORDS)
        _dynamo.utils.clear_compilation_metrics()
        self.fallback_calls = 0
        self.fallback_limit = ""
        dynamic = self.spec.options.get("dynamic")
        self._marks = {} if dynamic is not None else dynamic_axes(model.seed)
        self._not_counted: set[int] = set()
        self._watched: torch.nn.Module | None = None
        self._observers: dict[frozenset[tuple[str, bool]], Any] = {}
        self._compiled = self._compile(module)
        self.example_raised = ""
        try:
            self.run(duplicate(example))
        except Exception as error:
            stage = failing_stage(error)
            if stage is not None:
                raise Unsupported(one_line(getattr(error, "inner_exception", error)), stage=stage) from error
            if not self._graphs():
                raise
            # It was compiled, and what was compiled raises: an answer, which the reference gives as well or does not.
            self.example_raised = one_line(error)
        if not self._graphs():
            reasons = "; ".join(_breaks())
            why = "torch.compile captured no graph: it would run as the reference runs"
            raise Unsupported(f"{why} ({reasons})" if reasons else why, stage="dynamo")

    def _compile(self, module: torch.nn.Module, backend: Any = None) -> Any:
        dynamic = self.spec.options.get("dynamic")
        return torch.compile(
            module,
            backend=self.torch_backend if backend is None else backend,
            dynamic=None if dynamic is None else dynamic == "true",
            fullgraph=self.spec.options.get("fullgraph") == "true",
        )

    def run(self, sample: Sample) -> Any:
        """The compiled module's output.

        Past its recompile limit `torch.compile` quietly runs the module uncompiled where no compiled version fits. Here
        that limit raises, the call is counted in `fallback_calls`, and is then made again, from the same inputs and
        random state, in the mode that does just this: compiled where a version fits, else eager. (A module that changes
        its own buffers half-way changes them twice.)
        """
        from torch import _dynamo

        spare = duplicate(sample) if self.device.type == "cpu" else sample
        state = self._random_state()
        try:
            with _dynamo.config.patch(fail_on_recompile_limit_hit=True):
                return self._call(sample)
        except _dynamo.exc.FailOnRecompileLimitHit as error:
            self.fallback_calls += 1
            self.fallback_limit = _limit(error)
        self._restore(state)
        with torch.compiler.set_stance("eager_on_recompile"):
            return self._call(spare)

    def observe(self, sample: Sample) -> Observation:
        """A copy of the module is compiled anew with the values as extra outputs, named as eager mode names them.

        So fusions may differ from those of `run`; the compiled module itself, and the evidence, stay as they were.
        """
        if self._watched is None:
            self._watched = copy.deepcopy(self.model.module)
        assert self._watched is not None
        state = self._random_state()
        args, kwargs = self.arguments(duplicate(sample))
        with torch.no_grad():
            plain = observe_eager(self._watched, args, kwargs)
        self._restore(state)
        key = frozenset((step.path, step.is_input) for step in plain.steps.values())
        with self._books_kept():
            if key not in self._observers:
                extra = ExtraOutputs(copy.deepcopy(self._watched), plain.steps)
                self._observers = {key: self._compile(extra, self._same_backend)}
            output, entries = self._call(sample, self._observers[key])
        return on_cpu(from_extra_outputs(output, entries, plain.steps, {}))

    def _same_backend(self, graph: Any, inputs: Any) -> Any:
        """The same backend under another name, so that Dynamo reuses no frame that it compiled without hooks."""
        from torch._dynamo.backends.registry import lookup_backend

        return lookup_backend(self.torch_backend)(graph, inputs)

    @contextlib.contextmanager
    def _books_kept(self) -> Iterator[None]:
        """What is compiled inside does not count as evidence."""
        from torch._dynamo.utils import counters

        kept = {name: copy.copy(counter) for name, counter in counters.items()}
        before = {id(record) for record in _records()}
        try:
            yield
        finally:
            counters.clear()
            counters.update(kept)
            self._not_counted |= {id(record) for record in _records()} - before

    def _counted(self) -> list[Any]:
        return [record for record in _records() if id(record) not in self._not_counted]

    def _call(self, sample: Sample, compiled: Any = None) -> Any:
        from torch import _dynamo

        tensors = self.on_device(sample)
        for name, axes in self._marks.items():
            for axis in axes:
                # sizes 0 and 1 get graphs of their own whatever is asked for
                if tensors[name].dim() > axis and tensors[name].shape[axis] > 1:
                    _dynamo.maybe_mark_dynamic(tensors[name], axis)
        args, kwargs = self.model.call(tensors)
        with torch.no_grad():
            output = (self._compiled if compiled is None else compiled)(*args, **kwargs)
        self.synchronize()
        write_back(sample, tensors)
        return output

    def _random_state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _restore(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.device)

    def _graphs(self) -> list[int]:
        """The number of operators in each graph that was compiled."""
        return [record.graph_op_count for record in self._counted() if record.graph_op_count and not record.fail_type]

    def evidence(self) -> dict[str, Any]:
        graphs = self._graphs()
        again = [record for record in self._counted() if record.recompile_reason and not record.fail_type]
        return super().evidence() | {
            "backend": self.torch_backend,
            "graphs": len(graphs),
            "ops": graphs,
            "graph_breaks": _breaks(),
            "recompiles": len(again),
            "recompile_reasons": [first_line(record.recompile_reason) for record in again[:_SHOWN]],
            "fell_back": self.fallback_calls > 0,
            "fallback_calls": self.fallback_calls,
            "fallback_limit": self.fallback_limit,
            "dynamic_axes": {name: list(axes) for name, axes in self._marks.items()},
            **({"example_raised": self.example_raised} if self.example_raised else {}),
        }


class Dynamo(Compiled):
    """Dynamo alone: the captured graphs run operator by operator."""

    runtime = "dynamo"
    torch_backend = "eager"


class AotEager(Compiled):
    """Dynamo and AOTAutograd: functionalised graphs of ATen operators, run one by one."""

    runtime = "aot_eager"
    torch_backend = "aot_eager"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {**Compiled.options, "decomp": _BOOLEAN}

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        if spec.options.get("decomp") == "true":  # after Inductor's decompositions, before its lowerings
            self.torch_backend = "aot_eager_decomp_partition"  # type: ignore[misc]


class Inductor(Compiled):
    """The whole of `torch.compile`, with generated kernels."""

    runtime = "inductor"
    torch_backend = "inductor"

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        if (reason := super().unavailable(spec)) is not None:
            return reason
        if spec.device == "cuda":
            return None if find_spec("triton") else "Inductor needs Triton for CUDA; it is not installed"
        compiler = os.environ.get("CXX", "g++").split()
        if compiler and shutil.which(compiler[0]):
            return None
        return "Inductor needs a C++ compiler: g++, or the one that the variable CXX names, is not found"

    def prepare(self, model: Model, example: Sample) -> None:
        from torch._inductor import metrics

        metrics.reset()
        super().prepare(model, example)

    @contextlib.contextmanager
    def _books_kept(self) -> Iterator[None]:
        from torch._inductor import metrics

        kernels = metrics.generated_kernel_count
        try:
            with super()._books_kept():
                yield
        finally:
            metrics.generated_kernel_count = kernels

    def evidence(self) -> dict[str, Any]:
        from torch._dynamo.utils import counters
        from torch._inductor import config, metrics

        return super().evidence() | {
            "kernels": metrics.generated_kernel_count,
            "library_calls": counters["inductor"]["extern_calls"],
            "cudagraphs": bool(config.triton.cudagraphs),
        }


def dynamic_axes(seed: Seed) -> dict[str, tuple[int, ...]]:
    """For each input with dimensions that may vary, their positions."""
    axes = {
        name: tuple(
            axis
            for axis, size in enumerate(spec.shape)
            if isinstance(size, str) and seed.dims[size].min < seed.dims[size].most
        )
        for name, spec in seed.inputs.items()
    }
    return {name: found for name, found in axes.items() if found}


def failing_stage(error: BaseException) -> str | None:
    """The stage that raised `error`: dynamo, aot or inductor. None where it is no error of the compiler's.

    A compiler's error passes through the stages that called it; the innermost one is to blame.
    """
    from torch._dynamo import exc

    if not isinstance(error, exc.TorchDynamoException):
        return None
    stage = "dynamo"
    if not isinstance(error, exc.BackendCompilerFailed):
        return stage
    if type(error).__module__.startswith("torch._inductor"):
        return "inductor"
    trace = error.inner_exception.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.startswith("torch._inductor"):
            stage = "inductor"
        elif module.startswith("torch._functorch"):
            stage = "aot"
        trace = trace.tb_next
    return stage


def _limit(error: BaseException) -> str:
    """Which limit was hit, with its value: `recompile_limit=8`."""
    from torch._dynamo import config

    accumulated = "accumulated_recompile_limit" in str(error.__cause__)
    name = "accumulated_recompile_limit" if accumulated else "recompile_limit"
    return f"{name}={getattr(config, name)}"


def _records() -> list[Any]:
    from torch._dynamo.utils import get_compilation_metrics

    return [record for record in get_compilation_metrics() if record.is_forward is not False]


def _breaks() -> list[str]:
    """Why Dynamo ended graphs early or left frames alone, most frequent first."""
    from torch._dynamo.utils import counters

    reasons = counters["graph_break"] + counters["unimplemented"]
    told = [first_line(reason) for reason, times in reasons.most_common() if times > 0]
    return [reason for reason in told if reason != _LIMIT_HIT][:_SHOWN]
