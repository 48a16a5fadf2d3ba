"""A model as a small graph of operators: plain data that a crash can keep, and the module that it describes.

Reduction makes such graphs of a module (`fuzzer.models.capture`). A graph names operators and values and holds no code,
so reading one executes nothing; only operators of the namespaces listed here can be named.

The form, as JSON: `inputs` (names, in order), `constants` (name → `{shape, dtype}`; their values are the model's
weights), `nodes` (a list of `[name, operator, args, kwargs]`), and `output`. In arguments and in the output the text
`%name` stands for a value, `{dtype: float32}` and the like for torch's own objects, `{float: inf}` for what JSON lacks.
"""

from __future__ import annotations

import keyword
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from fuzzer.errors import ModelError
from fuzzer.inputs.dtypes import DTYPES
from fuzzer.seeds import Seed

#: Namespaces of operators that a graph may name.
NAMESPACES = ("aten", "torchvision")
#: Takes a part out of an operator's result.
GETITEM = "getitem"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r"(\w+)\.(\w+)\.(\w+)")
_OBJECTS: dict[type, str] = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class CannotCapture(Exception):
    """A module has no such graph; the text says why."""


@dataclass(frozen=True)
class Node:
    """One operator: the value `name` is what `op` (`aten.relu.default`, or GETITEM) gives for its arguments."""

    name: str
    op: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def uses(self) -> list[str]:
        """Names of the values in its arguments, in order, each once."""
        return list(dict.fromkeys([*names_in(self.args), *names_in(self.kwargs)]))

    @property
    def counts(self) -> bool:
        """Whether it counts as a node: taking a part out of a result is no operator of its own."""
        return self.op != GETITEM


