"""The graph passes: what an operator needs of a model, found by taking away the rest.

A value is cut where it becomes an input that holds what the reference computed; what led to it is then not needed.
A node is bypassed where one of its own operands stands for it. Divergence is not monotone along a graph (a difference
can vanish in a later operator, and a compiler fuses what it sees together), so each step is only taken where the
failure is still there, and where drift was seen to start is a guess to be tried first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fuzzer.inputs.dtypes import DTYPES
from fuzzer.models.graph import GETITEM, Graph, Node, operator_named, renamed
from fuzzer.reduce.case import Case, leaves_of, placed, without
from fuzzer.reduce.engine import Changes, OutOfBudget, Sample, Search
from fuzzer.reduce.space import Space
from fuzzer.reduce.values import fill_passes, survivor_passes

#: All values of a case's graph as the reference computes them: tensors by name.
ValuesOf = Callable[[Case], Mapping[str, Tensor]]
#: Names of the values at which the sides differ, first to last.
Divergent = Callable[[Case], Sequence[str]]

#: How many operators before one are kept with it, tried in this order.
WINDOWS = (1, 2, 4, 8)
#: So many of the first values at which drift is seen are tried as the end of the graph.
ENDS = 4
#: Operators whose lists of whole numbers are shapes, which follow their operands.
_SHAPED = frozenset(
    "view reshape expand layer_norm full zeros ones empty new_full new_zeros new_ones repeat unflatten "
    "split_with_sizes native_layer_norm _unsafe_view adaptive_avg_pool2d rms_norm".split()
)
_NOTHING: Changes[Case] = Changes(0, lambda which: None)
_HELD = frozenset(DTYPES.values())


def reduce_graph(search: Search[Case], values_of: ValuesOf, divergent: Divergent, keys: Sequence[Any]) -> bool:
    """Go through all passes until none gets further: True then, False where the budget ended it.

    `keys`: the path of the leaf that shows the failure.
    """
    try:
        search.make(fewer_outputs(search.best, keys))
        for candidate in ends(search.best, values_of(search.best), divergent(search.best), keys):
            if search.attempt(candidate):
                break
        progress = True
        while progress:
            before = search.size
            search.make(fewer_outputs(search.best, keys))
            search.make(cut(search.best, values_of(search.best)))
            search.make(bypassed(search.best, values_of(search.best)))
            search.make(without_optional(search.best))
            search.make(lifted(search.best))
            for group in _groups(search.best):
                search.make(fewer_slices(search.best, group))
            for offer in [*fill_passes(Space(), tuple(search.best.tensors)), *_survivors(search.best)]:
                search.make(_of_tensors(search.best, offer(search.best.tensors)))
            progress = search.size < before
    except OutOfBudget:
        return False
    return True


def ends(
    case: Case, values: Mapping[str, Tensor], divergent: Sequence[str], keys: Sequence[Any]
) -> Iterator[Case | None]:
    """Graphs that end where drift was seen to start: the operator alone, with a few before it, with all before it."""
    candidates = list(divergent[:ENDS])
    candidates += [name for path, name in leaves_of(case.graph.output) if list(path) == list(keys)]
    for name in dict.fromkeys(candidates):
        ending = replace(case.graph, output=placed(keys, name))
        for window in (*WINDOWS, len(case.graph.nodes)):
            kept = _before(case.graph, name, window)
            borders = {use for node in kept for use in node.uses} - {node.name for node in kept}
            yield with_inputs(Case(ending, case.tensors), borders, values)


def _before(graph: Graph, name: str, window: int) -> list[Node]:
    """The node `name` and those it was computed from, up to `window - 1` operators away. Parts go with their whole."""
    kept: dict[str, Node] = {}
    waiting = [(name, window)]
    while waiting:
        current, left = waiting.pop()
        node = graph.by_name.get(current)
        if node is not None and left > 0:
            kept[current] = node
            waiting += [(use, left if node.op == GETITEM else left - 1) for use in node.uses]
    return [node for node in graph.nodes if node.name in kept]


def with_inputs(case: Case, names: set[str], values: Mapping[str, Tensor]) -> Case | None:
    """The case with the values `names` as inputs that hold what the reference computed.

    None where one of them is no tensor that an input can be.
    """
    new = [node.name for node in case.graph.nodes if node.name in names]
    if any(not _can_be_input(values.get(name)) for name in new):
        return None
    nodes = tuple(node for node in case.graph.nodes if node.name not in names)
    graph = replace(case.graph, inputs=(*case.graph.inputs, *new), nodes=nodes)
    return Case.of(graph, {**case.tensors, **{name: values[name] for name in new}})


def _can_be_input(value: Tensor | None) -> bool:
    return isinstance(value, Tensor) and value.dtype in _HELD and value.layout == torch.strided


def cut(case: Case, values: Mapping[str, Tensor]) -> Changes[Case]:
    """A change is one value that becomes an input, but for the outputs; the last ones first, as they save most."""
    outputs = {name for _, name in leaves_of(case.graph.output)}
    able = [n.name for n in reversed(case.graph.nodes) if n.name not in outputs and _can_be_input(values.get(n.name))]
    return Changes(len(able), lambda which: with_inputs(case, {able[i] for i in which}, values))


def bypassed(case: Case, values: Mapping[str, Tensor]) -> Changes[Case]:
    """A change is one node for which its first operand of the same shape and dtype stands."""
    known = {**case.tensors, **values}
    pairs: list[tuple[str, str]] = []
    for node in reversed(case.graph.nodes):
        value = known.get(node.name)
        like = [use for use in node.uses if value is not None and _alike(value, known.get(use))]
        pairs += [(node.name, use) for use in like[:1]]

    def apply(which: Sequence[int]) -> Case | None:
        names: dict[str, str | None] = {}
        for node, stand_in in sorted((pairs[i] for i in which), key=lambda pair: order[pair[0]]):
            names[node] = names.get(stand_in) or stand_in
        graph = case.graph
        kept = tuple(
            replace(n, args=renamed(n.args, names), kwargs=renamed(n.kwargs, names))
            for n in graph.nodes
            if n.name not in names
        )
        smaller = replace(graph, nodes=kept, output=renamed(graph.output, names))
        return Case.of(smaller, case.tensors) if smaller.size else None

    order = {node.name: i for i, node in enumerate(case.graph.nodes)}
    return Changes(len(pairs), apply)


def _alike(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and (value.shape, value.dtype) == (other.shape, other.dtype)


def fewer_outputs(case: Case, keys: Sequence[Any]) -> Changes[Case]:
    """A change is one output that is left out, but for the one at `keys`."""
    paths = [path for path, _ in leaves_of(case.graph.output) if list(path) != list(keys)]

    def apply(which: Sequence[int]) -> Case:
        output = without(case.graph.output, {paths[i] for i in which})
        return Case.of(replace(case.graph, output=output), case.tensors)

    return Changes(len(paths), apply)


def without_optional(case: Case) -> Changes[Case]:
    """A change is one tensor that an operator can do without: a bias, a mask, a weight."""
    places = [(i, at) for i, node in enumerate(case.graph.nodes) for at in _optional(node)]

    def apply(which: Sequence[int]) -> Case:
        nodes = list(case.graph.nodes)
        for i, at in (places[index] for index in which):
            args = (*nodes[i].args[:at], None, *nodes[i].args[at + 1 :])
            nodes[i] = replace(nodes[i], args=args)
        return Case.of(replace(case.graph, nodes=tuple(nodes)), case.tensors)

    return Changes(len(places), apply)


def _optional(node: Node) -> list[int]:
    """Places of positional arguments that are a tensor and may be None."""
    schema = getattr(operator_named(node.op), "_schema", None)
    if schema is None:
        return []
    given = zip(node.args, schema.arguments, strict=False)
    return [i for i, (value, about) in enumerate(given) if _is_value(value) and str(about.type) == "Optional[Tensor]"]


def _is_value(argument: Any) -> bool:
    return isinstance(argument, str) and argument.startswith("%")


def lifted(case: Case) -> Changes[Case]:
    """A change is one constant that becomes an input, so that its values are seen and can change without a compiler."""
    names = list(case.graph.constants)

    def apply(which: Sequence[int]) -> Case:
        chosen = [names[i] for i in which]
        constants = {name: about for name, about in case.graph.constants.items() if name not in chosen}
        graph = replace(case.graph, inputs=(*case.graph.inputs, *chosen), constants=constants)
        return Case.of(graph, case.tensors)

    return Changes(len(names), apply)


#: Axes that get shorter together: (tensor, axis) pairs of one length.
Group = tuple[tuple[str, int], ...]


def _groups(case: Case) -> list[Group]:
    """All axes of one length, the longest first; then each axis alone."""
    axes = [(name, i, n) for name, value in case.tensors.items() for i, n in enumerate(value.shape) if n > 1]
    lengths = sorted(Counter(n for _, _, n in axes), reverse=True)
    together = [tuple((name, i) for name, i, m in axes if m == n) for n in lengths]
    alone = [((name, i),) for name, i, _ in axes]
    return [*together, *(group for group in alone if group not in together)]


def fewer_slices(case: Case, group: Group) -> Changes[Case]:
    """A change is one slice that goes from all axes of the group; the lists of shapes in the graph follow.

    Nothing where the axes are no longer of one length: an earlier group has changed them.
    """
    lengths = {
        case.tensors[name].shape[i] for name, i in group if name in case.tensors and i < case.tensors[name].dim()
    }
    if len(lengths) != 1 or any(name not in case.tensors for name, _ in group):
        return _NOTHING
    (length,) = lengths

    def apply(which: Sequence[int]) -> Case | None:
        dropped = set(which)
        kept = torch.tensor([i for i in range(length) if i not in dropped], dtype=torch.int64)
        if not len(kept):
            return None
        tensors = dict(case.tensors)
        for name, axis in group:
            tensors[name] = tensors[name].index_select(axis, kept).contiguous()
        nodes = tuple(_resized(node, length, len(kept)) for node in case.graph.nodes)
        return Case.of(replace(case.graph, nodes=nodes), tensors)

    return Changes(length, apply)


def _resized(node: Node, before: int, after: int) -> Node:
    if node.op.split(".")[1:2] and node.op.split(".")[1] not in _SHAPED:
        return node
    args = tuple(
        [after if item == before and not isinstance(item, bool) else item for item in arg]
        if isinstance(arg, list)
        else arg
        for arg in node.args
    )
    return replace(node, args=args)


def _survivors(case: Case) -> list[Callable[[Sample], Changes[Sample]]]:
    return survivor_passes(Space(), tuple(case.tensors))


def _of_tensors(case: Case, changes: Changes[Sample]) -> Changes[Case]:
    """Changes of the tensors of a case as changes of the case."""

    def apply(which: Sequence[int]) -> Case | None:
        tensors = changes.apply(which)
        return None if tensors is None else Case(case.graph, tensors)

    return Changes(changes.count, apply)
