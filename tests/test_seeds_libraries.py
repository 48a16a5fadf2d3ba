"""Seeds of models that torchvision, timm and transformers have by name."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch

from fuzzer.errors import SeedError
from fuzzer.inputs import base_sample, noise_sample
from fuzzer.models import build_model
from fuzzer.seeds import Seed
from fuzzer.seeds.libraries import detector_args
from fuzzer.seeds.sketch import names_a_model, sketch
from fuzzer.trees import flatten

torch.set_num_threads(1)


def answers(seed: Seed) -> dict[str, Any]:
    built = build_model(seed, None)
    assert built.module is not None
    args, kwargs = built.call(base_sample(seed, 0))
    return flatten(built.module(*args, **kwargs))


def needs(package: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@needs("timm")
@pytest.mark.parametrize(
    ("name", "side", "mean"), [("mobilenetv3_small_050", 64, 0.485), ("test_vit.r160_in1k", 160, 0.5)]
)
def test_a_model_of_timm_gets_an_image_of_the_size_and_scale_that_it_takes(name: str, side: int, mean: float) -> None:
    seed = sketch(f"timm:{name}")
    image = seed.inputs["image"]
    assert image.shape == [1, 3, side, side]
    assert isinstance(image.mean, tuple | list)
    assert image.mean[0] == mean
    assert answers(seed)["$"].shape == (1, 1000)


@needs("transformers")
@pytest.mark.parametrize(
    ("name", "inputs", "task"),
    [
        ("gpt2", {"input_ids": [1, 16]}, "tensors"),
        ("BertForMaskedLM", {"input_ids": [1, 16]}, "tokens"),
        ("T5Model", {"input_ids": [1, 16], "decoder_input_ids": [1, 16]}, "tensors"),
        ("ViTForImageClassification", {"pixel_values": [1, 3, 64, 64]}, "classification"),
    ],
)
def test_a_model_of_transformers_is_small_and_gets_what_its_class_takes(
    name: str, inputs: dict[str, list[int]], task: str
) -> None:
    seed = sketch(f"transformers:{name}")
    assert {key: spec.shape for key, spec in seed.inputs.items()} == inputs
    assert seed.task.kind == task
    built = build_model(seed, None).module
    assert built is not None
    assert sum(parameter.numel() for parameter in built.parameters()) < 5e6
    assert answers(seed)


@needs("transformers")
def test_a_network_in_stages_keeps_its_sizes() -> None:
    assert sketch("transformers:swin").model.args == {}
    assert sketch("transformers:swin").inputs["pixel_values"].shape == [1, 3, 224, 224]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("timm:resnet81", "did you mean"),
        ("transformers:berrt", "did you mean 'bert'"),
        ("transformers:clip", "made of several models"),
        ("transformers:whisper", "input_features"),
    ],
)
def test_what_a_library_has_not_or_cannot_be_guessed_is_one_line(spec: str, said: str) -> None:
    pytest.importorskip(spec.partition(":")[0])
    with pytest.raises(SeedError, match=said) as caught:
        sketch(spec)
    assert len(caught.value.problems) == 1


def test_a_library_that_is_not_installed_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        SeedError, match=r"timm:resnet18: the package timm is not installed; pip install xbfuzz\[timm\]"
    ):
        sketch("timm:resnet18")


def test_names_of_libraries_may_have_dashes() -> None:
    assert names_a_model("transformers:xlm-roberta")
    assert not names_a_model("elsewhere:xlm-roberta")


def test_a_detector_calibrated_with_noise_keeps_its_scores_apart_on_noise() -> None:
    seed = sketch("torchvision:ssd300_vgg16")  # without noise, all of the fifty best scores are 1 there
    built = build_model(seed, None)
    assert built.module is not None
    for sample in (base_sample(seed, 99), noise_sample(seed, 99)):
        args, kwargs = built.call(sample)
        (found,) = built.module(*args, **kwargs)
        assert found["scores"].unique().numel() > 20


def test_a_noise_sample_lies_in_the_range_and_is_the_same_each_time() -> None:
    image = {"kind": "image", "shape": [1, 3, 16, 16], "range": [0.25, 0.5]}
    other = {"kind": "floats", "shape": [4]}
    data = {"name": "n", "model": {"source": "builder", "builder": "m:M"}, "inputs": {"image": image, "x": other}}
    seed = Seed.model_validate(data)
    first = noise_sample(seed, 3)
    assert torch.equal(first["image"], noise_sample(seed, 3)["image"])
    assert 0.25 <= float(first["image"].min()) < 0.26
    assert 0.49 < float(first["image"].max()) <= 0.5
    assert torch.equal(first["x"], base_sample(seed, 3)["x"])
    assert not torch.equal(first["image"], noise_sample(seed, 4)["image"])


def test_noise_goes_with_calibrated_weights_alone() -> None:
    model = {"source": "library", "name": "resnet18", "weights": {"kind": "random", "noise": True}}
    with pytest.raises(ValueError, match="`noise` goes with `kind: calibrated`"):
        Seed.model_validate({"name": "n", "model": model, "inputs": {"x": {"kind": "floats", "shape": [1]}}})


@pytest.mark.parametrize(
    "name", ["fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "fcos_resnet50_fpn", "ssd300_vgg16"]
)
def test_every_detector_takes_the_arguments_that_make_it_answer(name: str) -> None:
    from torchvision.models import get_model

    side = None if name.startswith("ssd") else 128
    model = get_model(name, weights=None, weights_backbone=None, **detector_args(name, side))
    holder = getattr(model, "roi_heads", model)
    assert holder.score_thresh == 0.0
