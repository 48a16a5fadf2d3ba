"""Adapters: one order for every backend, full precision, operators left in eager mode."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.ops import nms

from fuzzer.adapters import (
    Float32,
    StableOrder,
    capture,
    in_float32,
    operator_name,
    operators,
    split,
    stable_argmax,
    stable_argsort,
    stable_nms,
    stable_topk,
)
from fuzzer.adapters.fallback import PIECE

torch.set_num_threads(1)
NAN = float("nan")
FEW = st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.5, -3.0, float("inf"), NAN]), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(FEW, st.booleans())
def test_a_stable_argsort_is_that_of_pytorch(values: list[float], descending: bool) -> None:
    x = torch.tensor(values)
    wanted = torch.sort(x, stable=True, descending=descending).indices
    assert stable_argsort(x, descending=descending).tolist() == wanted.tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-2, 2), min_size=1, max_size=12), st.data())
def test_the_largest_come_in_order_and_equal_ones_by_position(values: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    wanted = sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]
    found = stable_topk(torch.tensor(values), k)
    assert found[1].tolist() == wanted
    assert found[0].tolist() == [values[i] for i in wanted]


@settings(max_examples=100, deadline=None)
@given(FEW)
def test_argmax_takes_the_first_largest_and_the_first_nan_before_all(values: list[float]) -> None:
    nans = [i for i, value in enumerate(values) if value != value]
    wanted = nans[0] if nans else values.index(max(values))
    assert int(stable_argmax(torch.tensor(values))) == wanted


def test_argmax_keeps_dimensions_as_pytorch_does() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, -1.0]])
    for dim, keepdim in ((0, False), (1, True), (-1, False)):
        assert stable_argmax(x, dim, keepdim).shape == x.argmax(dim, keepdim).shape
    assert stable_argmax(x, 1).tolist() == [1, 0]


def test_equal_scores_are_decided_by_the_boxes_whatever_their_order() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0], [50.0, 50.0, 60.0, 60.0]])
    scores = torch.tensor([0.5, 0.5, 0.5])
    kept = boxes[stable_nms(boxes, scores, 0.5)]
    order = torch.tensor([2, 1, 0])
    again = boxes[order][stable_nms(boxes[order], scores, 0.5)]
    assert kept.tolist() == again.tolist() == [[0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]]


def test_scores_that_differ_by_noise_are_equal_once_quantised() -> None:
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 11.0, 10.0]])
    noisy = torch.tensor([0.5, 0.5 + 2.0**-24])
    assert stable_nms(boxes, noisy, 0.5).tolist() == [1]
    assert stable_nms(boxes, noisy, 0.5, quantum=2.0**-10).tolist() == [0]


def test_distinct_scores_are_kept_as_pytorch_keeps_them() -> None:
    generator = torch.Generator().manual_seed(2)
    corner = torch.rand(40, 2, generator=generator) * 50
    boxes = torch.cat([corner, corner + 20 * torch.rand(40, 2, generator=generator) + 5], 1)
    scores = torch.rand(40, generator=generator)
    assert stable_nms(boxes, scores, 0.4).tolist() == nms(boxes, scores, 0.4).tolist()


class Ties(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.topk(x, 3)[1], x.sort(descending=True).indices, x.argmax(-1)


X = torch.tensor([1.0, 5.0, 5.0, 5.0, 2.0, 5.0, 0.0, 5.0])


@pytest.mark.parametrize("compiler", [None, "eager", "aot_eager"])
def test_within_a_stable_order_ties_go_by_position_in_every_mode(compiler: str | None) -> None:
    with StableOrder():
        module = Ties() if compiler is None else torch.compile(Ties(), backend=compiler, fullgraph=True)
        top, order, largest = module(X)
    assert top.tolist() == [1, 2, 3]
    assert order.tolist() == [1, 2, 3, 5, 7, 4, 0, 6]
    assert int(largest) == 1


def test_within_a_stable_order_results_keep_their_names_and_their_types() -> None:
    with StableOrder():
        found = X.topk(2)
    assert isinstance(found, torch.return_types.topk)
    assert found.indices.tolist() == [1, 2]


def test_an_exported_graph_with_a_stable_order_runs_alike_on_onnx_runtime() -> None:
    ort = pytest.importorskip("onnxruntime")
    buffer = io.BytesIO()
    with StableOrder():
        torch.onnx.export(Ties(), (X,), buffer, dynamo=False)
    session = ort.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: X.numpy()})
    assert [found[0].tolist(), found[1].tolist()] == [[1, 2, 3], [1, 2, 3, 5, 7, 4, 0, 6]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_within_float32_no_value_is_rounded_to_16_bits(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 1.00390625, 1e5])
    with Float32():
        found = [x.to(dtype).float(), (x.to(dtype=dtype) + 1 - 1).float(), torch.zeros(3, dtype=dtype) + x]
    assert torch.equal(found[0], x)
    assert torch.equal(found[1], x + 1 - 1)
    assert found[2].dtype == torch.float32


def test_a_named_module_runs_in_float32_within_autocast() -> None:
    model = in_float32(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ["1"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model[0](torch.ones(1, 2)).dtype == torch.bfloat16
        assert model(torch.ones(1, 2)).dtype == torch.float32
    with pytest.raises(AttributeError):
        in_float32(model, ["7"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.nn.functional.gelu(self.first(x))
        return self.last(self.norm(hidden).relu()), hidden.sum(-1)


@pytest.mark.parametrize("by_tracing", [False, True])
def test_a_graph_in_pieces_computes_what_the_module_computes(by_tracing: bool) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.rand(3, 4)
    graph = capture(net, (x,), by_tracing=by_tracing)
    names = [operator_name(node) for node in operators(graph)]
    assert [name for name in names if "gelu" in name or "relu" in name] == ["aten.gelu", "aten.relu"]
    for kept in names:
        whole = split(graph, lambda node, kept=kept: operator_name(node) == kept)  # type: ignore[misc]
        assert all(torch.equal(a, b) for a, b in zip(whole(x), net(x), strict=True))
        pieces = [piece for name, piece in whole.named_children() if PIECE in name]
        assert not any(kept == operator_name(n) for piece in pieces for n in operators(piece))  # type: ignore[arg-type]


def test_pieces_hold_their_own_parameters() -> None:
    net = Net().eval()
    whole = split(capture(net, (torch.rand(3, 4),)), lambda node: "gelu" in operator_name(node))
    takes = {
        n: sum(node.op == "placeholder" for node in p.graph.nodes) for n, p in whole.named_children() if PIECE in n
    }  # type: ignore[union-attr]
    assert list(takes.values()) == [1, 1]
