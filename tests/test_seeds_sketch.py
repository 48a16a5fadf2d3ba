"""A seed from a name alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from onnx import TensorProto, helper, save

from benchmarks.study_models import MODELS
from fuzzer.errors import SeedError
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.seeds import load_seed, seed_text
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


def test_a_builder_gets_the_shapes_given_else_an_image() -> None:
    assert sketch("nets.small:build", inputs={"x": [2, 4]}).inputs["x"].shape == [2, 4]
    guessed = sketch("nets.small:build")
    assert guessed.inputs["image"].shape == [1, 3, 64, 64]
    assert "a guess" in guessed.about


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


@pytest.mark.parametrize("spec", ["resnet18", "torchvision:nothing", "gone.onnx", "torchvision:raft_small"])
def test_what_cannot_be_sketched_is_one_clear_line(spec: str, tmp_path: Path) -> None:
    with pytest.raises(SeedError) as caught:
        sketch(spec, tmp_path)
    assert len(caught.value.problems) == 1


def test_the_studys_models_are_nineteen_with_the_repository_one() -> None:
    names = [model.name for model in MODELS]
    assert len(set(names)) == 18
    assert {model.task for model in MODELS} == {"classification", "segmentation", "detection"}
    for model in MODELS:
        assert model.seed().model.weights.kind == "calibrated"
