"""The study's own configurations are seeds too."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from fuzzer.errors import SeedError
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.seeds import Seed, load_seed, seed_from_text, seed_text

PUBLISHED = """\
from: library
model: resnet50
inputs:
  - assets/cat.jpg
  - assets/dog.jpg
means: [0.485, 0.456, 0.406]
stds: [0.229, 0.224, 0.225]
options:
  resize_multiple: 32
verification:
  tol: {atol: 1e-5, rtol: 1e-5}
"""


def parse(text: str) -> Seed:
    return seed_from_text(text, Path("."), name="s")


def published(root: Path) -> Path:
    """As the study's repository lays it out: configurations in one folder, images beside it."""
    (root / "assets").mkdir(parents=True)
    (root / "yaml_configs").mkdir()
    for name, grey in (("cat", 255), ("dog", 0)):
        Image.new("RGB", (50, 40), (grey, grey, grey)).save(root / "assets" / f"{name}.jpg")
    path = root / "yaml_configs" / "cls_resnet50.yaml"
    path.write_text(PUBLISHED)
    return path


class TestPublished:
    def test_the_published_configuration_loads_unchanged(self, tmp_path: Path) -> None:
        seed = load_seed(published(tmp_path))
        assert (seed.name, seed.model.source, seed.model.name) == ("cls_resnet50", "library", "resnet50")
        assert seed.model.weights.kind == "default"
        assert seed.tolerance is not None
        assert (seed.tolerance.atol, seed.tolerance.rtol) == (1e-5, 1e-5)
        assert seed.task.kind == "classification"
        assert seed_from_text(seed_text(seed), seed.base) == seed

    def test_its_images_are_resized_and_normalised_as_its_runner_does(self, tmp_path: Path) -> None:
        seed = load_seed(published(tmp_path))
        white = base_sample(seed, 0)["image"]
        assert white.shape == (1, 3, 224, 224)
        for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
            assert white[0, channel].mean().item() == pytest.approx((1 - mean) / std, rel=1e-3)
        assert base_sample(seed, 1)["image"].max() < 0  # the black one, in its turn

    def test_missing_images_are_listed(self, tmp_path: Path) -> None:
        path = published(tmp_path)
        (tmp_path / "assets" / "dog.jpg").unlink()
        with pytest.raises(SeedError, match=r"inputs\.image\.files\[1\]: no such file: .*dog\.jpg"):
            load_seed(path)


class TestSources:
    def test_a_detector_takes_a_list_of_images(self) -> None:
        seed = parse("from: library\nmodel: detection.ssd300_vgg16\ninputs: [a.png]\n")
        assert (seed.task.kind, seed.call, seed.inputs["image"].shape) == ("detection", [["image"]], [3, 224, 224])

    def test_a_class_in_a_repository_gets_its_parameters(self, tmp_path: Path) -> None:
        (tmp_path / "repo" / "models").mkdir(parents=True)
        (tmp_path / "repo" / "models" / "yolo.py").write_text(
            "from torch import nn\ndef make(channels):\n    return nn.Conv2d(3, channels, 1)\n"
        )
        text = "from: repo\nrepo: {path: ../repo, class: models.yolo.make}\nparams: {channels: 4}\n"
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs" / "c.yaml").write_text(text)
        seed = load_seed(tmp_path / "configs" / "c.yaml")
        assert (seed.model.source, seed.model.builder) == ("repo", "models.yolo:make")
        module = build_model(seed, None).module
        assert module is not None
        assert module(base_sample(seed, 0)["image"]).shape == (1, 4, 224, 224)

    @pytest.mark.parametrize(
        ("builder", "wanted"),
        [
            ("zoo.nets:small", "zoo.nets:small"),
            ("zoo.nets.small", "zoo.nets:small"),
            ("{module: zoo.nets, function: small}", "zoo.nets:small"),
        ],
    )
    def test_builders_are_named_in_any_of_the_usual_ways(self, builder: str, wanted: str) -> None:
        seed = parse(f"from: builder\nbuilder: {builder}\nparams: {{n: 3}}\n")
        assert (seed.model.source, seed.model.builder, seed.model.args) == ("builder", wanted, {"n": 3})

    @pytest.mark.parametrize("hub", ["{repo: 'o/r:v1', model: net}", "o/r:v1\nmodel: net"])
    def test_hub_models_name_repository_and_entry(self, hub: str) -> None:
        seed = parse(f"from: hub\nhub: {hub}\n")
        assert (seed.model.source, seed.model.repo, seed.model.name) == ("hub", "o/r:v1", "net")
        assert seed.model.download is None


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "shape"),
        [
            ("{resize_multiple: 32}", [1, 3, 224, 224]),
            ("{resize_multiple: 100}", [1, 3, 300, 300]),
            ("{resize: [100, 60], resize_multiple: 32}", [1, 3, 128, 64]),
        ],
    )
    def test_sizes_are_rounded_up_to_the_multiple(self, options: str, shape: list[int]) -> None:
        assert parse(f"from: library\nmodel: resnet18\noptions: {options}\n").inputs["image"].shape == shape

    def test_what_a_seed_does_not_have_is_named_and_not_dropped_in_silence(self) -> None:
        seed = parse("from: library\nmodel: resnet18\noptions: {magic: 1}\nverification: {layers: 3}\nextra: 1\n")
        assert seed.about.endswith("not used: extra, options.magic, verification.layers")

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("from: nowhere\n", "from: expected one of library, repo, builder, hub, got 'nowhere'"),
            ("from: library\n", "model: expected the name of a torchvision model, got nothing"),
            ("from: repo\nrepo: {path: x}\n", "repo.class: expected text, got nothing"),
            ("from: library\nmodel: resnet18\ninputs: cat.png\n", "inputs: expected a list of image files"),
        ],
    )
    def test_faults_are_told_in_the_studys_keys(self, text: str, said: str) -> None:
        with pytest.raises(SeedError) as caught:
            parse(text)
        assert any(said in problem for problem in caught.value.problems)
