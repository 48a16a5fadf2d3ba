"""What a model computes on the way: intermediate values by the names of the module tree, and where each comes from.

`observe_eager` watches a module through forward hooks; `ExtraOutputs` is a module that returns the same values as
further outputs, for a compiler. Names are those of the module tree: `features.0`, `block.relu#2` for the second call
of one module, `lstm[1][0]` for a part of a nested result, `fc:in` for an argument that no other module returned (the
result of a function such as `x + y`), and `$…` for the leaves of the output itself.

Observation has a price: hooks turn PyTorch's fused transformer path off, and a value that must be returned cannot be
fused away. So whoever observes also looks whether the output stayed the same.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.trees import ROOT, Leaves, flatten, map_tensors

#: How a side was observed.
HOOKS = "hooks"
EXTRA_OUTPUTS = "extra outputs"
#: Elements of all values of one observation that travel; what comes after is left out, with the reason.
MOST_ELEMENTS = 1 << 26
_OUTPUT, _VALUE = "output:", "value:"


@dataclass(frozen=True)
class Step:
    """One value on the way, in execution order.

    `path`: the module, or `$` for the output. `call`: 1 for its first call. `part`: which leaf of the result, `:in…`
    for an argument. `module`: its class, or the operator. `sources`: the steps it was computed from; None where that
    is not known, so that it may be any earlier one.
    """

    path: str
    call: int = 1
    part: str = ""
    module: str = ""
    sources: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.path + (f"#{self.call}" if self.call > 1 else "") + self.part

    @property
    def is_input(self) -> bool:
        return self.part.startswith(":in")


@dataclass
class Observation:
    """One observed run. `values` by name, in execution order, ends with the tensors of the output.

    `how`: by what means. `lost`: what could not be observed, with the reason.
    """

    output: Any
    values: dict[str, Tensor]
    how: str
    steps: dict[str, Step] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def to_leaves(self) -> Leaves:
        """As leaves that travel; at most MOST_ELEMENTS elements of values."""
        leaves: Leaves = {_OUTPUT + path: leaf for path, leaf in flatten(self.output).items()}
        lost, total = dict(self.lost), 0
        for name, value in self.values.items():
            if name.startswith(ROOT):
                continue  # it travels with the output
            total += value.numel()
            if total <= MOST_ELEMENTS:
                leaves[_VALUE + name] = value
            else:
                lost[name] = f"the values before it already have {MOST_ELEMENTS} elements"
        steps = [asdict(step) for step in self.steps.values()]
        return leaves | {"how": self.how, "steps": json.dumps(steps), "lost": json.dumps(lost)}

    @classmethod
    def from_leaves(cls, leaves: Leaves) -> Observation:
        """The inverse of `to_leaves`, with the output as flat leaves. Raises ValueError on other leaves."""
        try:
            steps = [
                Step(**{**entry, "sources": _tuple(entry["sources"])}) for entry in json.loads(str(leaves["steps"]))
            ]
            lost: dict[str, str] = json.loads(str(leaves["lost"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an observation: {error}") from error
        output = {path.removeprefix(_OUTPUT): leaf for path, leaf in leaves.items() if path.startswith(_OUTPUT)}
        values = {
            path.removeprefix(_VALUE): leaf
            for path, leaf in leaves.items()
            if path.startswith(_VALUE) and isinstance(leaf, Tensor)
        }
        return cls(output, values | output_values(output), str(leaves["how"]), {s.name: s for s in steps}, lost)


def _tuple(value: list[str] | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def output_values(leaves: Leaves) -> dict[str, Tensor]:
    """The tensors of an output under their names as steps: `$`, `$[0].boxes`."""
    return {_root(path): leaf for path, leaf in leaves.items() if isinstance(leaf, Tensor)}


def _root(path: str) -> str:
    return ROOT if path == ROOT else ROOT + path


def observe_eager(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Observation:
    """Run `module` on these arguments, under whatever modes are in force, and keep copies of what passes.

    Kept are the results of modules without submodules, the results of others where they are new (`x + f(x)` at the end
    of a block), and arguments that no module returned. A module that hands its argument on leaves no step.
    """
    watch = _Watch(module)
    try:
        output = module(*args, **kwargs)
    finally:
        watch.remove()
    watch.end(output)
    return Observation(output, watch.values, HOOKS, watch.steps)


@dataclass
class _Call:
    path: str
    number: int
    before: int  # steps so far
    sources: tuple[str, ...] | None = ()
    arguments: list[str] = field(default_factory=list)  # its own steps


class _Watch:
    """Hooks on every module, and which tensor came from which step.

    A tensor is known by its identity and its version: one that was written to since is another value. Tensors are kept
    alive, because identities are used again.
    """

    def __init__(self, root: nn.Module) -> None:
        self.values: dict[str, Tensor] = {}
        self.steps: dict[str, Step] = {}
        self._root = root
        self._known: dict[int, tuple[Tensor, int, str]] = {}
        self._calls: Counter[str] = Counter()
        self._stack: list[_Call] = []
        self._handles: list[Any] = []
        for path, module in root.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(path), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave(path)))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def end(self, output: Any) -> None:
        """Add the output's own tensors, each as a step of its own."""
        for path, leaf in flatten(output).items():
            if isinstance(leaf, Tensor):
                source = self._source(leaf)
                sources = None if source is None else (source,) if source else ()
                self._keep(Step(ROOT, 1, "" if path == ROOT else path, "output", sources), leaf)

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            tensors = _tensors((args, kwargs))
            if module is self._root and not self._stack:
                for tensor in tensors:
                    self._known[id(tensor)] = (tensor, _version(tensor), "")
            self._calls[path] += 1
            call = _Call(path, self._calls[path], len(self.steps))
            sources: list[str] | None = []
            for i, tensor in enumerate(tensors):
                source = self._source(tensor)
                if source is None and _is_leaf(module):
                    step = Step(path, call.number, _argument(i, len(tensors)), type(module).__name__)
                    self._keep(step, tensor)
                    source = step.name
                    call.arguments.append(source)
                if source is None or sources is None:
                    sources = None
                elif source:
                    sources.append(source)
            call.sources = None if sources is None else tuple(dict.fromkeys(sources))
            self._stack.append(call)

        return hook

    def _leave(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            call = self._stack.pop()
            if module is self._root and not self._stack:
                return  # its result is the output
            alone = all(step.is_input for step in itertools.islice(self.steps.values(), call.before, None))
            for part, leaf in flatten(output).items():
                if not isinstance(leaf, Tensor):
                    continue
                source = self._source(leaf)
                if source is None:
                    # what is computed between submodules may come from any of them
                    sources = call.sources if alone else None
                    step = Step(path, call.number, "" if part == ROOT else part, type(module).__name__, sources)
                    self._keep(step, leaf)
                elif source in call.arguments:  # handed on as it was: an argument of whoever uses it next
                    del self.steps[source], self.values[source], self._known[id(leaf)]

        return hook

    def _source(self, tensor: Tensor) -> str | None:
        """The step that `tensor` is the value of, "" for the model's inputs, None where it is of none."""
        known = self._known.get(id(tensor))
        return known[2] if known is not None and known[1] == _version(tensor) else None

    def _keep(self, step: Step, tensor: Tensor) -> None:
        self.steps[step.name] = step
        self.values[step.name] = tensor.detach().clone()
        self._known[id(tensor)] = (tensor, _version(tensor), step.name)


def _version(tensor: Tensor) -> int:
    """The version counter; tensors made in inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in flatten(value).values() if isinstance(leaf, Tensor)]


def _argument(index: int, count: int) -> str:
    return ":in" if count == 1 else f":in{index}"


class ExtraOutputs(nn.Module):
    """A module whose forward returns the output of `module` and a list of what passed, for a compiler to return too.

    `module` keeps the hooks: hand over a copy. `steps`: what to observe, as `observe_eager` found it.
    """

    def __init__(self, module: nn.Module, steps: Mapping[str, Step]) -> None:
        super().__init__()
        self.module = module
        self.train(module.training)
        self._log = _Log()
        results = {step.path for step in steps.values() if not step.is_input}
        arguments = {step.path for step in steps.values() if step.is_input}
        for path, found in module.named_modules():
            if path in arguments:
                found.register_forward_pre_hook(self._log.arguments(path), with_kwargs=True)
            if path in results:
                found.register_forward_hook(self._log.result(path))

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[tuple[str, bool, Any]]]:
        self._log.entries = []
        output = self.module(*args, **kwargs)
        return output, self._log.entries


class _Log:
    """What passed, in order: the module, whether it is its arguments, copies of the tensors."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bool, Any]] = []

    def arguments(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self.entries.append((path, True, _copied((args, kwargs))))

        return hook

    def result(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # a lone tensor without a call more: Dynamo traces this hook once for each module
            self.entries.append((path, False, output.clone() if isinstance(output, Tensor) else _copied(output)))

        return hook


def _copied(value: Any) -> Any:
    """Copies of the tensors in plain containers, nothing else: simple enough for Dynamo to trace.

    Without `detach`, a node more each, because whoever observes turns gradients off.
    """
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return None


def from_extra_outputs(
    output: Any, entries: list[tuple[str, bool, Any]], steps: Mapping[str, Step], lost: Mapping[str, str]
) -> Observation:
    """What a run of (a compiled) `ExtraOutputs` answered, under the names of `steps`."""
    calls: Counter[tuple[str, bool]] = Counter()
    found: dict[str, Tensor] = {}
    for path, is_input, value in entries:
        calls[path, is_input] += 1
        number = calls[path, is_input]
        if is_input:
            tensors = _tensors(value)
            parts = {_argument(i, len(tensors)): tensor for i, tensor in enumerate(tensors)}
        else:
            parts = {
                "" if part == ROOT else part: leaf for part, leaf in flatten(value).items() if isinstance(leaf, Tensor)
            }
        for part, tensor in parts.items():
            found[Step(path, number, part).name] = tensor
    values = {name: found[name] for name in steps if name in found}
    missing = {name: "the compiled module did not return it" for name in steps if name not in found}
    missing = {name: why for name, why in missing.items() if not name.startswith(ROOT)}
    return Observation(
        output, values | output_values(flatten(output)), EXTRA_OUTPUTS, dict(steps), dict(lost) | missing
    )


def on_cpu(observation: Observation) -> Observation:
    """The same with all tensors detached on the CPU."""
    output = map_tensors(observation.output, lambda tensor: tensor.detach().to("cpu"))
    values = {name: value.detach().to("cpu") for name, value in observation.values.items()}
    return Observation(output, values, observation.how, observation.steps, observation.lost)


def movement(plain: Mapping[str, Tensor], draws: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """How far each float element moved over the draws, at most: float64, the shape of `plain`'s value.

    Complex values are taken as pairs of floats. A draw in which a value has another shape tells nothing; neither do
    elements that are not finite in it.
    """
    moved: dict[str, Tensor] = {}
    for name, value in plain.items():
        if value.layout != torch.strided or not (value.is_floating_point() or value.is_complex()):
            continue
        p = _wide(value)
        most = torch.zeros_like(p)
        for draw in draws:
            other = draw.get(name)
            if other is not None and other.shape == value.shape:
                gap = (_wide(other) - p).abs()
                most = torch.maximum(most, torch.where(torch.isfinite(gap), gap, 0.0))
        moved[name] = most
    return moved


def _wide(value: Tensor) -> Tensor:
    real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return real.to("cpu", torch.float64)
