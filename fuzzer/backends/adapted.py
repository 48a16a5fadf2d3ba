"""A backend with one thing changed: its switches, the order of ties, its precision, or operators left in eager mode.

This is what interventions and mitigations are made of: any backend, also a plug-in, can be wrapped.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from fuzzer.adapters.fallback import PIECE, capture, operator_name, operators, split
from fuzzer.adapters.ordering import QUANTUM, StableOrder
from fuzzer.adapters.precision import Float32
from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.onnx_export import Flat, Structure
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.seeds import InputSpec
from fuzzer.trees import map_tensors

_ORDERS = {
    "stable": {},
    "quantised": {"quantum": QUANTUM},
    "nms": {"nms_only": True},
    "nms-quantised": {"nms_only": True, "quantum": QUANTUM},
}


@dataclass(frozen=True)
class Adaptation:
    """What is changed; nothing by default.

    `order`: ties are broken alike (`stable`, `quantised`, for NMS alone `nms`, `nms-quantised`). `float32`: no 16-bit
    casts. `float64`: parameters and inputs in float64. `copies`: the module gets copies of its inputs, and is a copy of
    itself in each call. `flush`: subnormal numbers are zero. `deterministic`: PyTorch's deterministic algorithms.
    `eager`: numbers of the operators, in the order of the captured graph, that stay in eager mode; `prefix`: the first
    so many of them. `inductor`: Inductor's own switches. `optimizers`: ONNX Runtime's optimisers to leave out.
    """

    order: str = ""
    float32: bool = False
    float64: bool = False
    copies: bool = False
    flush: bool = False
    deterministic: bool = False
    eager: tuple[int, ...] | None = None
    prefix: int | None = None
    inductor: Mapping[str, Any] = field(default_factory=dict, hash=False)
    optimizers: tuple[str, ...] = ()

    @property
    def captures(self) -> bool:
        """Whether the model's graph is cut."""
        return self.eager is not None or self.prefix is not None

    @property
    def of_process(self) -> bool:
        """Whether it changes what holds for a whole process, so that the process must be fresh and not used again."""
        return self.flush or self.deterministic

    def to_json(self) -> dict[str, Any]:
        """What differs from no change."""
        plain = asdict(Adaptation())
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items() if v != plain[k]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Adaptation:
        """The inverse. Raises TypeError on a key it does not have."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        found = cls(**given)
        if found.order and found.order not in _ORDERS:
            raise TypeError(f"no order is called {found.order!r}")
        return found


class Adapted(Backend):
    """`make` gives backends of one kind; the model is prepared on one of them, or in pieces on several."""

    runtime = "adapted"
    devices = ("cpu", "cuda")

    def __init__(self, make: Callable[[], Backend], adaptation: Adaptation) -> None:
        self._make = make
        self._how = adaptation
        self._inner = make()
        super().__init__(self._inner.spec)
        self._pieces: list[Backend] = []
        self._operators: list[str] = []

    @classmethod
    def unavailable(cls, spec: Any) -> str | None:
        return None

    def prepare(self, model: Model, example: Sample) -> None:
        """As the wrapped backend does. Raises Unsupported too where the graph cannot be captured or cut."""
        how = self._how
        if how.flush:
            torch.set_flush_denormal(True)
        if how.deterministic:
            torch.use_deterministic_algorithms(True)
        if how.float64 or how.copies:
            model = self._changed(model)
        with self._switched():
            if how.captures:
                self._prepare_pieces(model, example)
            else:
                self._configured(self._inner).prepare(model, self._given(example))

    def run(self, sample: Sample) -> Any:
        with self._switched():
            if not self._how.captures:
                return self._inner.run(self._given(sample))
            tensors = [self._given(sample)[name].to(self.spec.device) for name in self._names]
            with torch.no_grad():
                found = self._graph(*tensors)
        return self._structure.rebuild([t.detach() for t in found])

    def evidence(self) -> dict[str, Any]:
        """The wrapped backend's, and the operators of the captured graph."""
        if not self._how.captures:
            return self._inner.evidence()
        return {"operators": list(self._operators), "pieces": len(self._pieces)}

    def _changed(self, model: Model) -> Model:
        if model.module is None:
            raise Unsupported("an ONNX file has no PyTorch module", stage="adapt")
        module = copy.deepcopy(model.module)
        if self._how.float64:
            module = module.double()
        return replace(model, module=_Copying(module) if self._how.copies else module)

    def _given(self, sample: Sample) -> dict[str, Tensor]:
        if not self._how.float64:
            return dict(sample)
        return {name: t.double() if t.is_floating_point() else t for name, t in sample.items()}

    def _configured(self, backend: Backend) -> Backend:
        if self._how.optimizers:
            backend.disabled_optimizers = list(self._how.optimizers)  # type: ignore[attr-defined]
        return backend

    @contextlib.contextmanager
    def _switched(self) -> Iterator[None]:
        how = self._how
        with contextlib.ExitStack() as stack:
            if how.inductor:
                from torch._inductor import config

                stack.enter_context(config.patch(dict(how.inductor)))
            if how.float32:
                stack.enter_context(Float32())
            if how.order:
                stack.enter_context(StableOrder(**_ORDERS[how.order]))  # type: ignore[arg-type]
            yield

    def _prepare_pieces(self, model: Model, example: Sample) -> None:
        if model.module is None:
            raise Unsupported("an ONNX file has no operators of PyTorch's", stage="adapt")
        self._names = list(model.seed.inputs)
        module = copy.deepcopy(model.module).to(self.spec.device)
        tensors = tuple(self._given(example)[name].to(self.spec.device) for name in self._names)
        args, kwargs = model.call(dict(zip(self._names, (t.clone() for t in tensors), strict=True)))
        with torch.no_grad():
            self._structure = Structure.of(module(*args, **kwargs))
        flat = Flat(replace(model, module=module), module)
        reasons = []
        for by_tracing in (False, True):
            try:
                self._cut(model, capture(flat, tensors, by_tracing=by_tracing), tensors)
                return
            except Unsupported:
                raise
            except Exception as error:  # capturing and cutting fail in many ways; each reason is told
                reasons.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        raise Unsupported("; ".join(reasons), stage="capture")

    def _cut(self, model: Model, graph: fx.GraphModule, tensors: Sequence[Tensor]) -> None:
        nodes = operators(graph)
        self._operators = [operator_name(node) for node in nodes]
        first = self._how.prefix if self._how.prefix is not None else 0
        kept = {node for i, node in enumerate(nodes) if i < first or i in (self._how.eager or ())}
        whole = split(graph, lambda node: node in kept)
        self._pieces = []
        _Preparing(whole, lambda piece, given: self._prepared(model, piece, given)).run(*tensors)
        self._graph = whole

    def _prepared(self, model: Model, piece: nn.Module, given: tuple[Tensor, ...]) -> nn.Module:
        """A backend of its own for one piece, with these inputs as the example."""
        if not given:
            return piece  # constants only
        names = [f"x{i}" for i in range(len(given))]
        seed = model.seed.model_copy(
            update={
                "inputs": {name: _spec_of(tensor) for name, tensor in zip(names, given, strict=True)},
                "call": None,
                "dims": {},
            }
        ).at(model.seed.base)
        backend = self._configured(self._make())
        sample = dict(zip(names, given, strict=True))
        backend.prepare(Model(seed, piece.eval()), {name: tensor.clone() for name, tensor in sample.items()})
        self._pieces.append(backend)
        return _Piece(backend, names)


