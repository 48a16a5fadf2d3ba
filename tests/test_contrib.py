"""Shipped plug-in backends of ONNX files: OpenVINO and the reference evaluator answer as the formula does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn

from fuzzer.backends.base import Backend
from fuzzer.backends.spec import BackendSpec
from fuzzer.contrib.onnx_reference import OnnxReference, to_numpy, to_torch
from fuzzer.contrib.openvino_backend import OpenVino
from fuzzer.errors import SpecError, Unsupported
from fuzzer.models import Model
from fuzzer.seeds import Seed
from fuzzer.seeds.schema import Dim, InputSpec, ModelSpec
from fuzzer.tensors import raw_bytes

CLASSES: dict[str, type[Backend]] = {"onnxref": OnnxReference, "openvino": OpenVino}
MISSING = OpenVino.unavailable(BackendSpec.parse("openvino:cpu"))
needs_openvino = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
BOTH = ["onnxref:cpu", pytest.param("openvino:cpu?precision=f32", marks=needs_openvino)]


class Scores(nn.Module):
    """Nested arguments, and an output with a constant, a None and a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, pair: list[Tensor], *, scale: Tensor) -> dict[str, Any]:
        first, second = pair
        return {"scores": torch.softmax(self.linear(first) * scale, -1), "rest": (second + 1, None, 3)}


