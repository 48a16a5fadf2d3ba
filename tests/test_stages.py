"""Stages: a part of a model as a seed of its own, on inputs captured from the whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuzzer.campaign import Campaign
from fuzzer.campaign.plan import Options, make_plan
from fuzzer.campaign.stages import with_stages
from fuzzer.crashes.replay import CrashState, replay
from fuzzer.crashes.store import list_crashes, load_crash
from fuzzer.crashes.trust import needs_trust
from fuzzer.errors import ModelError, SeedError, XbfuzzError
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.models.stage import captured, stage_module
from fuzzer.place import surroundings
from fuzzer.seeds import Seed, load_seed, seed_from_json, seed_to_json
from fuzzer.seeds.stages import whole, without_files

TWO_PARTS = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, features, *, scale: float = 1.0):
        return [self.linear(item) * scale for item in features]


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(6, 4)
        self.head = Head()
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        # The backbone takes its time, and the number of rows that reach the head depends on what it is given.
        for _ in range(SLOW):
            x = x + 0.0 * torch.linalg.inv(torch.eye(300)).sum()
        features = self.backbone(x).relu()
        rows = features[features.sum(1) > 0.3]
        return self.finish(self.head([features, rows], scale=2.0), 0.1)

    def finish(self, outputs, threshold):
        scores = torch.sigmoid(outputs[0])
        best, labels = scores.max(1)
        keep = best > threshold
        return {"scores": best[keep], "labels": labels[keep]}
"""

SEED = """
name: two
model: {source: builder, path: ., builder: two:Detector}
inputs: {x: {kind: floats, shape: [12, 6]}}
backends: [BACKENDS]
stages:
  head: head
  finish: {module: finish, task: {kind: tensors}, kinds: {outputs_0: scores}}
"""


def two(folder: Path, *, slow: int = 0, backends: str = "onnxruntime:cpu", more: str = "") -> Seed:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two.py").write_text(TWO_PARTS.replace("SLOW", str(slow)))
    (folder / "two.yaml").write_text(SEED.replace("BACKENDS", f'"{backends}"') + more)
    return load_seed(folder / "two.yaml")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seed]:
    folder = tmp_path_factory.mktemp("stages")
    return {seed.name: seed for seed in with_stages([two(folder)], folder / "cache")}


def test_a_seed_is_followed_by_its_stages(parts: dict[str, Seed]) -> None:
    assert list(parts) == ["two", "two.head", "two.finish"]
    assert whole(parts["two.head"]) == parts["two"].model_copy(update={"stages": {}})
    assert parts["two.finish"].task.kind == "tensors"
    assert parts["two.head"].backends == parts["two"].backends


@pytest.mark.parametrize("draw", [0, 1])
def test_the_parts_one_after_the_other_are_the_whole(parts: dict[str, Seed], draw: int) -> None:
    """The head's captured inputs through the head, and its answer through the rest, give the whole model's answer."""
    sample = base_sample(parts["two"], draw)
    module = build_model(parts["two"], None).module
    features = module.backbone(sample["x"]).relu()  # type: ignore[union-attr, operator]
    given = base_sample(parts["two.head"], draw)
    assert torch.equal(given["features_0"], features)
    head = build_model(parts["two.head"], None)
    args, kwargs = head.call(given)
    assert kwargs == {"scale": 2.0}
    made = head.module(*args, **kwargs)  # type: ignore[misc]
    finish = build_model(parts["two.finish"], None)
    args, kwargs = finish.call(base_sample(parts["two.finish"], draw))
    assert torch.equal(args[0][0], made[0])
    answer, wanted = finish.module(*args, **kwargs), module(sample["x"])  # type: ignore[misc]
    assert {name: value.tolist() for name, value in answer.items()} == {n: v.tolist() for n, v in wanted.items()}


def test_a_size_that_differs_between_base_inputs_is_a_dimension(parts: dict[str, Seed]) -> None:
    module = build_model(parts["two"], None).module
    counts = []
    for draw in range(8):
        features = module.backbone(base_sample(parts["two"], draw)["x"]).relu()  # type: ignore[union-attr, operator]
        counts.append(int((features.sum(1) > 0.3).sum()))
    assert len(set(counts)) > 1
    spec = parts["two.head"].inputs["features_1"]
    assert spec.shape == ["n0", 4]
    assert (parts["two.head"].dims["n0"].size, parts["two.head"].dims["n0"].max) == (counts[0], 2 * max(counts))
    assert base_sample(parts["two.head"], 1)["features_1"].shape[0] == counts[0]


def test_an_input_has_the_range_that_was_captured_and_the_kind_that_the_seed_says(parts: dict[str, Seed]) -> None:
    spec = parts["two.head"].inputs["features_0"]
    samples = torch.cat([base_sample(parts["two.head"], draw)["features_0"] for draw in range(8)])
    assert spec.range == (float(samples.min()), float(samples.max()))
    assert parts["two.finish"].inputs["outputs_0"].kind == "scores"


def test_the_inputs_are_captured_once(tmp_path: Path) -> None:
    seed = two(tmp_path)
    first = with_stages([seed], tmp_path / "cache")
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")}
    assert with_stages([seed], tmp_path / "cache") == first
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")} == times
    (tmp_path / "two.py").write_text((tmp_path / "two.py").read_text() + "\n# changed\n")
    with_stages([seed], tmp_path / "cache")
    assert len(list((tmp_path / "cache").rglob("seed.json"))) == 4  # the code is part of the key


