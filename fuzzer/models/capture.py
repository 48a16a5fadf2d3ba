"""A module as a graph of operators, by running it once and recording them: what reduction takes apart.

The graph has the operators that the module calls (a `linear` stays one), what they were called with for this sample
(branches, loops and sizes are those that were taken), and every tensor that is neither an input nor computed (weights,
buffers, tables) as a constant.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fuzzer.inputs.dtypes import DTYPES
from fuzzer.models.graph import GETITEM, CannotCapture, Graph, Node, module_of, plain, renamed
from fuzzer.models.model import Model
from fuzzer.tensors import content_hash

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: Operators that hand on what they are given.
_IDENTITIES = ("detach", "detach_", "lift_fresh", "lift_fresh_copy", "alias", "contiguous")


class _Flat(nn.Module):
    """The model as a module of one tensor for each input of the seed, that gives the list of its output's tensors.

    `output`: the last output in lists and mappings, with `%number` in the places of the tensors.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        assert model.module is not None
        self.module = model.module
        self.output: Any = None
        self._model = model

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        args, kwargs = self._model.call(dict(zip(self._model.seed.inputs, tensors, strict=True)))
        found: list[Tensor] = []
        self.output = _template(self.module(*args, **kwargs), found)
        return found


def capture(model: Model, sample: Mapping[str, Tensor]) -> tuple[Graph, dict[str, Tensor]]:
    """The graph of `model` for `sample`, and the values of its constants.

    Raises CannotCapture: for what is no operator (a context such as autocast), and where the graph does not give the
    module's own answer, as with values that are written to through a view.
    """
    if model.module is None:
        raise CannotCapture("an ONNX file has no PyTorch module")
    if model.seed.model.source == "graph":
        graph = Graph.from_json(model.seed.model.graph)
        return graph, {name: value for name, value in model.module.state_dict().items() if name in graph.constants}
    names = list(model.seed.inputs)
    flat = _Flat(model).eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            state = torch.get_rng_state()
            answer = flat(*(sample[name].clone() for name in names))
            torch.set_rng_state(state)
            # as it runs, above autograd, where an operator such as `linear` is still one
            record = make_fx(flat, tracing_mode="real", pre_dispatch=True, _error_on_data_dependent_ops=False)
            traced = record(*(sample[name].clone() for name in names))
            graph, constants = _translated(traced, flat.output, names, _names(model.module))
            torch.set_rng_state(state)
            module = module_of(graph)
            module.load_state_dict(constants)
            again = _leaves(module(*(sample[name].clone() for name in graph.inputs)))
    except CannotCapture:
        raise
    except Exception as error:  # whatever recording cannot do: the crash then says so
        said = " ".join(str(error).split())[:300]
        raise CannotCapture(f"its operators cannot be recorded: {type(error).__name__}: {said}") from error
    if content_hash(_numbered(again)) != content_hash(_numbered(answer)):
        raise CannotCapture("its recorded operators do not give its answer")
    return graph, constants


def _template(value: Any, found: list[Tensor]) -> Any:
    """`value` in lists and mappings with `%number` for its tensors, which are put into `found`; paths stay the same."""
    if isinstance(value, Tensor):
        found.append(value)
        return f"%{len(found) - 1}"
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise CannotCapture("the output is a mapping whose keys are no text")
        return {key: _template(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_template(item, found) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _template(getattr(value, item.name), found) for item in dataclasses.fields(value)}
    if value is None or isinstance(value, bool | int | float):
        return value
    raise CannotCapture(f"the output holds a {type(value).__qualname__}")


def _leaves(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _template(value, found)
    return found


def _numbered(values: list[Tensor]) -> dict[str, Tensor]:
    return {str(i): value for i, value in enumerate(values)}


def _names(module: nn.Module) -> dict[int, str]:
    """Names of parameters and buffers by identity, as Python has names."""
    found = [*module.named_parameters(), *module.named_buffers()]
    return {id(value): "w_" + re.sub(r"\W", "_", name) for name, value in found}


def _translated(
    traced: torch.fx.GraphModule, output: Any, names: list[str], weights: Mapping[int, str]
) -> tuple[Graph, dict[str, Tensor]]:
    called: dict[str, str] = {}  # FX's name → ours
    attributes: dict[str, str] = {}
    taken = set(names)
    waiting = list(names)
    constants: dict[str, Tensor] = {}
    nodes: list[Node] = []
    results: list[Any] = []
    for found in traced.graph.nodes:
        target = found.target
        if found.op == "placeholder":
            called[found.name] = waiting.pop(0)
        elif found.op == "get_attr":
            if target not in attributes:
                value = _attribute(traced, target)
                attributes[target] = _free(weights.get(id(value), f"c_{len(constants)}"), taken)
                constants[attributes[target]] = value.detach()
            called[found.name] = attributes[target]
        elif found.op == "output":
            results = list(found.args[0])
        elif target is torch._C._set_grad_enabled:
            continue
        elif _packet(target) in _IDENTITIES:
            called[found.name] = called[found.args[0].name]
        else:
            called[found.name] = _free(found.name, taken)
            nodes.append(_node(found, called))
    shown = {str(i): called[one.name] if isinstance(one, torch.fx.Node) else None for i, one in enumerate(results)}
    about = {name: {"shape": list(one.shape), "dtype": _DTYPE_NAMES[one.dtype]} for name, one in constants.items()}
    graph = Graph(tuple(names), about, tuple(nodes), renamed(output, shown)).trimmed()
    return graph, {name: constants[name] for name in graph.constants}


def _attribute(traced: torch.fx.GraphModule, target: str) -> Tensor:
    value: Any = traced
    for part in target.split("."):
        value = getattr(value, part)
    if not isinstance(value, Tensor) or value.dtype not in _DTYPE_NAMES or value.layout != torch.strided:
        raise CannotCapture(f"the constant {target} is no plain tensor")
    return value


def _packet(target: Any) -> str:
    return target.overloadpacket.__name__ if hasattr(target, "overloadpacket") else ""


def _node(found: Any, called: Mapping[str, str]) -> Node:
    op = _operator(found.target)

    def given(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return "%" + called[value.name]
        if isinstance(value, list | tuple):
            return [given(item) for item in value]
        return plain(value)

    try:
        args = tuple(given(item) for item in found.args)
        return Node(called[found.name], op, args, {key: given(item) for key, item in found.kwargs.items()})
    except ValueError as error:
        raise CannotCapture(f"{op} is called with {error}") from error


def _operator(target: Any) -> str:
    """The name of an operator; of one that writes in place, that of its twin that does not."""
    if getattr(target, "__name__", "") == "getitem":
        return GETITEM
    if not hasattr(target, "overloadpacket"):
        raise CannotCapture(f"it calls {getattr(target, '__name__', target)}, which is no operator")
    name, overload = target.overloadpacket.__name__, target._overloadname
    if target._schema.is_mutable:
        twin = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
        if not name.endswith("_") or twin is None or not hasattr(twin, overload):
            raise CannotCapture(f"{target} writes in place")
        name = name.removesuffix("_")
    return f"{target.namespace}.{name}.{overload}"


def _free(name: str, taken: set[str]) -> str:
    """`name`, with underscores after it where it is taken."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
