"""A seed from a name alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, save

from benchmarks.study_models import MODELS
from fuzzer.errors import SeedError
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.seeds import Seed, load_seed, seed_text
from fuzzer.seeds.given import Example, Offer, example_spec, parse_inputs, tensor_spec
from fuzzer.seeds.sketch import sketch


@pytest.mark.parametrize("name", ["resnet18", "vit_b_16", "segmentation.fcn_resnet50", "fasterrcnn_resnet50_fpn"])
def test_torchvision_models_get_the_input_and_task_of_their_family(name: str) -> None:
    seed = sketch(f"torchvision:{name}")
    wanted = {"resnet18": 64, "vit_b_16": 224, "segmentation.fcn_resnet50": 64, "fasterrcnn_resnet50_fpn": 128}[name]
    assert seed.inputs["image"].shape[-1] == wanted
    assert (seed.call == [["image"]]) == (seed.task.kind == "detection") == (name == "fasterrcnn_resnet50_fpn")
    assert seed.model.weights.kind == "calibrated"


def test_a_sketch_answers_and_can_be_kept_as_a_file(tmp_path: Path) -> None:
    seed = sketch("torchvision:squeezenet1_1")
    (tmp_path / "kept.yaml").write_text(seed_text(seed))
    kept = load_seed(tmp_path / "kept.yaml")
    model = build_model(kept, None)
    assert model.module is not None
    answers = [model.module(base_sample(kept, draw)["image"]) for draw in (0, 1)]
    assert (answers[0] - answers[1]).abs().max() > 0.1


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    """A folder with a file in which somebody's builders are."""
    (tmp_path / "small.py").touch()
    return tmp_path


X = Example("x", [2, 8], "float32", -2.0, 3.0)


def test_a_builder_gets_the_inputs_that_are_given(nets: Path) -> None:
    seed = sketch("small:build", nets, {"x": [2, 4], "ids": parse_inputs(["ids=2x3:int64:0..9"])["ids"]})
    assert seed.inputs["x"].shape == [2, 4]
    assert (seed.inputs["ids"].kind, seed.inputs["ids"].range) == ("integers", (0.0, 9.0))
    assert seed.arguments == ["x", "ids"]
    assert seed.path(str(seed.model.path)) == nets


def test_inputs_named_as_forwards_arguments_in_another_order_go_by_name(nets: Path) -> None:
    def ask(builder: str, folder: Path) -> Offer:
        assert (builder, folder) == ("small:build", nets)
        return Offer(["x", "mask"], ["x"], [X], own_weights=False)

    seed = sketch("small:build", nets, {"mask": [2, 8], "x": [2, 8]}, ask)
    assert seed.arguments == {"args": [], "kwargs": {"mask": "mask", "x": "x"}}
    assert sketch("small:build", nets, {"x": [2, 8], "mask": [2, 8]}, ask).arguments == ["x", "mask"]
    assert sketch("small:build", nets, {"image": [2, 8]}, ask).arguments == ["image"]


@pytest.mark.parametrize(("own", "weights"), [(True, "default"), (False, "calibrated")])
def test_a_builders_examples_are_its_inputs_and_its_own_weights_are_kept(nets: Path, own: bool, weights: str) -> None:
    seed = sketch("small.py:build", nets, None, lambda builder, folder: Offer(["x"], ["x"], [X], own))
    assert (seed.inputs["x"].kind, seed.inputs["x"].shape) == ("floats", [2, 8])
    assert seed.model.weights.kind == weights


def test_what_a_builder_is_fed_with_is_asked_for_in_one_line(nets: Path) -> None:
    for inputs, words in (({}, ["ids, mask", "--input x=1x3x64x64"]), ({"ids": [2]}, ["ids, mask", "only ids"])):
        with pytest.raises(SeedError) as caught:
            sketch("small:build", nets, inputs, lambda *_: Offer(["ids", "mask"], ["ids", "mask"], [], False))
        (line,) = caught.value.problems
        assert all(word in line for word in words)


def test_inputs_that_are_given_take_the_place_of_those_that_are_usual() -> None:
    seed = sketch("torchvision:resnet18", inputs={"image": [2, 3, 32, 32]})
    assert seed.inputs["image"].shape == [2, 3, 32, 32]
    with pytest.raises(SeedError, match="there is no input 'x'; its inputs are image"):
        sketch("torchvision:resnet18", inputs={"x": [2, 3, 32, 32]})


