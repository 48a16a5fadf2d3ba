"""ONNX files as torch modules: what converts, what it answers, what is refused, and what then is the reference."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, checker, helper, numpy_helper, save

from fuzzer.errors import ModelError
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model
from fuzzer.models.onnx_file import explicit, folded
from fuzzer.models.onnx_torch import NotConverted, onnx_module
from fuzzer.seeds import Seed

pytestmark = pytest.mark.skipif(importlib.util.find_spec("onnx2torch") is None, reason="needs onnx2torch")

FLOAT = TensorProto.FLOAT


def file(
    path: Path, nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], **weights: Any
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    checker.check_model(model)
    save(model, path)
    return path


def seed_of(path: Path, inputs: dict[str, list[Any]], dims: dict[str, Any] | None = None) -> Seed:
    specs = {name: {"kind": "floats", "shape": shape} for name, shape in inputs.items()}
    data = {"name": "s", "model": {"source": "onnx", "path": str(path)}, "inputs": specs, "dims": dims or {}}
    return Seed.model_validate(data)


def shaped(path: Path) -> Path:
    """Everything that onnx2torch leaves as tensors: shape, split, pads, axes, starts and ends, resize scales."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Slice", ["size", "zero", "one"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["square"]),
        helper.make_node(
            "Resize",
            ["square", "", "scales"],
            ["large"],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        ),
        helper.make_node("Pad", ["large", "pads"], ["padded"]),
        helper.make_node("Split", ["padded", "parts"], ["a", "b"], axis=2),
        helper.make_node("ReduceSum", ["b", "axes"], ["total"], keepdims=1),
        helper.make_node("Add", ["a", "total"], ["sum.1"]),
    ]
    weights = {
        "zero": np.array([0]),
        "one": np.array([1]),
        "rest": np.array([1, 2, 2]),
        "parts": np.array([2, 4]),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0, 1, 0]),
        "axes": np.array([2]),
    }
    return file(path, nodes, {"x": ["n", 4]}, {"sum.1": ["n", 1, 2, 4], "b": ["n", 1, 4, 4]}, **weights)


def runtime(path: Path, **feed: torch.Tensor) -> dict[str, torch.Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    values = session.run(names, {name: value.numpy() for name, value in feed.items()})
    return {name: torch.as_tensor(value) for name, value in zip(names, values, strict=True)}


class TestConversion:
    def test_the_module_answers_as_the_file_does_by_the_same_names(self, tmp_path: Path) -> None:
        path = shaped(tmp_path / "m.onnx")
        seed = seed_of(path, {"x": [2, 4]})
        x = base_sample(seed, 7)["x"]
        found, wanted = onnx_module(seed, path)(x), runtime(path, x=x)
        assert list(found) == list(wanted) == ["sum.1", "b"]
        assert all(torch.allclose(found[name], wanted[name]) for name in wanted)

    def test_it_compiles_whole_and_exports(self, tmp_path: Path) -> None:
        path = shaped(tmp_path / "m.onnx")
        seed = seed_of(path, {"x": [2, 4]})
        module, x = onnx_module(seed, path), base_sample(seed, 7)["x"]
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x)["sum.1"], module(x)["sum.1"])
        exported = torch.export.export(module, (x,)).module()
        assert torch.equal(exported(x)["b"], module(x)["b"])

    def test_it_runs_in_float64(self, tmp_path: Path) -> None:
        path = file(
            tmp_path / "m.onnx",
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": [2, 4]},
            {"y": [2, 3]},
            w=np.full((4, 3), 0.1, np.float32),
        )
        seed = seed_of(path, {"x": [2, 4]})
        x = base_sample(seed, 0)["x"].double()
        wanted = x @ torch.full((4, 3), 0.1, dtype=torch.float32).double()
        assert torch.allclose(onnx_module(seed, path).double()(x)["y"], wanted, rtol=1e-14)

    def test_dimensions_that_vary_stay_free(self, tmp_path: Path) -> None:
        path = shaped(tmp_path / "m.onnx")
        module = onnx_module(seed_of(path, {"x": ["n", 4]}, {"n": {"size": 2, "max": 5}}), path)
        for n in (1, 3, 5):
            x = torch.arange(4.0 * n).reshape(n, 4)
            assert torch.allclose(module(x)["sum.1"], runtime(path, x=x)["sum.1"])

    def test_inputs_are_matched_by_name_else_by_position(self, tmp_path: Path) -> None:
        path = file(tmp_path / "m.onnx", [helper.make_node("Sub", ["a", "b"], ["y"])], {"a": [2], "b": [2]}, {"y": [2]})
        one, two = torch.tensor([5.0, 5.0]), torch.tensor([1.0, 2.0])
        by_name = onnx_module(seed_of(path, {"b": [2], "a": [2]}), path)
        assert by_name(one, two)["y"].tolist() == [-4.0, -3.0]
        by_position = onnx_module(seed_of(path, {"first": [2], "second": [2]}), path)
        assert by_position(one, two)["y"].tolist() == [4.0, 3.0]
        with pytest.raises(NotConverted, match="the ONNX file takes a, b; the seed has x"):
            onnx_module(seed_of(path, {"x": [2]}), path)

    def test_modules_bear_the_names_of_values(self, tmp_path: Path) -> None:
        path = shaped(tmp_path / "m.onnx")
        names = dict(onnx_module(seed_of(path, {"x": [2, 4]}), path).named_modules())
        assert {"onnx.square", "onnx.large", "onnx.sum/1"} <= set(names)

    def test_an_operator_without_a_converter_is_named(self, tmp_path: Path) -> None:
        path = file(tmp_path / "m.onnx", [helper.make_node("Hardmax", ["x"], ["y"])], {"x": [2, 4]}, {"y": [2, 4]})
        with pytest.raises(NotConverted, match="Hardmax"):
            onnx_module(seed_of(path, {"x": [2, 4]}), path)

    def test_a_conversion_that_answers_otherwise_is_not_believed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = file(
            tmp_path / "m.onnx", [helper.make_node("GlobalMaxPool", ["x"], ["y"])], {"x": [1, 2, 3]}, {"y": [1, 2, 1]}
        )
        seed = seed_of(path, {"x": [1, 2, 3]})
        onnx_module(seed, path)
        from fuzzer.models import onnx_torch

        monkeypatch.setattr(onnx_torch.GlobalMaxPool, "forward", lambda self, x: x.mean(dim=2, keepdim=True))
        with pytest.raises(NotConverted, match=r"answers otherwise than ONNX Runtime does \(y, input of 1x2x3"):
            onnx_module(seed, path)

    def test_a_converted_model_is_called_by_position_whatever_the_template(self, tmp_path: Path) -> None:
        path = shaped(tmp_path / "m.onnx")
        model = build_model(seed_of(path, {"x": [2, 4]}), None)
        assert model.onnx == path
        assert model.module is not None
        assert not any(p.requires_grad for p in model.module.parameters())
        args, kwargs = model.call({"x": torch.zeros(2, 4)})
        assert (len(args), kwargs) == (1, {})
        plain: Model = build_model(model.seed, None, convert=False)
        assert plain.module is None

    def test_without_onnx2torch_the_reason_says_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = shaped(tmp_path / "m.onnx")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert build_model(seed_of(path, {"x": [2, 4]}), None).no_module == (
            "the package onnx2torch is not installed; pip install xbfuzz[onnx2torch]"
        )


