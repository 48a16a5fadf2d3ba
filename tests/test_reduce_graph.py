"""Reduction of graphs: what it comes to on faults whose smallest graph is known, and what a graph may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crash_samples import builder_seed, pool_crash
from torch import Tensor

from fuzzer.crashes.copied import imports
from fuzzer.crashes.graph_repro import plain_graph
from fuzzer.crashes.graph_source import module_source
from fuzzer.errors import ModelError
from fuzzer.models import build_model
from fuzzer.models.capture import capture
from fuzzer.models.graph import CannotCapture, Graph, Node, graph_module, module_of
from fuzzer.models.model import Model
from fuzzer.reduce import Search
from fuzzer.reduce.case import Case, keys_of, leaves_of, placed, without
from fuzzer.reduce.graph import reduce_graph
from fuzzer.seeds import ModelSpec

MODULES = """import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x):
        return {"logits": self.layers(x), "twice": x * 2}


class Parts(nn.Module):
    def forward(self, x):
        values, places = torch.topk(x, 2, dim=1)
        total = 0
        for i in range(int(places.max()) % 3 + 1):
            total = total + values * i
        return [total, places, x.view(-1).masked_fill(x.view(-1) < 0, float("-inf"))]


class InPlace(nn.Module):
    def forward(self, x):
        y = x + 1
        return F.relu(y, inplace=True) * y


