"""A graph of operators as the source of a small module, in the calls that a user of PyTorch writes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuzzer.crashes.literals import literal
from fuzzer.models.graph import GETITEM, Graph, Node, names_in

#: Constants of up to this many elements are written into the source.
MAX_INLINE = 64
#: Methods whose arguments are those of the operator, after the tensor itself.
_METHODS = frozenset(
    "view reshape expand permute to repeat contiguous type_as new_zeros new_ones new_full copy".split()
)
#: Functions of torch whose arguments differ from the operator's of that name.
_OTHERWISE = frozenset("full arange zeros ones empty tensor norm stft std var index einsum".split())
_WIDTH = 100


def module_source(graph: Graph, weights: Mapping[str, Tensor]) -> str:
    """The class `Model` whose forward takes the graph's inputs in order and gives its output.

    Constants of up to MAX_INLINE elements among `weights` are written down, the others are zero until they are loaded.
    """
    taken = {*graph.inputs, *graph.constants, *(node.name for node in graph.nodes)}
    lines = ["class Model(torch.nn.Module):"]
    if graph.constants:
        lines += ["    def __init__(self):", "        super().__init__()"]
        for name, about in graph.constants.items():
            value = f"torch.zeros({list(about['shape'])}, dtype=torch.{about['dtype']})"
            if name in weights and weights[name].numel() <= MAX_INLINE:
                value = literal(weights[name])
            lines += _wrapped(f'self.register_buffer("{name}", {value})', 8)
        lines.append("")
    lines.append(f"    def forward(self, {', '.join(graph.inputs)}):")
    shown = {name: name for name in taken} | {name: f"self.{name}" for name in graph.constants}
    nodes = list(graph.nodes)
    last = nodes[-1] if nodes and graph.output == f"%{nodes[-1].name}" else None
    for node in nodes:
        start = "return" if node is last else f"{node.name} ="
        lines += _wrapped(f"{start} {_call(node, shown)}", 8)
    if last is None:
        lines += _wrapped(f"return {_text(graph.output, shown)}", 8)
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 4), break_long_words=False
    )


def _call(node: Node, shown: Mapping[str, str]) -> str:
    args = [_text(argument, shown) for argument in node.args]
    keywords = [f"{key}={_text(value, shown)}" for key, value in node.kwargs.items()]
    if node.op == GETITEM:
        return f"{args[0]}[{args[1]}]"
    space, name, overload = node.op.split(".")
    if node.op == "aten.index.Tensor" and all(isinstance(one, str) for one in node.args[1]):
        return f"{args[0]}[{', '.join(_text(one, shown) for one in node.args[1])}]"
    if space == "aten" and name in _METHODS and args and next(names_in(node.args[0]), None) is not None:
        return f"{args[0]}.{name}({', '.join([*args[1:], *keywords])})"
    return f"{_function(space, name, overload)}({', '.join([*args, *keywords])})"


def _function(space: str, name: str, overload: str) -> str:
    """The public name of an operator, where there is a function that takes the operator's own arguments."""
    found: Callable[..., Any] | None = getattr(torch, name, None)
    if space == "aten" and name not in _OTHERWISE:
        if found is not None and hasattr(torch._C._VariableFunctions, name):
            return f"torch.{name}"
        if hasattr(torch._C._nn, name) and getattr(torch.nn.functional, name, None) is getattr(torch._C._nn, name):
            return f"torch.nn.functional.{name}"
    return f"torch.ops.{space}.{name}.{overload}"


def _text(value: Any, shown: Mapping[str, str]) -> str:
    """An argument or an output as source."""
    if isinstance(value, str):
        return shown[value[1:]] if value.startswith("%") else repr(value)
    if isinstance(value, Mapping):
        if set(value) <= {"float", "device", "dtype", "layout", "memory_format"} and len(value) == 1:
            ((word, text),) = value.items()
            if isinstance(text, str) and not text.startswith("%"):
                return {"float": f'float("{text}")', "device": repr(text)}.get(word, f"torch.{text}")
        return "{" + ", ".join(f"{key!r}: {_text(item, shown)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(item, shown) for item in value) + "]"
    return repr(value)