class TestFiles:
    @pytest.mark.parametrize(("how", "size"), [("SAME_UPPER", 6), ("SAME_LOWER", 6), ("SAME_UPPER", 7)])
    def test_padding_by_a_word_becomes_numbers(self, tmp_path: Path, how: str, size: int) -> None:
        node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=how, strides=[2, 2])
        weight = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
        shapes = {"x": [1, 2, size, size]}
        path = file(tmp_path / "m.onnx", [node], shapes, {"y": [1, 1, (size + 1) // 2, (size + 1) // 2]}, w=weight)
        import onnx

        changed = explicit(onnx.load(str(path)))
        assert {item.name for item in changed.graph.node[0].attribute} == {"strides", "pads"}
        save(changed, tmp_path / "n.onnx")
        x = torch.randn(1, 2, size, size, generator=torch.Generator().manual_seed(0))
        assert torch.equal(runtime(path, x=x)["y"], runtime(tmp_path / "n.onnx", x=x)["y"])

    def test_sizes_that_are_known_fold_away(self, tmp_path: Path) -> None:
        import onnx

        simpler = folded(onnx.load(str(shaped(tmp_path / "m.onnx"))), {"x": [2, 4]})
        assert not {"Shape", "Slice", "Concat"} & {node.op_type for node in simpler.graph.node}


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        build_model(seed_of(tmp_path / "gone.onnx", {"x": [1]}), None)


def test_a_file_that_does_not_convert_is_compared_with_itself_as_written(tmp_path: Path) -> None:
    from fuzzer.backends.session import Where
    from fuzzer.campaign.lane import Lane
    from fuzzer.campaign.plan import Planned

    seed = seed_of(shaped(tmp_path / "m.onnx"), {"x": [2, 4]})
    planned = Planned(seed, "eager:cpu", {"onnxruntime:cpu": None, "onnxruntime:cpu?opt=none": None})
    lane = Lane(planned, Where(None), 0, [])
    lane.reference.reason = "load: no such operator"
    assert lane.compare_with_itself()
    assert lane.reference.backend == lane.planned.reference == lane.seed.reference == "onnxruntime:cpu?opt=none"
    assert [target.spec for target in lane.targets] == ["onnxruntime:cpu"]
    assert lane.no_module == "load: no such operator"
    assert not lane.failed
    assert not lane.compare_with_itself()
