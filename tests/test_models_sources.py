"""Models from repositories, torch.hub, exported programs and other libraries, and what keeps their code in bounds."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fuzzer.backends.registry import backend_class, parse
from fuzzer.crashes.trust import foreign_program
from fuzzer.errors import ModelError, SeedError
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.seeds import Seed, seed_from_text
from fuzzer.trees import flatten

IMAGE = {"x": {"kind": "image", "shape": [1, 3, 32, 32]}}
TOKENS = {"x": {"kind": "tokens", "shape": [1, 6], "range": [0, 50]}}


def seed_of(model: dict[str, Any], base: Path = Path("."), inputs: dict[str, Any] | None = None) -> Seed:
    found = inputs or {"x": {"kind": "floats", "shape": [2, 4]}}
    return Seed.model_validate({"name": "s", "model": model, "inputs": found}).at(base)


def built(seed: Seed) -> nn.Module:
    module = build_model(seed, None).module
    assert module is not None
    return module


def repository(root: Path, *, width: int = 3) -> Path:
    """A repository as they are: packages that import one another, a file read from the working directory."""
    (root / "models").mkdir(parents=True)
    (root / "models" / "net.py").write_text(
        "import torch\nfrom torch import nn\nfrom utils.sizes import width\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, bias=True):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(4, width('sizes.txt'), bias=bias)\n"
        "    def forward(self, x):\n"
        "        from utils.late import twice\n"
        "        return twice(self.fc(x))\n"
    )
    (root / "utils").mkdir()
    (root / "utils" / "__init__.py").write_text("")
    (root / "utils" / "sizes.py").write_text("def width(name):\n    return int(open(name).read())\n")
    (root / "utils" / "late.py").write_text("def twice(x):\n    return 2 * x\n")
    (root / "sizes.txt").write_text(str(width))
    return root


class TestRepositories:
    def test_a_class_in_a_repository_is_built_in_its_folder(self, tmp_path: Path) -> None:
        repository(tmp_path / "repo")
        before = os.getcwd()
        spec = {"source": "repo", "path": "repo", "builder": "models.net:Net", "args": {"bias": False}}
        module = built(seed_of(spec, tmp_path))
        assert os.getcwd() == before
        assert [tuple(p.shape) for p in module.parameters()] == [(3, 4)]

    def test_what_it_imports_when_it_runs_is_found(self, tmp_path: Path) -> None:
        spec = {"source": "repo", "path": str(repository(tmp_path / "repo")), "builder": "models.net:Net"}
        module = built(seed_of(spec))
        x = torch.ones(1, 4)
        assert torch.equal(module(x), 2 * module.fc(x))

    def test_two_repositories_with_the_same_names_are_kept_apart(self, tmp_path: Path) -> None:
        shapes = []
        for width in (3, 5):
            folder = repository(tmp_path / str(width), width=width)
            module = built(seed_of({"source": "repo", "path": str(folder), "builder": "models.net:Net"}))
            shapes.append(module.fc.out_features)
        assert shapes == [3, 5]

    def test_weights_come_from_a_wrapped_checkpoint(self, tmp_path: Path) -> None:
        repository(tmp_path / "repo")
        state = {"module.fc.weight": torch.ones(3, 4), "module.fc.bias": torch.zeros(3)}
        torch.save({"epoch": 3, "ema": {"state_dict": state}}, tmp_path / "last.pt")
        spec = {"source": "repo", "path": "repo", "builder": "models.net:Net", "weights": "last.pt"}
        assert torch.equal(built(seed_of(spec, tmp_path)).fc.weight, torch.ones(3, 4))

    def test_a_failed_import_leaves_nothing_half_loaded(self, tmp_path: Path) -> None:
        folder = repository(tmp_path / "repo")
        late = folder / "utils" / "sizes.py"
        good = late.read_text()
        late.write_text("raise RuntimeError('broken')\n")
        seed = seed_of({"source": "repo", "path": str(folder), "builder": "models.net:Net"})
        with pytest.raises(ModelError, match=r"models\.net:Net.*RuntimeError: broken \(sizes\.py, line 1\)"):
            build_model(seed, None)
        late.write_text(good)
        assert built(seed).fc.out_features == 3

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="there is no folder"):
            build_model(seed_of({"source": "repo", "path": "gone", "builder": "a:b"}, tmp_path), None)


class TestContainment:
    """One hostile act each; whatever it is, the process is as before."""

    @pytest.mark.parametrize(
        "act",
        [
            "os.environ['XB_TEST'] = '1'; os.environ.pop('HOME', None)",
            "import warnings; warnings.simplefilter('error')",
            "import logging; logging.disable(50); logging.root.setLevel(1); logging.basicConfig(level=1)",
            "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
            "sys.argv.append('x'); sys.stdin.read()",
            "torch.set_default_dtype(torch.float16)",
            "os.chdir('/'); sys.path.clear()",
        ],
    )
    def test_the_process_is_left_as_it_was(self, tmp_path: Path, act: str) -> None:
        (tmp_path / "rude.py").write_text(
            f"import os, sys\nimport torch\nfrom torch import nn\n{act}\ndef make():\n    {act}\n    return nn.ReLU()\n"
        )
        before = state()
        built(seed_of({"source": "builder", "path": str(tmp_path), "builder": "rude:make"}))
        assert state() == before

    def test_code_that_parses_the_command_line_sees_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["xbfuzz", "run", "--json"])
        (tmp_path / "cli.py").write_text(
            "import argparse\nfrom torch import nn\np = argparse.ArgumentParser()\np.add_argument('--n', default=2)\n"
            "args = p.parse_args()\ndef make():\n    return nn.Linear(4, args.n)\n"
        )
        assert built(seed_of({"source": "builder", "path": str(tmp_path), "builder": "cli:make"})).out_features == 2

    def test_code_that_asks_gets_no_answer(self, tmp_path: Path) -> None:
        (tmp_path / "asks.py").write_text("import torch\ndef make():\n    input('download? [y/N] ')\n")
        with pytest.raises(ModelError, match="EOFError"):
            build_model(seed_of({"source": "builder", "path": str(tmp_path), "builder": "asks:make"}), None)


def state() -> dict[str, Any]:
    import logging
    import signal
    import warnings

    return {
        "environ": dict(os.environ),
        "filters": list(warnings.filters),
        "logging": (logging.root.level, logging.root.manager.disable, list(logging.root.handlers)),
        "signal": signal.getsignal(signal.SIGINT),
        "argv": list(sys.argv),
        "stdin": sys.stdin,
        "dtype": torch.get_default_dtype(),
        "folder": os.getcwd(),
        "path": list(sys.path),
    }


class TestHub:
    HUBCONF = (
        "dependencies = ['torch']\nimport torch\nfrom torch import nn\n"
        "def small(width=2, pretrained=False):\n"
        "    if pretrained:\n"
        "        torch.hub.load_state_dict_from_url('https://example.invalid/w.pt', model_dir='.')\n"
        "    return nn.Linear(4, width)\n"
    )

    def test_an_entry_point_of_a_local_folder_is_called(self, tmp_path: Path) -> None:
        (tmp_path / "hubconf.py").write_text(self.HUBCONF)
        spec = {"source": "hub", "path": ".", "name": "small", "args": {"width": 5}}
        assert built(seed_of(spec, tmp_path)).out_features == 5

    def test_a_cached_repository_is_used_without_a_network(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        monkeypatch.setattr(torch.hub, "_hub_dir", None)
        folder = tmp_path / "hub" / "owner_nets_v1.0"
        folder.mkdir(parents=True)
        (folder / "hubconf.py").write_text(self.HUBCONF)
        assert built(seed_of({"source": "hub", "repo": "owner/nets:v1.0", "name": "small"})).out_features == 2
        with pytest.raises(ModelError, match=r"no copy in .*`download: true` fetches it"):
            build_model(seed_of({"source": "hub", "repo": "owner/other", "name": "small"}), None)

    def test_weights_are_not_fetched_unasked(self, tmp_path: Path) -> None:
        (tmp_path / "hubconf.py").write_text(self.HUBCONF)
        spec = {"source": "hub", "path": str(tmp_path), "name": "small", "args": {"pretrained": True}}
        with pytest.raises(ModelError, match=r"asks for https://example\.invalid/w\.pt; `download: true` allows it"):
            build_model(seed_of(spec), None)

    def test_an_unknown_entry_point_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "hubconf.py").write_text(self.HUBCONF)
        with pytest.raises(ModelError, match="nothing_here") as caught:
            build_model(seed_of({"source": "hub", "path": str(tmp_path), "name": "nothing_here"}), None)
        assert "\n" not in str(caught.value)


class TestExported:
    def save(self, path: Path) -> nn.Module:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).eval()
        torch.export.save(torch.export.export(module, (torch.randn(2, 4),)), path)
        return module

    def test_the_program_answers_as_the_module_did(self, tmp_path: Path) -> None:
        module = self.save(tmp_path / "m.pt2")
        seed = seed_of({"source": "exported", "path": "m.pt2"}, tmp_path)
        x = base_sample(seed, 0)["x"]
        assert torch.equal(built(seed)(x), module(x))

    def test_a_program_is_exported_to_onnx_though_its_mode_cannot_be_set(self, tmp_path: Path) -> None:
        module = self.save(tmp_path / "m.pt2")
        seed = seed_of({"source": "exported", "path": "m.pt2"}, tmp_path)
        example = base_sample(seed, 0)
        target = backend_class("onnxruntime")(parse("onnxruntime:cpu"))
        target.prepare(build_model(seed, None), example)
        assert (target.run(example) - module(example["x"])).abs().max() < 1e-6

    def test_other_files_are_refused_in_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "m.pt2").write_bytes(b"no archive")
        seed = seed_of({"source": "exported", "path": "m.pt2"}, tmp_path)
        with pytest.raises(ModelError, match="is no exported program") as caught:
            build_model(seed, None)
        assert "\n" not in str(caught.value)

    def test_one_from_outside_the_project_asks_for_trust(self, tmp_path: Path) -> None:
        (tmp_path / "project").mkdir()
        seed = seed_of({"source": "exported", "path": "m.pt2"}, tmp_path)
        assert "which can run code and is outside" in str(foreign_program(seed, tmp_path / "project"))
        assert foreign_program(seed, tmp_path) is None

    def test_random_weights_are_refused(self, tmp_path: Path) -> None:
        self.save(tmp_path / "m.pt2")
        seed = seed_of({"source": "exported", "path": "m.pt2", "weights": "random"}, tmp_path)
        with pytest.raises(ModelError, match="brings its own weights"):
            build_model(seed, None)


class TestLibraries:
    def test_a_library_that_is_not_installed_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "timm", None)  # what an import then finds is what it finds without timm
        spec = {"source": "library", "library": "timm", "name": "resnet10t", "weights": "random"}
        with pytest.raises(ModelError, match=r"the package timm is not installed .*; pip install xbfuzz\[timm\]"):
            build_model(seed_of(spec, inputs=IMAGE), None)

    @pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs timm")
    def test_timm_models_are_built_without_a_download(self) -> None:
        spec = {"source": "library", "library": "timm", "name": "resnet10t", "args": {"num_classes": 7}}
        seed = seed_of(spec | {"weights": "calibrated"}, inputs=IMAGE)
        outputs = [built(seed)(base_sample(seed, draw)["x"]) for draw in range(2)]
        assert outputs[0].shape == (1, 7)
        assert (outputs[0] - outputs[1]).abs().max() > 0.1
        with pytest.raises(ModelError, match="nothing is downloaded for timm; give `weights: calibrated`"):
            build_model(seed_of(spec, inputs=IMAGE), None)
        with pytest.raises(ModelError, match="timm has no model 'resnet10tt'; did you mean 'resnet10t'"):
            build_model(seed_of(spec | {"name": "resnet10tt"}, inputs=IMAGE), None)

    @pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
    @pytest.mark.parametrize(("name", "leaf"), [("bert", ".last_hidden_state"), ("BertForMaskedLM", ".logits")])
    def test_transformers_are_built_from_a_configuration(self, name: str, leaf: str) -> None:
        small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        args = {**small, "vocab_size": 50}
        spec = {"source": "library", "library": "transformers", "name": name, "args": args, "weights": "calibrated"}
        seed = seed_of(spec, inputs=TOKENS)
        module = built(seed)
        found = [flatten(module(base_sample(seed, draw)["x"]))[leaf] for draw in range(2)]
        assert all(isinstance(value, torch.Tensor) for value in found)
        assert isinstance(found[0], torch.Tensor)
        assert isinstance(found[1], torch.Tensor)
        assert (found[0] - found[1]).abs().max() > 0.1
        with pytest.raises(ModelError, match="transformers has no model 'bertt'; did you mean 'bert'"):
            build_model(seed_of(spec | {"name": "bertt"}, inputs=TOKENS), None)


class TestSchema:
    @pytest.mark.parametrize(
        ("model", "said"),
        [
            ("{source: repo, builder: 'a:b'}", "`source: repo` needs `path`"),
            ("{source: hub, name: x}", "`source: hub` needs either `path` or `repo`"),
            ("{source: hub, name: x, path: p, repo: a/b}", "`source: hub` needs either `path` or `repo`"),
            ("{source: hub, name: x, repo: nothing}", "expected owner/name or owner/name:ref, got 'nothing'"),
            ("{source: library, name: x, download: true}", "`download` goes with `source: hub` only"),
            ("{source: onnx, path: p, args: {a: 1}}", "`source: onnx` takes no `args`"),
        ],
    )
    def test_fields_that_do_not_go_with_the_source_are_refused(self, model: str, said: str) -> None:
        text = f"model: {model}\ninputs: {{x: {{kind: floats, shape: [1]}}}}\n"
        with pytest.raises(SeedError, match=r"model") as caught:
            seed_from_text(text, Path("."), name="s")
        assert any(said in problem for problem in caught.value.problems)
