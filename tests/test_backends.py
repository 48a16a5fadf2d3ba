"""Backends run the module they are given, say what really ran, and refuse in one line what they cannot run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn

from fuzzer.backends.base import Backend
from fuzzer.backends.eager import cuda_unavailable
from fuzzer.backends.onnx_export import Structure
from fuzzer.backends.refusals import first_line
from fuzzer.backends.registry import availability, backend_class, known, parse, register
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import SpecError, Unsupported
from fuzzer.models import Model
from fuzzer.seeds import Dim, InputSpec, ModelSpec, Seed

torch.set_num_threads(1)

ONE_GRAPH = ["dynamo:cpu", "aot_eager:cpu"]
ONNX = ["onnxruntime:cpu", "onnxruntime:cpu?opt=none", "onnxruntime:cpu?exporter=torchscript"]


class Nested(nn.Module):
    """A list of two images, a mapping and a keyword go in; tensors, None and a number come out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, images: list[Tensor], options: dict[str, Tensor], scale: Tensor) -> dict[str, Any]:
        scores = [self.linear(image) * scale for image in images]
        return {"scores": scores, "none": None, "pair": (options["shift"] + 1, 3)}


class Halves(nn.Module):
    """A product and a sum with a graph break in between."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        torch._dynamo.graph_break()
        return y + 1


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3)

    def forward(self, x: Tensor) -> Any:
        return self.lstm(x)


class SizeAsNumber(nn.Module):
    """Turns a size into a Python number, so that each size needs a graph of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(len([1] * x.shape[0]))


class StableSort(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x, stable=True)[1]


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return torch.softmax(x * 2, -1), None