def test_an_onnx_file_says_its_own_inputs(tmp_path: Path) -> None:
    inputs = [
        helper.make_tensor_value_info("pixel.values", TensorProto.FLOAT, ["N", 3, "H", 32]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", 7]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, [2, 2]),
    ]
    nodes = [helper.make_node("Identity", [each.name], [f"out{i}"]) for i, each in enumerate(inputs)]
    outputs = [helper.make_tensor_value_info(f"out{i}", each.type.tensor_type.elem_type, None)
               for i, each in enumerate(inputs)]  # fmt: skip
    save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), tmp_path / "my net.onnx")
    seed = sketch("my net.onnx", tmp_path)
    assert seed.name == "my_net"
    assert {name: (spec.kind, spec.shape) for name, spec in seed.inputs.items()} == {
        "input_0": ("image", ["batch", 3, 64, 32]),
        "ids": ("integers", ["batch", 7]),
        "mask": ("mask", [2, 2]),
    }
    assert base_sample(seed, 0)["ids"].dtype == torch.int64
    fixed = sketch("my net.onnx", tmp_path, {"input_0": [2, 3, 64, 32], "ids": [2, 7]})
    assert (fixed.inputs["ids"].shape, fixed.dims) == ([2, 7], {})  # nothing varies any more


@pytest.mark.parametrize(
    "spec", ["resnet18", "torchvision:nothing", "gone.onnx", "torchvision:raft_small", "gone.py:Net", "gone:Net"]
)
def test_what_cannot_be_sketched_is_one_clear_line(spec: str, tmp_path: Path) -> None:
    with pytest.raises(SeedError) as caught:
        sketch(spec, tmp_path)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256))])
def test_a_file_that_only_has_the_name_of_an_onnx_file_is_told_as_such(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(SeedError, match=r"^net\.onnx: cannot be read: it is no ONNX file$"):
        sketch("net.onnx", tmp_path)


def test_a_given_input_that_no_seed_can_have_is_told_with_its_key(nets: Path) -> None:
    with pytest.raises(SeedError, match=r"^small\.py:Net: inputs\.x: .*no dtype int8"):
        sketch("small.py:Net", nets, {"x": {"kind": "floats", "shape": [2], "dtype": "int8"}})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("x", "x=1x3x64x64"),
        ("1=2x3", "x=1x3x64x64"),
        ("x=2xq", "no shape"),
        ("x=-1", "no shape"),
        ("x=2:flaot32", "did you mean 'float32'"),
        ("x=2:float32:0-1", "no range"),
        ("x=2:float32:3..1", "from low to high"),
        ("x=2:float32:0..1e400", "both finite"),
    ],
)
def test_an_input_that_cannot_be_read_is_told_with_how_it_reads(text: str, word: str) -> None:
    with pytest.raises(SeedError, match=word):
        parse_inputs([text])


def test_all_inputs_that_cannot_be_read_are_told_at_once() -> None:
    with pytest.raises(SeedError) as caught:
        parse_inputs(["x=2", "y=q", "x=3", "z"])
    assert len(caught.value.problems) == 3


KINDS = {"float32": "floats", "complex64": "floats", "bool": "mask", "int64": "integers", "uint8": "integers"}


@given(st.sampled_from(sorted(KINDS)), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(-9, 8))
def test_an_input_in_words_is_the_tensor_that_it_says(dtype: str, shape: list[int], low: int) -> None:
    limits = f":{max(low, 0) if dtype == 'uint8' else low}..9" if dtype in ("float32", "int64", "uint8") else ""
    found = parse_inputs([f"x={'x'.join(map(str, shape))}:{dtype}{limits}"])
    assert found["x"]["kind"] == KINDS[dtype]
    seed = Seed.model_validate({"name": "n", "model": {"source": "builder", "builder": "m:M"}, "inputs": found})
    sample = base_sample(seed, 0)["x"]
    assert (list(sample.shape), sample.dtype) == (shape, getattr(torch, dtype))
    if limits:
        assert low <= float(sample.min())
        assert float(sample.max()) <= 9


@given(st.sampled_from(["int64", "uint8", "float32"]), st.integers(0, 200), st.integers(0, 55))
def test_base_inputs_stay_among_an_examples_whole_numbers(dtype: str, low: int, width: int) -> None:
    spec = example_spec(Example("x", [2, 3], dtype, low, low + width))
    seed = Seed.model_validate({"name": "n", "model": {"source": "builder", "builder": "m:M"}, "inputs": {"x": spec}})
    sample = base_sample(seed, 0)["x"]
    if dtype != "float32":
        assert 0 <= int(sample.min()) <= int(sample.max()) <= max(low + width, 1)
    elif low + width > 6 and width:
        assert low <= float(sample.min()) <= float(sample.max()) <= low + width


def test_four_dimensions_with_three_channels_are_an_image() -> None:
    assert tensor_spec([1, 3, 8, 8])["kind"] == "image"
    assert tensor_spec([1, 4, 8, 8])["kind"] == tensor_spec([3, 8, 8])["kind"] == "floats"


def test_the_studys_models_are_nineteen_with_the_repository_one() -> None:
    names = [model.name for model in MODELS]
    assert len(set(names)) == 18
    assert {model.task for model in MODELS} == {"classification", "segmentation", "detection"}
    for model in MODELS:
        assert model.seed().model.weights.kind == "calibrated"