class SizeAsNumber(nn.Module):
    """Turns a size into a Python number, so that each size needs a graph of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(len([1] * x.shape[0]))


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x + x if x.dtype != torch.bool else x]).reshape(2, 4)


def seed(shapes: dict[str, list[int | str]], call: Any = None, dtype: str = "float32") -> Seed:
    kind = {"bool": "mask", "int64": "integers", "int8": "integers"}.get(dtype, "floats")
    inputs = {name: InputSpec(kind=kind, shape=shape, dtype=dtype) for name, shape in shapes.items()}  # type: ignore[arg-type]
    model = ModelSpec(source="builder", builder="a:b")
    names = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
    return Seed(name="tiny", model=model, inputs=inputs, dims={name: Dim(size=2, max=9) for name in names}, call=call)


def prepared(text: str, model: Model, example: dict[str, Tensor]) -> Backend:
    spec = BackendSpec.parse(text)
    CLASSES[spec.runtime].check(spec)
    backend = CLASSES[spec.runtime](spec)
    backend.prepare(model, example)
    return backend


@pytest.mark.parametrize("text", BOTH)
def test_nested_arguments_outputs_and_named_sizes_come_through(text: str) -> None:
    module = Scores().eval().requires_grad_(False)
    of = seed({"a": ["n", 3], "b": ["n", 3], "s": [1]}, {"args": [["a", "b"]], "kwargs": {"scale": "s"}})
    source = torch.Generator().manual_seed(0)

    def sample(n: int) -> dict[str, Tensor]:
        sizes = {"a": (n, 3), "b": (n, 3), "s": (1,)}
        return {name: torch.rand(size, generator=source) * 4 - 2 for name, size in sizes.items()}

    backend = prepared(text, Model(of, module), sample(2))
    for n in (1, 2, 7):
        given_ = sample(n)
        logits = (given_["a"].double() @ module.linear.weight.double().T + module.linear.bias.double()) * given_["s"]
        grown = torch.exp(logits - logits.max())
        found = backend.run(given_)
        torch.testing.assert_close(found["scores"], (grown / grown.sum(-1, keepdim=True)).float(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found["rest"][0], given_["b"] + 1)
        assert found["rest"][1:] == (None, 3)
    evidence = backend.evidence()
    assert (evidence["exporter"], evidence["dynamic"], evidence["dropped_inputs"]) == ("dynamo", True, [])


@pytest.mark.parametrize("text", BOTH)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "bool", "int64", "int8"])
def test_every_dtype_comes_back_as_itself(text: str, dtype: str) -> None:
    values = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    found = prepared(text, Model(seed({"x": [4]}, dtype=dtype), Doubled().eval()), {"x": values}).run({"x": values})
    assert found.dtype == values.dtype
    assert found.tolist() == [[0, 1, 1, 0], [0, 1, 1, 0] if dtype == "bool" else [0, 2, 2, 0]]


@pytest.mark.parametrize("text", BOTH)
def test_a_size_that_cannot_vary_is_refused_in_others(text: str) -> None:
    backend = prepared(text, Model(seed({"x": ["n", 3]}), SizeAsNumber().eval()), {"x": torch.ones(2, 3)})
    assert backend.run({"x": torch.ones(2, 3)}).tolist() == [[2.0] * 3] * 2
    with pytest.raises(Unsupported, match=r"fixed shape \(2, 3\), not \(3, 3\)"):
        backend.run({"x": torch.ones(3, 3)})


@pytest.mark.parametrize("text", BOTH)
def test_a_file_of_the_user_s_own_runs_as_it_is(text: str, tmp_path: Path) -> None:
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("left", "right")]
    out = helper.make_tensor_value_info("difference", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Sub", ["left", "right"], ["difference"])], "g", kinds, [out])
    path = tmp_path / "sub.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    sample = {"x": torch.tensor([5.0, 1.0]), "y": torch.tensor([2.0, 4.0])}
    backend = prepared(text, Model(seed({"x": [2], "y": [2]}), None, path), sample)
    assert backend.run(sample)["difference"].tolist() == [3.0, -3.0]
    assert (backend.evidence()["exporter"], backend.evidence()["opset"]) == ("file", 18)
    path.write_bytes(b"not a model")
    with pytest.raises(Unsupported, match=r"^load: \w+"):
        prepared(text, Model(seed({"x": [2], "y": [2]}), None, path), sample)


@pytest.mark.parametrize("text", BOTH)
def test_intermediate_values_are_told_by_the_module_s_names(text: str) -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).eval().requires_grad_(False)
    sample = {"x": torch.tensor([[0.5, -1.0, 2.0]])}
    seen = prepared(text, Model(seed({"x": [1, 3]}), module), sample).observe(sample)
    after = {name: value for name, value in seen.values.items() if value.shape == (1, 4)}
    assert after
    assert any(torch.allclose(value, torch.sigmoid(module[0](sample["x"])), atol=1e-5) for value in after.values())


@needs_openvino
def test_openvino_says_which_precision_ran() -> None:
    model = Model(seed({"x": [2, 3]}), nn.Linear(3, 4).eval().requires_grad_(False))
    evidence = prepared("openvino:cpu?precision=f32", model, {"x": torch.ones(2, 3)}).evidence()
    assert evidence["precision"] == "f32"
    assert evidence["nodes"]["f32"]["FullyConnected"] == 1
    with pytest.raises(SpecError, match="precision takes default or f32 or bf16 or f16, not 'f64'"):
        OpenVino.check(BackendSpec.parse("openvino:cpu?precision=f64"))


def test_openvino_that_is_not_installed_is_unavailable_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuzzer.backends.onnx_target.find_spec", lambda name: None if name == "openvino" else name)
    assert OpenVino.unavailable(BackendSpec.parse("openvino:cpu")) == "the package openvino is not installed"


@given(
    st.sampled_from(
        [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int32]
    ),
    st.lists(st.integers(0, 255), max_size=24),
    st.booleans(),
)
def test_numpy_arrays_hold_the_same_bits(dtype: torch.dtype, content: list[int], flat: bool) -> None:
    whole = content[: len(content) // 4 * 4]
    tensor = torch.tensor(whole, dtype=torch.uint8).view(dtype)
    tensor = tensor if flat else tensor.reshape(-1, 1)
    back = to_torch(to_numpy(tensor))
    assert (back.dtype, back.shape, raw_bytes(back)) == (tensor.dtype, tensor.shape, raw_bytes(tensor))


def test_a_numpy_array_is_a_copy() -> None:
    tensor = torch.zeros(3)
    to_numpy(tensor)[0] = 1
    assert tensor.tolist() == [0, 0, 0]