class ThroughAView(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[0].add_(1)
        return y
"""
Fault = Callable[[Mapping[str, Tensor], Graph], object]


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Model]:
    def build(name: str, shape: Sequence[int | str] = (4, 6)) -> Model:
        inputs = {"x": {"kind": "floats", "shape": list(shape)}}
        return build_model(builder_seed(tmp_path, MODULES, f"modules:{name}", inputs=inputs), None)

    return build


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def values_of(case: Case) -> dict[str, Tensor]:
    """All tensors that a case computes, by running it here."""
    parts = {use for node in case.graph.nodes if node.op == "getitem" for use in node.uses}
    shown = {node.name: f"%{node.name}" for node in case.graph.nodes if node.name not in parts}
    whole = Case.of(replace(case.graph, output=shown), case.tensors)
    module = module_of(whole.graph)
    module.load_state_dict(whole.constants)
    with torch.no_grad():
        found: dict[str, Tensor] = module(*whole.inputs.values())
    return found


def reduced(
    model: Model, fault: Fault, leaf: str, x: Tensor, divergent: Sequence[str] = (), **bounds: int
) -> tuple[Case, Search[Case]]:
    """The smallest case found on which `fault` holds, as told from the values of its graph."""
    graph, constants = capture(model, {"x": x})

    def fails(case: Case) -> bool:
        try:
            return bool(fault(values_of(case), case.graph))
        except RuntimeError:  # sizes that do not fit: no case at all
            return False

    start = Case.of(graph, {"x": x, **constants})
    assert fails(start)
    search: Search[Case] = Search(
        start, fails, clock=lambda: 0.0, size=lambda case: case.size, key=lambda case: case.key, most_tests=2000
    )
    assert reduce_graph(search, values_of, lambda case: divergent, keys_of(leaf))
    return search.best, search


def ops(graph: Graph) -> list[str]:
    return [node.op.split(".")[1] for node in graph.nodes if node.counts]


def has(op: str) -> Fault:
    return lambda values, graph: op in ops(graph)


@pytest.mark.parametrize("op", ["relu", "gelu"])
def test_a_fault_of_one_operator_is_left_with_that_operator_on_one_zero(model: Callable[..., Model], op: str) -> None:
    case, _ = reduced(model("Mlp"), has(op), ".logits", drawn(4, 6))
    assert ops(case.graph) == [op]
    assert [tensor.tolist() for tensor in case.tensors.values()] == [[[0.0]]]
    assert [path for path, _ in leaves_of(case.graph.output)] == [("logits",)]


def test_where_drift_starts_is_found_with_fewer_questions_when_it_is_known(model: Callable[..., Model]) -> None:
    _, blind = reduced(model("Mlp"), has("relu"), ".logits", drawn(4, 6))
    case, told = reduced(model("Mlp"), has("relu"), ".logits", drawn(4, 6), divergent=["relu"])
    assert ops(case.graph) == ["relu"]
    assert told.tests <= blind.tests


def test_two_operators_that_must_stand_together_stay_together(model: Callable[..., Model]) -> None:
    def fused(values: Mapping[str, Tensor], graph: Graph) -> bool:
        return any(
            node.op.startswith("aten.gelu") and (made := graph.by_name.get(use)) and made.op.startswith("aten.linear")
            for node in graph.nodes
            for use in node.uses
        )

    case, _ = reduced(model("Mlp"), fused, ".logits", drawn(4, 6))
    assert ops(case.graph) == ["linear", "gelu"]
    assert len(case.graph.inputs) == 2, "the bias can be left out"
    assert not case.graph.constants, "weights are inputs"
    assert all(tensor.numel() == 1 for tensor in case.tensors.values())


def test_a_value_that_an_operator_must_see_stays_and_nothing_else(model: Callable[..., Model]) -> None:
    x = drawn(4, 6)
    x[2, 3] = torch.nan

    def nan_in_topk(values: Mapping[str, Tensor], graph: Graph) -> bool:
        return any(
            "topk" in node.op and any(bool(seen[use].isnan().any()) for use in node.uses)
            for seen in [values | case_inputs]
            for node in graph.nodes
        )

    case_inputs = {"x": x}
    graph, constants = capture(model("Parts"), {"x": x})

    def fails(case: Case) -> bool:
        nonlocal case_inputs
        case_inputs = dict(case.inputs)
        try:
            return nan_in_topk(values_of(case), case.graph)
        except RuntimeError:
            return False

    start = Case.of(graph, {"x": x, **constants})
    search: Search[Case] = Search(
        start, fails, clock=lambda: 0.0, size=lambda case: case.size, key=lambda case: case.key, most_tests=2000
    )
    assert reduce_graph(search, values_of, lambda case: [], keys_of("[0]"))
    assert ops(search.best.graph) == ["topk"]
    (left,) = search.best.tensors.values()
    assert left.numel() == 2, "topk of two needs two"
    assert int(left.isnan().sum()) == 1


def test_the_same_graph_is_asked_about_once_and_every_step_goes_down(model: Callable[..., Model]) -> None:
    _, search = reduced(model("Mlp"), has("relu"), ".logits", drawn(4, 6))
    assert search.tests == len(search.tried)


@pytest.mark.parametrize("name", ["Mlp", "Parts", "InPlace"])
def test_a_recorded_graph_gives_the_module_s_own_answer_and_survives_json(
    model: Callable[..., Model], name: str
) -> None:
    made, x = model(name), drawn(4, 6)
    graph, constants = capture(made, {"x": x})
    again = module_of(Graph.from_json(json.loads(json.dumps(graph.to_json()))))
    again.load_state_dict(constants)
    assert made.module is not None
    expected, found = made.module(x), again(x)
    for path, _ in leaves_of(graph.output):
        left, right = expected, found
        for key in path:
            left, right = left[key], right[key]
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", ["Mlp", "Parts"])
def test_a_graph_as_source_gives_the_same_answer(model: Callable[..., Model], name: str) -> None:
    x = drawn(4, 6)
    graph, constants = capture(model(name), {"x": x})
    names: dict[str, object] = {"torch": torch}
    exec(module_source(graph, constants), names)
    module = names["Model"]()  # type: ignore[operator]
    module.load_state_dict(constants)
    made = module_of(graph)
    made.load_state_dict(constants)
    for left, right in zip(
        torch.utils._pytree.tree_leaves(module(x)), torch.utils._pytree.tree_leaves(made(x)), strict=True
    ):
        assert torch.equal(left, right)


def test_what_is_written_through_a_view_is_no_graph(model: Callable[..., Model]) -> None:
    with pytest.raises(CannotCapture, match="do not give its answer"):
        capture(model("ThroughAView"), {"x": drawn(4, 6)})


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (["y", "os.system.default", ["%x"], {}], "no operator that a graph may name"),
        (["y", "aten.nothing.default", ["%x"], {}], "has no operator"),
        (["y", "aten.relu.default", ["%z"], {}], "uses z"),
        (["x", "aten.relu.default", ["%x"], {}], "stands for two"),
        (["y", "aten.to.dtype", ["%x", {"dtype": "load"}], {}], "is no dtype"),
        (["y", "aten.relu.default", ["%x"], {"a=print(1)": 1}], "not a graph"),
        (["import os", "aten.relu.default", ["%x"], {}], "no name for a value"),
    ],
)
def test_a_graph_that_names_anything_but_operators_is_refused(node: list[object], said: str, tmp_path: Path) -> None:
    text = {"inputs": ["x"], "constants": {}, "nodes": [node], "output": f"%{node[0]}"}
    seed = builder_seed(tmp_path)
    seed = seed.model_copy(update={"model": ModelSpec(source="graph", graph=text)})
    with pytest.raises(ModelError, match=said):
        graph_module(seed)


def test_outputs_keep_their_paths_when_others_go() -> None:
    output = {"a": "%x", "b": ["%y", "%z"]}
    assert without(output, {("a",), ("b", 0)}) == {"b": [None, "%z"]}
    assert placed(keys_of(".b[1]"), "z") == {"b": [None, "%z"]}
    assert placed(keys_of("$"), "z") == "%z"


def test_nodes_that_nobody_needs_go_with_their_inputs() -> None:
    nodes = (Node("a", "aten.relu.default", ("%x",)), Node("b", "aten.neg.default", ("%y",)))
    graph = Graph(("x", "y"), {}, nodes, "%b").trimmed()
    assert (graph.inputs, [node.name for node in graph.nodes]) == (("y",), ["b"])


def test_a_script_that_names_an_operator_of_torchvision_imports_it() -> None:
    assert imports("torch.ops.torchvision.nms.default(a, b, 0.5)") == "import torch\nimport torchvision"
    assert imports("torch.ops.aten.relu.default(a)") == "import torch"


@pytest.mark.parametrize(("extra", "short"), [((), True), (("%x", 0.0), True), (("%x", 0.5), False)])
def test_attention_without_dropout_draws_nothing_so_its_script_can_be_short(
    extra: tuple[object, ...], short: bool, tmp_path: Path
) -> None:
    attention = Node("y", "aten.scaled_dot_product_attention.default", ("%x", "%x", "%x", *extra))
    seed = builder_seed(tmp_path)
    model = ModelSpec(source="graph", graph=Graph(("x",), {}, (attention,), "%y").to_json())
    crash = pool_crash(seed.model_copy(update={"model": model}).at(seed.base))
    assert (plain_graph(crash) is not None) is short