class Writes(nn.Module):
    """Adds one to its input, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1) * 2


def seed(shapes: dict[str, list[int | str]], call: Any = None, most: int = 30) -> Seed:
    inputs = {name: InputSpec(kind="floats", shape=shape) for name, shape in shapes.items()}
    names = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
    dims = {name: Dim(size=2, min=1, max=most) for name in names}
    return Seed(name="tiny", model=ModelSpec(source="builder", builder="a:b"), inputs=inputs, dims=dims, call=call)


NESTED = seed(
    {"unused": [3], "first": ["n", 3], "second": ["n", 3], "shift": [2], "scale": [1]},
    {"args": [["first", "second"], {"shift": "shift", "spare": "unused"}], "kwargs": {"scale": "scale"}},
)
ROWS = seed({"x": ["n", 3]})
FIXED = seed({"x": [2, 4, 3]})


def sample(of: Seed, n: int = 2, draw: int = 0) -> dict[str, Tensor]:
    """Ordinary values in (−2, 2)."""
    source = torch.Generator().manual_seed(draw)
    shapes = {name: [n if isinstance(size, str) else size for size in spec.shape] for name, spec in of.inputs.items()}
    return {name: torch.rand(shape, generator=source) * 4 - 2 for name, shape in shapes.items()}


def prepared(spec: str, module: nn.Module, of: Seed) -> Backend:
    backend = backend_class(parse(spec).runtime)(parse(spec))
    backend.prepare(Model(of, module.eval().requires_grad_(False)), sample(of))
    return backend


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def by_hand(module: Nested, given_: dict[str, Tensor]) -> dict[str, Any]:
    weight, bias = module.linear.weight, module.linear.bias
    scores = [(given_[name] @ weight.T + bias) * given_["scale"] for name in ("first", "second")]
    return {"scores": scores, "none": None, "pair": (given_["shift"] + 1, 3)}


@pytest.mark.parametrize("spec", ["eager:cpu", "eager:cpu?layout=channels_last&threads=1", *ONE_GRAPH, *ONNX])
def test_nested_arguments_and_outputs_come_through_every_backend(spec: str) -> None:
    module = Nested()
    backend = prepared(spec, module, NESTED)
    for n in (2, 5):
        given_ = sample(NESTED, n, draw=n)
        assert_same(backend.run(given_), by_hand(module, given_))


@pytest.fixture(scope="module")
def softmax_in_onnx() -> Backend:
    return prepared("onnxruntime:cpu", Softmax(), ROWS)


@given(n=st.integers(1, 30), draw=st.integers(0, 2**31))
@settings(deadline=None, max_examples=25)
def test_an_exported_named_dimension_takes_every_size(softmax_in_onnx: Backend, n: int, draw: int) -> None:
    given_ = sample(ROWS, n, draw)
    probabilities, none = softmax_in_onnx.run(given_)
    grown = torch.exp(given_["x"].double() * 2)
    assert none is None
    assert_same(probabilities, (grown / grown.sum(-1, keepdim=True)).float())


def test_onnx_evidence_tells_exporter_and_the_nodes_of_each_provider(softmax_in_onnx: Backend) -> None:
    evidence = softmax_in_onnx.evidence()
    assert evidence["exporter"] == "dynamo"
    assert evidence["dynamic"] is True
    assert evidence["export_refusals"] == []
    assert evidence["dropped_inputs"] == []
    assert evidence["opt"] == "all"
    assert evidence["providers"] == ["CPUExecutionProvider"]
    assert evidence["nodes"] == {"CPUExecutionProvider": {"Mul": 1, "Softmax": 1}}
    model = onnx.load_model_from_string(softmax_in_onnx.onnx_bytes)  # type: ignore[attr-defined]
    assert [entry.version for entry in model.opset_import if not entry.domain] == [evidence["opset"]]


def test_an_input_that_the_exporter_drops_is_not_fed_and_is_named() -> None:
    backend = prepared("onnxruntime:cpu?exporter=torchscript", Nested(), NESTED)
    assert backend.evidence()["dropped_inputs"] == ["unused"]
    assert backend.evidence()["exporter"] == "torchscript"


def test_a_size_that_cannot_vary_is_exported_fixed_and_other_sizes_are_refused() -> None:
    backend = prepared("onnxruntime:cpu", SizeAsNumber(), ROWS)
    evidence = backend.evidence()
    assert (evidence["exporter"], evidence["dynamic"]) == ("dynamo", False)
    assert [reason.split(":")[0] for reason in evidence["export_refusals"]] == ["dynamo, dynamic sizes"]
    given_ = sample(ROWS)
    assert_same(backend.run(given_), given_["x"] * 2)
    with pytest.raises(Unsupported, match=r"fixed shape \(2, 3\), not \(3, 3\)"):
        backend.run(sample(ROWS, 3))


def test_what_no_exporter_takes_is_unsupported_with_both_reasons_on_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Unsupported) as refusal:
        prepared("onnxruntime:cpu", StableSort(), seed({"x": [4]}))
    assert refusal.value.stage == "export"
    assert "aten.sort" in refusal.value.reason
    assert "torchscript, static sizes:" in refusal.value.reason
    assert "\n" not in refusal.value.reason
    assert capfd.readouterr().out == ""  # a worker's standard output may carry messages


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64])
def test_dtypes_that_numpy_may_lack_pass_through_onnx_runtime(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    kind = {"bool": "mask", "int64": "integers"}.get(name, "floats")
    of = Seed(
        name="tiny",
        model=ModelSpec(source="builder", builder="a:b"),
        inputs={"x": InputSpec(kind=kind, shape=[4], dtype=name)},  # type: ignore[arg-type]
    )

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, x]).reshape(2, 4)

    values = torch.tensor([0, 1, 1, 0]).to(dtype)
    backend = backend_class("onnxruntime")(parse("onnxruntime:cpu"))
    backend.prepare(Model(of, Twice().eval()), {"x": values})
    found = backend.run({"x": values})
    assert found.dtype == dtype
    assert found.tolist() == [values.tolist(), values.tolist()]


def test_scalars_and_empty_tensors_come_out_of_onnx_runtime_as_such() -> None:
    class Edges(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.sum(), x[:, :0]

    total, nothing = prepared("onnxruntime:cpu", Edges(), seed({"x": [2, 3]})).run({"x": torch.ones(2, 3)})
    assert (total.shape, total.item()) == ((), 6.0)
    assert (nothing.shape, nothing.dtype) == ((2, 0), torch.float32)


@pytest.mark.parametrize("named", [True, False])
def test_an_onnx_file_is_fed_by_name_or_by_position(tmp_path: Path, named: bool) -> None:
    left, right = ("x", "y") if named else ("a", "b")
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (left, right)]
    out = helper.make_tensor_value_info("difference", TensorProto.FLOAT, [2])
    graph = helper.make_graph([helper.make_node("Sub", [left, right], ["difference"])], "g", kinds, [out])
    path = tmp_path / "sub.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    backend = backend_class("onnxruntime")(parse("onnxruntime:cpu"))
    given_ = {"x": torch.tensor([5.0, 1.0]), "y": torch.tensor([2.0, 4.0])}
    backend.prepare(Model(seed({"x": [2], "y": [2]}), None, path), given_)
    assert backend.run(given_)["difference"].tolist() == [3.0, -3.0]
    assert backend.evidence()["exporter"] == "file"


def test_a_file_that_is_no_onnx_file_is_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(Unsupported, match=r"^load: \w+"):
        backend_class("onnxruntime")(parse("onnxruntime:cpu")).prepare(Model(ROWS, None, path), sample(ROWS))


@pytest.mark.parametrize("spec", ["eager:cpu", "aot_eager:cpu"])
def test_an_onnx_file_is_no_module(spec: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no PyTorch module"):
        backend_class(parse(spec).runtime)(parse(spec)).prepare(Model(ROWS, None, tmp_path / "m.onnx"), sample(ROWS))


def test_inductor_answers_as_the_formula_does_and_counts_its_kernels() -> None:
    backend = prepared("inductor:cpu", Softmax(), ROWS)
    for n in (2, 7):
        given_ = sample(ROWS, n, draw=n)
        grown = torch.exp(given_["x"].double() * 2)
        assert_same(backend.run(given_)[0], (grown / grown.sum(-1, keepdim=True)).float())
    evidence = backend.evidence()
    assert (evidence["graphs"], evidence["recompiles"], evidence["fell_back"]) == (1, 0, False)
    assert evidence["kernels"] >= 1
    assert evidence["cudagraphs"] is False


class Beyond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(0, torch.zeros_like(x, dtype=torch.int64) + 9)


def test_what_compiles_and_then_raises_on_the_example_is_prepared_and_raises_when_it_is_run() -> None:
    of = seed({"x": [3]})
    backend = prepared("aot_eager:cpu", Beyond(), of)
    assert "out of range" in backend.evidence()["example_raised"]
    with pytest.raises(IndexError, match="out of range"):
        backend.run(sample(of))


def test_inductor_without_a_working_compiler_is_unsupported_at_its_own_stage() -> None:
    from torch._inductor import config

    class Fresh(nn.Module):  # nothing of it in the disk cache: its constant is new each time
        def __init__(self) -> None:
            super().__init__()
            self.shift = int.from_bytes(os.urandom(4), "little") / 7

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x) + self.shift

    with config.patch({"cpp.cxx": ("/no/such/compiler",)}), pytest.raises(Unsupported) as refusal:
        prepared("inductor:cpu", Fresh(), ROWS)
    assert refusal.value.stage == "inductor"
    assert "\n" not in refusal.value.reason


@pytest.mark.parametrize("spec", ONE_GRAPH)
def test_a_marked_dimension_does_not_recompile(spec: str) -> None:
    backend = prepared(spec, Softmax(), ROWS)
    for n in (2, 3, 9, 30):
        backend.run(sample(ROWS, n))
    evidence = backend.evidence()
    assert (evidence["graphs"], evidence["recompiles"]) == (1, 0)
    assert evidence["ops"] == [2]  # a product, a softmax
    assert evidence["dynamic_axes"] == {"x": [0]}


def test_dynamic_false_recompiles_for_each_size() -> None:
    backend = prepared("aot_eager:cpu?dynamic=false", Softmax(), ROWS)
    for n in (3, 4):
        backend.run(sample(ROWS, n))
    evidence = backend.evidence()
    assert (evidence["graphs"], evidence["recompiles"]) == (3, 2)
    assert evidence["dynamic_axes"] == {}
    assert "expected 2, actual 3" in evidence["recompile_reasons"][0]


def test_a_graph_break_is_told_and_both_halves_are_compiled() -> None:
    backend = prepared("aot_eager:cpu", Halves(), ROWS)
    given_ = sample(ROWS)
    assert_same(backend.run(given_), given_["x"] * 3 + 1)
    evidence = backend.evidence()
    assert evidence["ops"] == [1, 1]
    assert len(evidence["graph_breaks"]) == 1
    assert "graph_break" in evidence["graph_breaks"][0]


def test_fullgraph_refuses_a_graph_break() -> None:
    with pytest.raises(Unsupported) as refusal:
        prepared("aot_eager:cpu?fullgraph=true", Halves(), ROWS)
    assert refusal.value.stage == "dynamo"
    assert "graph_break" in refusal.value.reason


@pytest.mark.parametrize("spec", ONE_GRAPH)
def test_an_lstm_that_runs_as_the_reference_runs_is_not_called_compiled(spec: str) -> None:
    with pytest.raises(Unsupported, match="captured no graph") as refusal:
        prepared(spec, Recurrent(), FIXED)
    assert refusal.value.stage == "dynamo"


def test_calls_past_the_recompile_limit_are_counted_as_fallen_back() -> None:
    backend = prepared("aot_eager:cpu", SizeAsNumber(), ROWS)
    limit = torch._dynamo.config.recompile_limit
    for n in range(2, limit + 2):
        backend.run(sample(ROWS, n))
    assert backend.evidence()["fell_back"] is False
    assert backend.evidence()["graphs"] == limit
    for calls, n in enumerate((limit + 2, limit + 3, limit + 2), start=1):
        given_ = sample(ROWS, n)
        assert_same(backend.run(given_), given_["x"] * n)
        assert backend.evidence()["fallback_calls"] == calls
    evidence = backend.evidence()
    assert evidence["fell_back"] is True
    assert evidence["fallback_limit"] == f"recompile_limit={limit}"
    assert evidence["graphs"] == limit
    backend.run(sample(ROWS, 3))  # has its graph still
    assert backend.evidence()["fallback_calls"] == 3


def test_a_call_made_again_after_the_limit_sees_the_inputs_as_they_were() -> None:
    class WritesThenSpecialises(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.add_(1)
            torch._dynamo.graph_break()
            return x * float(len([1] * x.shape[0]))

    backend = prepared("dynamo:cpu", WritesThenSpecialises(), ROWS)
    last = torch._dynamo.config.recompile_limit + 3
    for n in range(2, last + 1):
        given_ = sample(ROWS, n)
        expected = (given_["x"] + 1) * n
        assert_same(backend.run(given_), expected)
    assert backend.evidence()["fell_back"] is True


@pytest.mark.parametrize("spec", ["aot_eager:cpu", "onnxruntime:cpu"])
def test_preparing_leaves_the_example_as_it_was(spec: str) -> None:
    of = seed({"x": [2, 3]})
    example = sample(of)
    before = example["x"].clone()
    backend = backend_class(parse(spec).runtime)(parse(spec))
    backend.prepare(Model(of, Writes().eval()), example)
    assert torch.equal(example["x"], before)
    assert_same(backend.run({"x": before.clone()}), (before + 1) * 2)


leaves = st.none() | st.integers() | st.booleans() | st.builds(lambda n: torch.full((2,), float(n)), st.integers(0, 9))
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@given(tree=trees)
def test_a_structure_puts_tensors_back_where_they_were(tree: Any) -> None:
    structure = Structure.of(tree)
    flat = [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    assert repr(structure.rebuild(flat)) == repr(tree)
    with pytest.raises(ValueError, match="tensors for the"):
        structure.rebuild([*flat, torch.zeros(1)])


def test_an_output_that_is_no_tree_of_tensors_is_refused() -> None:
    with pytest.raises(Unsupported, match="holds a object"):
        Structure.of([torch.ones(1), object()])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inductr:cpu", "did you mean 'inductor'"),
        ("tensorflow9:cpu", "no backend is called 'tensorflow9'"),
        ("eager:tpu", "runs on cpu, cuda, not on tpu"),
        ("inductor:cpu?dynamc=true", "no option 'dynamc'"),
        ("inductor:cpu?dynamic=yes", "true or false, not 'yes'"),
        ("onnxruntime:cpu?opt=fast", "none or basic or extended or layout or all"),
        ("onnxruntime:cpu?threads=two", "a whole number"),
        ("onnxruntime:cuda?threads=2", "threads is an option of cpu"),
        ("eager:cpu?threads=0", "1 or more"),
        ("eager:cpu?tf32=true", "tf32 is an option of cuda"),
    ],
)
def test_a_backend_string_that_cannot_be_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(text)


def test_every_known_backend_reads_back_and_says_whether_it_can_run_here() -> None:
    specs = {str(spec): availability(spec) for spec in known()}
    assert {"eager:cpu", "eager:cuda", "inductor:cpu", "inductor:cuda", "onnxruntime:cpu", "dynamo:cpu"} <= set(specs)
    assert all(str(parse(text)) == text for text in specs)
    assert specs["eager:cpu"] is None
    assert specs["onnxruntime:cpu"] is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("runtime", ["eager", "inductor", "onnxruntime"])
def test_without_cuda_the_reason_names_it(runtime: str) -> None:
    assert "CUDA" in (availability(BackendSpec(runtime, "cuda")) or "")


def test_inductor_is_unavailable_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in (availability(parse("inductor:cpu")) or "")


def test_a_name_belongs_to_one_class() -> None:
    class Other(backend_class("eager")):  # type: ignore[misc]
        pass

    with pytest.raises(SpecError, match="two backends are called 'eager'"):
        register(Other)
    assert register(backend_class("eager")) is backend_class("eager")


@given(text=st.text())
def test_a_first_line_is_one_line_and_short(text: str) -> None:
    line = first_line(text)
    assert len(line.splitlines()) == 1
    assert 0 < len(line) <= 300


def test_naming_backends_loads_no_compiler_and_no_runtime() -> None:
    heavy = ("onnx", "onnxruntime", "torch._dynamo", "torch._inductor", "torchvision", "torch.onnx")
    code = f"import sys, fuzzer.backends.registry; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.cuda
@pytest.mark.skipif(cuda_unavailable() is not None, reason=f"CUDA: {cuda_unavailable()}")
@pytest.mark.parametrize("spec", ["eager:cuda?tf32=false", "inductor:cuda?tf32=false", "aot_eager:cuda"])
def test_cuda_answers_as_the_formula_does_and_names_the_device(spec: str) -> None:
    backend = prepared(spec, Softmax(), ROWS)
    for n in (2, 7):
        given_ = sample(ROWS, n, draw=n)
        grown = torch.exp(given_["x"].double() * 2)
        found = backend.run(given_)[0]
        assert found.device.type == "cuda"
        assert_same(found.cpu(), (grown / grown.sum(-1, keepdim=True)).float())
    assert backend.evidence()["device"] == torch.cuda.get_device_name()


IMAGES = seed({"x": [2, 3, 4, 4]})


def assert_write_is_seen(spec: str) -> None:
    backend, given_ = prepared(spec, Writes(), IMAGES), sample(IMAGES)
    kept = given_["x"].clone()
    found = backend.run(given_)
    assert_same(found.cpu(), (kept + 1) * 2)
    assert_same(given_["x"], kept + 1)
    assert given_["x"]._version > 0
    harmless, given_ = prepared(spec, Softmax(), IMAGES), sample(IMAGES)
    harmless.run(given_)
    assert torch.equal(given_["x"], kept)
    assert given_["x"]._version == 0


@pytest.mark.parametrize("spec", ["eager:cpu", "eager:cpu?layout=channels_last", "aot_eager:cpu"])
def test_a_write_to_an_input_shows_on_the_callers_tensor(spec: str) -> None:
    assert_write_is_seen(spec)


@pytest.mark.cuda
@pytest.mark.skipif(cuda_unavailable() is not None, reason=f"CUDA: {cuda_unavailable()}")
@pytest.mark.parametrize("spec", ["eager:cuda", "inductor:cuda", "aot_eager:cuda"])
def test_a_write_to_an_input_on_the_device_shows_on_the_callers_tensor(spec: str) -> None:
    assert_write_is_seen(spec)