@dataclass(frozen=True)
class Graph:
    """See the module's text. Values are named once, before they are used."""

    inputs: tuple[str, ...]
    constants: Mapping[str, Mapping[str, Any]]
    nodes: tuple[Node, ...]
    output: Any

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @property
    def size(self) -> int:
        """The number of operators."""
        return sum(node.counts for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": list(self.inputs),
            "constants": {name: dict(about) for name, about in self.constants.items()},
            "nodes": [[node.name, node.op, list(node.args), dict(node.kwargs)] for node in self.nodes],
            "output": self.output,
        }

    @classmethod
    def from_json(cls, value: Any) -> Graph:
        """The inverse of `to_json`. Raises ValueError on anything that is no graph."""
        try:
            nodes = tuple(Node(name, op, tuple(args), dict(kwargs)) for name, op, args, kwargs in value["nodes"])
            constants = {name: dict(about) for name, about in value["constants"].items()}
            graph = cls(tuple(value["inputs"]), constants, nodes, value["output"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a graph: {type(error).__name__}: {error}") from error
        _check(graph)
        return graph

    def trimmed(self) -> Graph:
        """The same without what the output does not need: nodes, constants, inputs."""
        needed = set(names_in(self.output))
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.name in needed:
                kept.append(node)
                needed |= set(node.uses)
        constants = {name: about for name, about in self.constants.items() if name in needed}
        inputs = tuple(name for name in self.inputs if name in needed)
        return replace(self, inputs=inputs, constants=constants, nodes=tuple(reversed(kept)))


def names_in(value: Any) -> Iterator[str]:
    """The names of the values in arguments or in an output."""
    if isinstance(value, str):
        if value.startswith("%"):
            yield value[1:]
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from names_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)


def renamed(value: Any, names: Mapping[str, str | None]) -> Any:
    """Arguments or an output with other values in the places of those in `names`; None where that is their new one."""
    if isinstance(value, str) and value.startswith("%"):
        new = names.get(value[1:], value[1:])
        return None if new is None else "%" + new
    if isinstance(value, Mapping):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(renamed(item, names) for item in value)
    return value


def plain(value: Any) -> Any:
    """An argument of an operator as JSON. Raises ValueError where it is of a kind that a graph cannot hold."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, str) and not value.startswith("%"):
        return value
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, word in _OBJECTS.items():
        if isinstance(value, kind):
            return {word: str(value).removeprefix("torch.")}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise ValueError(f"an argument of type {type(value).__qualname__}")


def restored(value: Any, values: Mapping[str, Any]) -> Any:
    """The inverse of `plain`, with `values` in the places of names."""
    if isinstance(value, str):
        return values[value[1:]] if value.startswith("%") else value
    if isinstance(value, Mapping):
        ((word, text),) = value.items()
        if word == "float":
            return float(text)
        if word == "device":
            return torch.device(text)
        found = getattr(torch, text, None)
        if _OBJECTS.get(type(found)) != word:
            raise ValueError(f"not a graph: {text[:100]!r} is no {word}")
        return found
    if isinstance(value, list | tuple):
        return [restored(item, values) for item in value]
    return value


def operator_named(op: str) -> Callable[..., Any]:
    """The operator that a node names. Raises ValueError where there is none, or none that a graph may name."""
    if op == GETITEM:
        return operator.getitem
    found = _OPERATOR.fullmatch(op)
    if found is None or found[1] not in NAMESPACES:
        raise ValueError(f"{op[:100]!r} is no operator that a graph may name")
    if found[1] == "torchvision":
        import torchvision  # noqa: F401 - registers its operators
    try:
        target: Callable[..., Any] = getattr(getattr(getattr(torch.ops, found[1]), found[2]), found[3])
    except AttributeError as error:
        raise ValueError(f"this PyTorch has no operator {op}") from error
    return target


def graph_module(seed: Seed) -> nn.Module:
    """The module of a seed with `source: graph`. Raises ModelError.

    Its inputs are positional; its constants are buffers, all zero until weights are loaded.
    """
    try:
        return module_of(Graph.from_json(seed.model.graph))
    except (ValueError, TypeError, RuntimeError, NameError) as error:
        raise ModelError(f"{seed.name}: the graph cannot be built: {' '.join(str(error).split())[:300]}") from error


def module_of(graph: Graph) -> torch.fx.GraphModule:
    """The module that computes `graph`."""
    root = nn.Module()
    made = torch.fx.Graph()
    values: dict[str, Any] = {name: made.placeholder(name) for name in graph.inputs}
    for name, about in graph.constants.items():
        root.register_buffer(name, torch.zeros(about["shape"], dtype=DTYPES[about["dtype"]]))
        values[name] = made.get_attr(name)
    for node in graph.nodes:
        args, kwargs = restored(node.args, values), {key: restored(item, values) for key, item in node.kwargs.items()}
        values[node.name] = made.call_function(operator_named(node.op), tuple(args), kwargs)
    made.output(_output(graph.output, values))
    return torch.fx.GraphModule(root, made)


def _output(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, str):
        return values[template[1:]] if template.startswith("%") else template
    if isinstance(template, Mapping):
        return {key: _output(item, values) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [_output(item, values) for item in template]
    return template


def _check(graph: Graph) -> None:
    """Raises ValueError where a name is none, is given twice, or is used before it has a value."""
    known: set[str] = set()

    def give(name: Any) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in known:
            raise ValueError(f"not a graph: {str(name)[:100]!r} is no name for a value, or stands for two")
        known.add(name)

    for name, about in graph.constants.items():
        if about.get("dtype") not in DTYPES or not all(
            isinstance(n, int) and n >= 0 for n in about.get("shape", ["?"])
        ):
            raise ValueError(f"not a graph: constant {str(name)[:100]!r} has no shape or dtype")
    for name in (*graph.inputs, *graph.constants):
        give(name)
    for node in graph.nodes:
        unknown = set(node.uses) - known
        if not isinstance(node.op, str) or unknown or not all(_NAME.fullmatch(key) for key in node.kwargs):
            raise ValueError(f"not a graph: node {str(node.name)[:100]!r} uses {', '.join(sorted(unknown))}")
        give(node.name)
    if set(names_in(graph.output)) - known or not _named_by_text(graph.output) or not list(names_in(graph.output)):
        raise ValueError("not a graph: its output is no value of it")


def _named_by_text(output: Any) -> bool:
    if isinstance(output, Mapping):
        return all(isinstance(key, str) and _named_by_text(item) for key, item in output.items())
    return all(map(_named_by_text, output)) if isinstance(output, list | tuple) else True