BAD = {
    "heed": ("heed", "no submodule and no method 'heed'; did you mean 'head'?"),
    "idle": ("unused", "it is not called on base inputs"),
    "missing": ("missing.linear", "no submodule 'missing.linear'"),
    "kinds": ("{module: finish, kinds: {boxes: boxes}}", "'boxes' is no input of finish; it has outputs_0"),
}


def test_a_stage_without_inputs_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    more = "".join(f"  {name}: {stage}\n" for name, (stage, _) in BAD.items())
    found = {seed.name: seed for seed in with_stages([two(tmp_path, more=more)], tmp_path / "cache")}
    reasons = {name: str(found[f"two.{name}"].unavailable) for name in BAD}
    assert [name for name, (_, said) in BAD.items() if said not in reasons[name]] == []
    assert {name for name, seed in found.items() if seed.unavailable} == {f"two.{name}" for name in BAD}
    planned = make_plan([found["two.idle"]], Options(tmp_path, max_execs=1)).seeds[0]
    assert planned.unavailable == reasons["idle"]
    assert planned.runnable == []


def test_a_model_that_dies_while_it_is_captured_is_a_reason(tmp_path: Path) -> None:
    seed = two(tmp_path)
    (tmp_path / "two.py").write_text("import os\nos._exit(3)\n")
    head, finish = with_stages([seed], tmp_path / "cache")[1:]
    assert "ended with 3" in str(head.unavailable)
    assert "ended with 3" in str(finish.unavailable)


def test_a_stage_may_not_take_another_seeds_name(tmp_path: Path) -> None:
    seed = two(tmp_path)
    with pytest.raises(XbfuzzError, match=r"two\.head is the name of a seed and of a stage"):
        with_stages([seed, seed.model_copy(update={"name": "two.head", "stages": {}}).at(seed.base)], tmp_path / "c")


def test_a_stage_is_kept_in_a_crash_without_files_of_this_machine(parts: dict[str, Seed]) -> None:
    kept = without_files(parts["two.head"])
    assert all(not spec.files and spec.key is None for spec in kept.inputs.values())
    assert seed_from_json(json.dumps(seed_to_json(kept)), kept.base) == kept
    module = build_model(kept, None).module
    assert isinstance(module, nn.Module)
    assert set(module.state_dict()) == {"linear.weight", "linear.bias"}
    assert without_files(parts["two"]) is parts["two"]


@pytest.mark.slow
def test_a_campaign_finds_a_stages_fault_which_replays(tmp_path: Path) -> None:
    """The head drops NaN where it runs with two threads, which the target does and the reference does not."""
    seed = two(tmp_path, backends="eager:cpu?threads=2")
    code = (tmp_path / "two.py").read_text()
    broken = "[self.linear(i.nan_to_num(0.0) if torch.get_num_threads() == 2 else i) * scale for i in features]"
    (tmp_path / "two.py").write_text(code.replace("[self.linear(item) * scale for item in features]", broken))
    assert broken in (tmp_path / "two.py").read_text()
    seeds = [one for one in with_stages([seed], tmp_path / "cache") if one.name == "two.head"]
    options = Options(tmp_path / "out", max_execs=40, reduce_s=0.0, diagnose_s=0.0)
    summary = Campaign(seeds, options, surroundings(tmp_path / "cache")).run()
    assert summary.seeds[0]["stage"].startswith("head of two alone: its inputs are mutations")
    assert {finding["seed"] for finding in summary.findings} == {"two.head"}, summary.lines()
    folders = list_crashes(tmp_path / "out" / "crashes")
    assert folders
    shutil.rmtree(tmp_path / "cache")  # a crash brings its own inputs
    crash = load_crash(folders[0])
    assert crash.id.startswith("two.head-eager-cpu-")
    assert any(text.startswith("head of two alone") for text in crash.evidence)
    assert "cache" not in (folders[0] / "crash.yaml").read_text()
    assert needs_trust(crash, tmp_path) is None
    assert "two.py" in str(needs_trust(crash, tmp_path / "elsewhere"))
    assert replay(crash, surroundings(tmp_path / "cache")).state is CrashState.REPRODUCES


def test_what_is_no_plain_value_cannot_be_given_to_a_stage(tmp_path: Path) -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor, how: object) -> Tensor:
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, object())  # type: ignore[no-any-return]

    model = build_model(two(tmp_path), None)
    object.__setattr__(model, "module", Outer())
    with pytest.raises(ModelError, match="its argument how is a object"):
        captured(model, "inner", [base_sample(model.seed, 0)])


def test_watching_leaves_the_module_as_it_was(tmp_path: Path) -> None:
    model = build_model(two(tmp_path), None)
    assert model.module is not None
    before = set(model.module.__dict__), len(model.module.get_submodule("head")._forward_pre_hooks)
    for path in ("head", "finish"):
        captured(model, path, [base_sample(model.seed, 0)])
    assert (set(model.module.__dict__), len(model.module.get_submodule("head")._forward_pre_hooks)) == before
    assert stage_module(model.module, "head") is model.module.get_submodule("head")


def test_stages_written_wrongly_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SeedError, match="modul"):
        two(tmp_path, more="  bad: {modul: head}\n")
    with pytest.raises(SeedError, match="source: stage"):
        seed_from_json(
            {"name": "s", "model": {"source": "stage"}, "inputs": {"x": {"kind": "floats", "shape": [1]}}}, tmp_path
        )
