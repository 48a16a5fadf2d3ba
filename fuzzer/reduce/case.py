"""A case: a graph of operators with the tensors it needs, and its place in the order in which reduction goes down."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from fuzzer.models.graph import Graph, names_in
from fuzzer.reduce.size import size_of
from fuzzer.tensors import content_hash
from fuzzer.trees import ROOT


@dataclass(frozen=True, order=True)
class CaseSize:
    """How much a reader has to look at: the first field that differs decides.

    `nodes`: operators; `outputs`; `tensors`: inputs and constants, and `constants` among them (a constant is one step
    further from the reader than an input). The rest is that of `Size`, over all tensors.
    """

    nodes: int
    outputs: int
    tensors: int
    constants: int
    elements: int
    filled: int
    distinct: int
    cost: int


@dataclass(frozen=True)
class Case:
    """`graph`, and the values of its inputs and constants by name: dense CPU tensors."""

    graph: Graph
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, graph: Graph, tensors: Mapping[str, Tensor]) -> Case:
        """The case of what the output of `graph` needs, with its own among `tensors`, and constants of their sizes."""
        graph = graph.trimmed()
        names = (*graph.inputs, *graph.constants)
        about = {name: {**graph.constants[name], "shape": list(tensors[name].shape)} for name in graph.constants}
        return cls(replace(graph, constants=about), {name: tensors[name] for name in names})

    @property
    def inputs(self) -> dict[str, Tensor]:
        return {name: self.tensors[name] for name in self.graph.inputs}

    @property
    def constants(self) -> dict[str, Tensor]:
        return {name: self.tensors[name] for name in self.graph.constants}

    @cached_property
    def size(self) -> CaseSize:
        graph, of = self.graph, size_of(self.tensors)
        outputs = len(list(names_in(graph.output)))
        counts = graph.size, outputs, len(self.tensors), len(graph.constants)
        return CaseSize(*counts, of.elements, of.filled, of.distinct, of.cost)

    @cached_property
    def key(self) -> str:
        """Tells cases apart."""
        return hashlib.sha256(f"{self.code} {content_hash(self.tensors)}".encode()).hexdigest()[:32]

    @cached_property
    def code(self) -> str:
        """The graph as text: cases with the same code, shapes and constants can share what a compiler made."""
        return json.dumps(self.graph.to_json(), sort_keys=True)


def keys_of(path: str) -> list[Any]:
    """The keys on the way to a leaf: `[0].boxes` is 0, then "boxes". Raises ValueError on what is no path."""
    if path == ROOT:
        return []
    keys: list[Any] = []
    node = ast.parse("x" + path, mode="eval").body
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            keys.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            keys.append(ast.literal_eval(node.slice))
            node = node.value
        else:
            raise ValueError(f"{path!r} is no path of a leaf")
    return keys[::-1]


def placed(keys: Sequence[Any], name: str) -> Any:
    """An output whose only tensor is the value `name`, at the path of `keys`."""
    if not keys:
        return f"%{name}"
    inner = placed(keys[1:], name)
    return [None] * keys[0] + [inner] if isinstance(keys[0], int) else {keys[0]: inner}


def without(output: Any, dropped: set[tuple[Any, ...]], at: tuple[Any, ...] = ()) -> Any:
    """`output` without the leaves at the paths (as keys) in `dropped`; the others keep theirs."""
    if isinstance(output, Mapping):
        return {k: without(item, dropped, (*at, k)) for k, item in output.items() if (*at, k) not in dropped}
    if isinstance(output, list | tuple):
        return [None if (*at, i) in dropped else without(item, dropped, (*at, i)) for i, item in enumerate(output)]
    return output


def leaves_of(output: Any, at: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], str]]:
    """The tensors of an output: path as keys, name of the value."""
    if isinstance(output, str):
        return [(at, output[1:])] if output.startswith("%") else []
    if isinstance(output, Mapping):
        return [found for key, item in output.items() for found in leaves_of(item, (*at, key))]
    if isinstance(output, list | tuple):
        return [found for i, item in enumerate(output) for found in leaves_of(item, (*at, i))]
    return []
