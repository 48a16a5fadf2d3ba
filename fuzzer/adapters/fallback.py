"""Single operators or modules of a model in eager mode, while the rest runs elsewhere.

A graph is cut where operators that stay in eager mode begin and end; the pieces between them can be compiled or
exported one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

#: The name of a piece that leaves eager mode, in the module that `split` gives; its number follows.
PIECE = "piece_"


def modules_in_eager(module: nn.Module, names: Iterable[str]) -> nn.Module:
    """`module` with the named submodules left out of `torch.compile`; in place. Costs a graph break each.

    Raises AttributeError where there is no such submodule.
    """
    for name in names:
        found = module.get_submodule(name)
        found.forward = torch.compiler.disable(found.forward)  # type: ignore[no-untyped-call]
    return module


def capture(module: nn.Module, tensors: tuple[Tensor, ...], *, by_tracing: bool = False) -> fx.GraphModule:
    """The ATen graph, not decomposed, of a module from tensors to a tuple of tensors, at the sizes of `tensors`.

    By `torch.export` where it takes the module; else, or `by_tracing`, by tracing one run, which fixes what depends on
    the values: then the graph is valid for these tensors alone. Raises what the tracer raises.
    """
    if not by_tracing:
        try:
            found = torch.export.export(module, tensors, strict=False).module()
            assert isinstance(found, fx.GraphModule)
            return _plain(found)
        except Exception:  # refused in one of many ways; what the tracer says is told instead
            pass
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        traced = make_fx(lambda *given: tuple(module(*given)), tracing_mode="real", pre_dispatch=True)(*tensors)
    return _plain(traced)


def _plain(graph: fx.GraphModule) -> fx.GraphModule:
    """Without checks of sizes and values, which are no operators of the model's, and what only they used."""
    for node in reversed(list(graph.graph.nodes)):
        guard = node.op == "call_module" and node.target == "_guards_fn"
        if guard or (node.op == "call_function" and "_assert_" in str(node.target)):
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def operators(graph: fx.GraphModule) -> list[fx.Node]:
    """The nodes that compute, in order: calls of functions that give something to do."""
    return [node for node in graph.graph.nodes if node.op == "call_function" and "getitem" not in str(node.target)]


def operator_name(node: fx.Node) -> str:
    """`aten.relu` for a call of aten.relu.default; the overload where it is another."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        packet = str(target.overloadpacket)
        return packet if target._overloadname == "default" else f"{packet}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def split(graph: fx.GraphModule, in_eager: Callable[[fx.Node], bool]) -> fx.GraphModule:
    """The graph in pieces: submodules `piece_0`, `piece_1`, … hold what leaves eager mode, the others what stays.

    Raises ValueError where something else than a tensor would pass between the two.
    """
    from torch.fx.passes.split_module import split_module

    parts: dict[fx.Node, tuple[int, bool]] = {}
    number, before = 0, None
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        stays = _of_source(node, parts) if "getitem" in str(node.target) else bool(in_eager(node))
        if before is not None and stays != before:
            number += 1
        if "getitem" in str(node.target) and isinstance(node.args[0], fx.Node) and node.args[0] in parts:
            parts[node] = parts[node.args[0]]
            continue
        parts[node], before = (number, stays), stays
    names = {node: (f"eager_{n}" if stays else f"{PIECE}{n}") for node, (n, stays) in parts.items()}
    whole = split_module(graph, graph, lambda node: names[node], partition_affix=None)  # type: ignore[arg-type, return-value]
    _hold_constants(whole)
    for name, piece in whole.named_children():
        if PIECE in name:
            _check(name, piece)
    return whole


def _hold_constants(whole: fx.GraphModule) -> None:
    """Parameters and buffers that are handed to a piece become the piece's own: it may fold them."""
    for call in [node for node in whole.graph.nodes if node.op == "call_module"]:
        piece = whole.get_submodule(str(call.target))
        if not isinstance(piece, fx.GraphModule):
            continue
        places = [node for node in piece.graph.nodes if node.op == "placeholder"]
        kept = []
        for place, given in zip(places, call.args, strict=True):
            if not (isinstance(given, fx.Node) and given.op == "get_attr"):
                kept.append(given)
                continue
            name = f"held_{place.name}"
            piece.register_buffer(name, _attribute(whole, str(given.target)))
            with piece.graph.inserting_before(place):
                place.replace_all_uses_with(piece.graph.get_attr(name))
            piece.graph.erase_node(place)
        call.args = tuple(kept)
        piece.recompile()
    whole.graph.eliminate_dead_code()
    whole.recompile()


def _attribute(module: nn.Module, path: str) -> Tensor:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    assert isinstance(value, Tensor)
    return value.detach()


def _of_source(node: fx.Node, parts: Mapping[fx.Node, tuple[int, bool]]) -> bool:
    source = node.args[0]
    return parts[source][1] if isinstance(source, fx.Node) and source in parts else False


def _check(name: str, piece: nn.Module) -> None:
    if isinstance(piece, fx.GraphModule):
        for node in piece.graph.nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and value is not None and not isinstance(value, Tensor):
                raise ValueError(f"{name} would take {node.name}, a {type(value).__name__}")