def _spec_of(tensor: Tensor) -> InputSpec:
    kind = "mask" if tensor.dtype == torch.bool else "integers"
    if tensor.is_floating_point() or tensor.is_complex():
        kind = "floats"
    # The dtype is not checked: a piece may pass on what no seed can name, such as complex128.
    return InputSpec.model_construct(kind=kind, shape=list(tensor.shape), dtype=None, exact=False)


class _Preparing(fx.Interpreter):
    """Runs the cut graph once on real tensors; each piece is prepared as it is reached, with what it is given."""

    def __init__(self, whole: fx.GraphModule, prepare: Callable[[nn.Module, tuple[Tensor, ...]], nn.Module]) -> None:
        super().__init__(whole)
        self._prepare = prepare
        self._whole = whole

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        if PIECE in str(target):
            if not all(isinstance(item, Tensor) for item in args):
                raise ValueError(f"{target} would take something else than tensors")
            piece = self._whole.get_submodule(str(target))
            self._whole.set_submodule(str(target), self._prepare(piece, tuple(args)))
            with torch.no_grad():
                try:
                    return super().call_module(target, args, kwargs)
                except Exception:  # raised again when it is run; what follows is prepared with eager mode's answer
                    return piece(*args)
        with torch.no_grad():
            return super().call_module(target, args, kwargs)


class _Piece(nn.Module):
    def __init__(self, backend: Backend, names: list[str]) -> None:
        super().__init__()
        self._backend = backend
        self._input_names = names

    def forward(self, *given: Tensor) -> Any:
        return self._backend.run(dict(zip(self._input_names, given, strict=True)))


class _Copying(nn.Module):
    """Calls a copy of the module on copies of its inputs: what a call changes is gone after it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.clone())
        state = {name: value.clone() for name, value in (*self.module.named_parameters(), *self.module.named_buffers())}
        return torch.func.functional_call(self.module, state, args, kwargs)
