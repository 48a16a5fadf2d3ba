"""A model runs by its name alone; `xbfuzz seeds` lists, writes and checks, as a user sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from campaign_runs import ROOT, TARGET, xbfuzz
from onnx import TensorProto, helper, numpy_helper, save

from fuzzer.campaign.check import check
from fuzzer.cli import main
from fuzzer.models.named import seeds_named
from fuzzer.models.offer import ask_builder
from fuzzer.seeds import Seed, load_seed
from fuzzer.seeds.given import Example

NETS = '''from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    example_inputs = (torch.ones(2, 6), torch.tensor([[0, 3], [1, 2]]))

    def __init__(self, classes=3):
        super().__init__()
        print("built")
        self.linear, self.table = nn.Linear(6, classes), nn.Embedding(4, 5)

    def forward(self, x, ids, scale=None):
        return {"logits": self.linear(x), "found": self.table(ids)}


def trained():
    net = Net()
    for number, parameter in enumerate(net.parameters()):
        parameter.data = torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter)
    return net


class Bare(nn.Module):
    def forward(self, x, *, mask):
        return x * mask


class Constant(nn.Module):
    def forward(self, x):
        return torch.zeros(3)


class Five(Constant):
    example_inputs = 5


class Slow(nn.Module):
    """Takes its time where it is the target: when it is built there, after two others were."""

    def __init__(self):
        super().__init__()
        with open(Path(__file__).with_name("builds"), "ab") as stream:
            stream.write(b".")
            while stream.tell() > 2:
                pass

    def forward(self, x):
        return x + 1


class OnTarget(nn.Module):
    def forward(self, x):
        if torch.get_num_threads() == 2:
            raise ValueError("no such kernel")
        return x + 1


def dies():
    import os
    os._exit(7)


def keyword_examples():
    net = Bare()
    net.example_inputs = lambda: {"mask": torch.tensor([True, False]), "x": torch.tensor([250.0, 9.0])}
    return net
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of somebody's with a package that xbfuzz knows nothing of."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "__init__.py").touch()
    (tmp_path / "theirs" / "nets.py").write_text(NETS)
    return tmp_path


class Said(NamedTuple):
    status: int
    out: str
    err: str


Say = Callable[..., Said]


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command line in this process, in the project's folder; its child processes find xbfuzz."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def call(*args: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err)

    return call


def onnx_file(path: Path) -> Path:
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((5, 3)).astype("float32"), "w")
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("x", 5), ("y", 3))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", sides[:1], sides[1:], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


# ---- one line


def test_a_module_in_somebodys_package_is_fuzzed_with_one_line(project: Path, cache: Path) -> None:
    done = xbfuzz(
        "run", "theirs.nets:Net", "--max-execs", "6", "--backend", TARGET, "--json", "--cache", cache, cwd=project
    )
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcomes"], found["executions"]) == (0, {"pass": 6}, 6), done.stderr
    assert "xbfuzz seeds new theirs.nets:Net" in done.stderr


def test_an_onnx_file_alone_is_fuzzed_with_one_line(tmp_path: Path, cache: Path) -> None:
    onnx_file(tmp_path / "my net.onnx")
    done = xbfuzz("run", "my net.onnx", "--max-execs", "4", "--json", "--cache", cache, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcomes"]) == (0, {"pass": 4}), done.stderr
    assert [(each["backend"], each["evidence"]["exporter"]) for each in found["targets"]] == [
        ("onnxruntime:cpu", "file")
    ]
    assert "xbfuzz seeds new 'my net.onnx'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resnet18"], ["there is no such file or folder", "did you mean 'torchvision:resnet18'"]),
        (["torchvision:resnt18"], ["did you mean 'resnet18'"]),
        (["thiers.nets:Net"], ["no module 'thiers.nets'"]),
        (["theirs.nets:Nte"], ["has no attribute 'Nte'"]),
        (["theirs.nets:dies"], ["its process ended with status 7"]),
        (["theirs.nets:Bare"], ["forward takes x, mask", "--input x=1x3x64x64"]),
        (["theirs.nets:Bare", "--input", "x=2"], ["forward takes x, mask", "only x"]),
        (
            ["theirs.nets:Five"],
            ["theirs.nets:Five: `example_inputs` is 5; expected a tensor, a list of tensors, a mapping"],
        ),
        (["theirs.nets:Net", "--input", "x=2xb"], ["'2xb' is no shape"]),
        (["gone.onnx"], ["gone.onnx", "No such file"]),
        (["theirs", "--input", "x=2"], ["--input", "goes with the name of a model"]),
    ],
)
def test_a_name_that_is_none_is_one_clear_line(here: Say, project: Path, words: list[str], said: list[str]) -> None:
    done = here("run", *words, "--max-execs", "1")
    (line,) = done.err.splitlines()
    assert (done.status, done.out) == (2, "")
    assert line.startswith("xbfuzz: ")
    for part in said:
        assert part in line
    assert not (project / "runs").exists()


# ---- what a builder offers


def test_a_builder_tells_its_arguments_and_examples_whatever_it_prints(project: Path, here: Say) -> None:
    offer = ask_builder("theirs.nets:Net", project)
    assert (offer.arguments, offer.needed) == (["x", "ids", "scale"], ["x", "ids"])
    assert offer.examples == [Example("x", [2, 6], "float32", 1.0, 1.0), Example("ids", [2, 2], "int64", 0.0, 3.0)]
    assert not offer.own_weights
    assert ask_builder("nets:trained", project / "theirs").own_weights


def test_examples_by_name_go_by_name(here: Say) -> None:
    ((seed,), models) = seeds_named(["theirs/nets.py:keyword_examples"])
    assert models == ["theirs/nets.py:keyword_examples"]
    assert seed.arguments == {"args": [], "kwargs": {"mask": "mask", "x": "x"}}
    assert (seed.inputs["mask"].kind, seed.inputs["x"].range) == ("mask", (9.0, 250.0))


def test_seeds_and_models_come_together_and_two_of_one_name_get_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx_file(tmp_path / "a.onnx")
    (tmp_path / "sub").mkdir()
    onnx_file(tmp_path / "sub" / "a.onnx")
    (tmp_path / "a.yaml").write_text("model: {source: onnx, path: a.onnx}\ninputs: {x: {kind: floats, shape: [1, 5]}}")
    monkeypatch.chdir(tmp_path)
    seeds, models = seeds_named(["sub/a.onnx", "a.yaml", "a.onnx"])
    assert [seed.name for seed in seeds] == ["a", "a-2", "a-3"]
    assert models == ["sub/a.onnx", "a.onnx"]


# ---- new, list


def test_a_written_seed_can_be_listed_and_is_not_overwritten(here: Say, project: Path) -> None:
    out = project / "seeds" / "net.yaml"
    done = here("seeds", "new", "theirs.nets:trained", "--out", out)
    assert (done.status, done.out) == (0, "")
    assert f"xbfuzz seeds check {out}" in done.err
    seed = load_seed(out)
    assert (seed.model.weights.kind, seed.inputs["ids"].range) == ("default", (0.0, 4.0))
    assert "exists already" in here("seeds", "new", "theirs.nets:Net", "--out", out).err
    assert here("seeds", out).out.split()[:3] == ["trained", "builder", "tensors"]
    assert here("seeds", "list", out, "--json").out == here("seeds", out, "--json").out


def test_a_configuration_of_the_study_becomes_a_seed(here: Say, project: Path) -> None:
    (project / "study.yaml").write_text("from: library\nmodel: squeezenet1_1\nweights: calibrated\n")
    (project / "kept.yaml").write_text(here("seeds", "new", "study.yaml").out)
    kept = load_seed(project / "kept.yaml")
    assert (kept.model.source, kept.model.name) == ("library", "squeezenet1_1")
    assert kept.inputs["image"].shape == [1, 3, 224, 224]


# ---- check


def seed_of(project: Path, builder: str, backends: list[str], **changes: Any) -> Seed:
    data = {
        "name": builder.lower(),
        "model": {"source": "builder", "path": "theirs", "builder": f"nets:{builder}"},
        "inputs": {"x": {"kind": "floats", "shape": [2, 3]}},
        "backends": backends,
    }
    return Seed.model_validate(data | changes).at(project)


def statuses(found: Any) -> dict[str, str]:
    return {each.backend: each.status for each in found.backends}


@pytest.mark.slow
def test_a_check_tells_who_runs_who_raises_and_who_is_not_here(project: Path, where: Any) -> None:
    seed = seed_of(project, "OnTarget", ["eager:cpu?threads=2", "eager:cuda", "onnxruntime:cpu"])
    found = check(seed, where, 60.0)
    assert found.fuzzable
    assert len(found.caught) > 2
    assert found.missed == []
    assert statuses(found) == {
        "eager:cpu": "ok",
        "oracle:cpu": "ok",
        "eager:cpu?threads=2": "raises",
        "eager:cuda": "unavailable",
        "onnxruntime:cpu": "ok",
    }
    by_name = {each.backend: each for each in found.backends}
    assert "ValueError: no such kernel" in by_name["eager:cpu?threads=2"].reason
    assert by_name["onnxruntime:cpu"].evidence["exporter"]
    assert json.loads(json.dumps(found.to_json()))["backends"][0]["role"] == "reference"


def test_outputs_that_tell_nothing_are_found_before_any_target_is_tried(project: Path, where: Any) -> None:
    found = check(seed_of(project, "Constant", ["eager:cpu?threads=2"]), where, 60.0)
    assert not found.fuzzable
    assert found.reason.startswith("vacuous")
    assert list(found.vacuous) == ["$"]
    assert statuses(found)["eager:cpu?threads=2"] == "not-tried"


@pytest.mark.slow
def test_a_preparation_past_the_deadline_is_too_slow_and_what_it_does_is_told(project: Path, where: Any) -> None:
    said: list[tuple[str, float]] = []
    found = check(seed_of(project, "Slow", ["eager:cpu?threads=2"]), where, 6.0, say=lambda *words: said.append(words))
    (target,) = [each for each in found.backends if each.role == "target"]
    assert (target.status, found.fuzzable) == ("too-slow", False)
    assert "6 s of CPU time" in target.reason
    assert {"eager:cpu and oracle:cpu", "the self-test of the comparison", "eager:cpu?threads=2"} == {
        w for w, _ in said
    }
    assert max(seconds for what, seconds in said if what == "eager:cpu?threads=2") > 1


def test_the_command_exits_with_one_where_a_seed_cannot_be_fuzzed(project: Path, cache: Path) -> None:
    for name in ("Constant", "OnTarget"):  # the latter raises with two threads only
        (project / f"{name}.yaml").write_text(
            f"model: {{source: builder, path: theirs, builder: 'nets:{name}'}}\n"
            "inputs: {x: {kind: floats, shape: [2, 3]}}\nbackends: ['eager:cpu?threads=3']\n"
        )
    done = xbfuzz("seeds", "check", "Constant.yaml", "OnTarget.yaml", "--json", "--cache", cache, cwd=project)
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (1, False)
    assert {each["seed"]: each["fuzzable"] for each in found["seeds"]} == {"Constant": False, "OnTarget": True}
    assert "1 of 2: Constant: cannot be fuzzed" in done.stderr
    assert "2 of 2: OnTarget: can be fuzzed" in done.stderr
