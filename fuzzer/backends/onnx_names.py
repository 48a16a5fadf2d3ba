"""Which values of an exported ONNX file are the results of which modules.

Both exporters leave a trace of the module tree: `torch.export`'s in the nodes' metadata (`pkg.torch.onnx.name_scopes`),
TorchScript's in the nodes' names (`/layer1/layer1.0/conv1/Conv`; `relu_1` is the second call of `relu`). The nodes of a
call are those that bear its name; its result is what leaves them. What an exporter folds away leaves no node, and what
cannot be told for certain is left out, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fuzzer.backends.observe import Step
from fuzzer.models.onnx_file import module_name
from fuzzer.trees import ROOT

_SCOPES = "pkg.torch.onnx.name_scopes"
#: The exported module holds the model as its child of this name.
_WRAPPED = "module"
_FOLDED = "no node of its own: it does nothing, or the exporter folded it into another"


@dataclass
class Candidates:
    """For each step, the values of the file that may be it (told apart by shape, once run); or why there is none."""

    values: dict[str, list[str]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def partial(self, name: str) -> bool:
        """Whether the step is one leaf of several, so that only its shape tells which."""
        return name.endswith("]")


@dataclass(frozen=True)
class _Node:
    """A node's inputs and outputs. `calls`: module path → which call of it this is, as the exporter tells it.

    `operator`: the PyTorch operator it stems from, empty where that is not told.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: Mapping[str, str]
    operator: str


def candidates(proto: Any, steps: Mapping[str, Step], module: nn.Module) -> Candidates:
    """Match `steps`, as eager mode runs them on one sample, with the values of the exported `proto` (a ModelProto)."""
    modules = {path for path, _ in module.named_modules()}
    nodes = [_read(node, modules) for node in proto.graph.node if node.op_type != "Constant"]
    constants = {value.name for value in proto.graph.initializer}
    constants |= {name for node in proto.graph.node if node.op_type == "Constant" for name in node.output}
    results = {value.name for value in proto.graph.output}
    found = Candidates()
    grouped: dict[tuple[str, int], list[Step]] = {}
    for step in steps.values():
        if step.path != ROOT:
            grouped.setdefault((step.path, step.call), []).append(step)
    counts: dict[str, int] = {}
    for path, call in grouped:
        counts[path] = max(counts.get(path, 0), call)
    for (path, call), wanted in grouped.items():
        calls = _calls(path, counts[path], nodes)
        if isinstance(calls, str):
            found.lost |= {step.name: calls for step in wanted}
            continue
        own = calls[call - 1]
        for step in wanted:
            names = _arguments(own, constants) if step.is_input else _results(own, nodes, results)
            if not step.is_input and step.part == "":
                names = names[-1:]
            if names:
                found.values[step.name] = names
            else:
                found.lost[step.name] = "no value of the exported graph is it for certain"
    return found


def every_value(proto: Any) -> dict[str, Step]:
    """The results of all nodes of an ONNX file as steps, by value, named as the modules of its conversion are."""
    steps: dict[str, Step] = {}
    for node in proto.graph.node:
        sources = tuple(steps[name].name for name in node.input if name in steps)
        for name in node.output:
            if name and node.op_type != "Constant":
                steps[name] = Step(module_name(name), module=node.op_type, sources=sources)
    return steps


def with_outputs(proto: Any, names: Sequence[str]) -> bytes:
    """The file with further outputs. Their types are left to the runtime, which infers them."""
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    present = {value.name for value in changed.graph.output}
    changed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    data: bytes = changed.SerializeToString()
    return data


def _read(node: Any, modules: set[str]) -> _Node:
    scopes = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), None)
    calls, operator = _from_scopes(scopes, modules) if scopes else (_from_name(node.name, modules), "")
    return _Node(tuple(node.input), tuple(node.output), calls, operator)


def _from_scopes(text: str, modules: set[str]) -> tuple[dict[str, str], str]:
    """`['', 'module', 'module.fc', 'linear']` → the modules around the node, and the operator it stems from."""
    try:
        scopes = [str(scope) for scope in ast.literal_eval(text)]
    except (ValueError, SyntaxError):
        return {}, ""
    paths = [scope.removeprefix(_WRAPPED).removeprefix(".") for scope in scopes[:-1] if scope]
    return {path: "" for path in paths if path in modules}, scopes[-1] if scopes else ""


def _from_name(name: str, modules: set[str]) -> dict[str, str]:
    """`/module/layer1/layer1.0/relu_1/Relu` → `layer1`, `layer1.0` and, by the second name of its scope, its `relu`."""
    parts = name.split("/")
    if len(parts) < 3 or parts[0] or parts[1] != _WRAPPED:
        return {}
    calls = {"": ""}
    path = ""
    for i, part in enumerate(parts[2:-1], start=2):
        last = path.rpartition(".")[2]
        # within a Sequential, a scope repeats the path from where the container was called
        options = [part, re.sub(r"_\d+$", "", part)]
        options += [option[len(last) + 1 :] for option in options if last and option.startswith(last + ".")]
        options += [option.rpartition(".")[2] for option in options]
        path = next((p for o in options if (p := f"{path}.{o}" if path else o) in modules), "")
        if not path:
            break
        calls[path] = "/".join(parts[: i + 1])
    return calls


def _calls(path: str, count: int, nodes: Sequence[_Node]) -> list[list[_Node]] | str:
    """The nodes of each of the `count` calls of a module, or why they cannot be told."""
    own = [node for node in nodes if path in node.calls]
    if not own:
        return _FOLDED
    if count == 1:
        return [own]
    by_scope: dict[str, list[_Node]] = {}
    for node in own:
        by_scope.setdefault(node.calls[path], []).append(node)
    if len(by_scope) == count:
        return list(by_scope.values())
    runs = _runs(path, nodes)
    if len(runs) == count:
        return runs
    by_operator: dict[str, list[_Node]] = {}
    for node in own:
        by_operator.setdefault(node.operator, []).append(node)
    each, rest = divmod(len(by_operator), count)
    if each and not rest and "" not in by_operator:
        parts = list(by_operator.values())
        return [[node for part in parts[i * each : (i + 1) * each] for node in part] for i in range(count)]
    return f"its {count} calls cannot be told apart in the exported graph"


def _runs(path: str, nodes: Sequence[_Node]) -> list[list[_Node]]:
    """The nodes of a module in unbroken runs; nodes of which nothing is told break none."""
    runs: list[list[_Node]] = []
    inside = False
    for node in nodes:
        if path in node.calls:
            if not inside:
                runs.append([])
            runs[-1].append(node)
        inside = path in node.calls or (inside and not node.calls)
    return runs


def _results(own: Sequence[_Node], nodes: Sequence[_Node], results: set[str]) -> list[str]:
    """Values that leave the nodes of a call: used by others, or by the graph's outputs."""
    inside = {id(node) for node in own}
    used = results | {name for node in nodes if id(node) not in inside for name in node.inputs}
    return [name for node in own for name in node.outputs if name and name in used]


def _arguments(own: Sequence[_Node], constants: set[str]) -> list[str]:
    """Values that enter the nodes of a call and are no constants."""
    made = {name for node in own for name in node.outputs}
    names = [name for node in own for name in node.inputs if name and name not in made and name not in constants]
    return list(dict.fromkeys(names))
