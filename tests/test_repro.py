"""`repro.py` runs alone: in a process of its own that cannot import this project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from crash_samples import POOL, builder_seed, pool_crash

from fuzzer.crashes.crash import Crash, make_crash
from fuzzer.crashes.repro import render_repro
from fuzzer.crashes.store import write_crash
from fuzzer.diagnose import provisional
from fuzzer.seeds import Seed
from fuzzer.verify.verdict import Difference, Kind, LeafStats, Outcome, Verdict

torch.set_num_threads(1)


def run(script: Path) -> subprocess.CompletedProcess[str]:
    # -I and another folder: the script must not find the project by accident.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-I", str(script)], cwd="/", env=environment, capture_output=True, text=True, timeout=250
    )


def made(seed: Seed, kind: Kind, sample: dict[str, torch.Tensor], target: str, **fields: Any) -> Crash:
    """A crash of one difference at the lone leaf."""
    leaf = fields.pop("path", "$")
    stats = fields.pop("stats", [])
    verdict = Verdict(Outcome.MISMATCH, 1, 1, [Difference(leaf, kind, f"seen {kind}", **fields)], stats)
    return make_crash(seed, target, verdict, provisional(verdict, None, None, None, sample), sample)


def test_a_difference_that_is_there_exits_1_and_shows_both_answers_and_the_true_one(tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "seeds")))
    (tmp_path / "seeds" / "pool.py").unlink()  # the script has the model's source in it
    done = run(home / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[0, 0, 0, 0]: reference nan, target 5.0, float64 nan" in done.stdout
    assert f"torch {torch.__version__}" in done.stdout


def test_a_difference_that_is_gone_exits_0(tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "seeds"), "aot_eager:cpu"))
    done = run(home / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the difference is gone" in done.stdout


def test_a_device_that_is_not_here_exits_2(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    home = write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "seeds"), "eager:cuda"))
    done = run(home / "repro.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot run here: PyTorch finds no CUDA device" in done.stdout


def test_a_plug_in_backend_exits_2(tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "seeds"), "mine:cpu"))
    done = run(home / "repro.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "mine:cpu is a plug-in" in done.stdout


EMBED = """import torch


class Embed(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.table = torch.nn.Embedding(5, 2)
        self.scale = scale

    def forward(self, index):
        return {"out": (self.table(index) * self.scale, None)}
"""


def embed_seed(folder: Path) -> Seed:
    return builder_seed(
        folder,
        EMBED,
        "embed:Embed",
        model={"source": "builder", "path": ".", "builder": "embed:Embed", "args": {"scale": 2.0}},
        inputs={"index": {"kind": "tokens", "shape": ["n"], "range": [0, 5]}},
        dims={"n": {"size": 3, "min": 2, "max": 6}},
        call={"args": [], "kwargs": {"index": "index"}},
    )


def test_an_exception_on_one_side_with_weights_keyword_arguments_and_nested_outputs(tmp_path: Path) -> None:
    crash = made(
        embed_seed(tmp_path / "seeds"), Kind.EXCEPTION, {"index": torch.tensor([2, -2, 4, 0])}, "onnxruntime:cpu"
    )
    weights = {"table.weight": torch.arange(10.0).view(5, 2)}
    home = write_crash(tmp_path / "crashes", crash, weights=weights)
    done = run(home / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "raises IndexError" in done.stdout


@pytest.mark.parametrize("target", ["onnxruntime:cpu?opt=none", "aot_eager:cpu?dynamic=true", "eager:cpu?threads=1"])
def test_leaves_keep_their_paths_on_every_runtime(tmp_path: Path, target: str) -> None:
    crash = made(
        embed_seed(tmp_path / "seeds"), Kind.VALUE, {"index": torch.tensor([2, 1, 4, 0])}, target, path=".out[0]"
    )
    home = write_crash(tmp_path / "crashes", crash)
    done = run(home / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at .out[0]: torch.float32 [4, 2]" in done.stdout


DIES = """import os

import torch


class Dies(torch.nn.Module):
    def forward(self, x):
        if not x.isfinite().all():
            os.abort()
        return x * 2
"""


def test_a_process_that_dies_does_not_take_the_script_with_it(tmp_path: Path) -> None:
    seed = builder_seed(tmp_path / "seeds", DIES, "dies:Dies", inputs={"x": {"kind": "floats", "shape": [2]}})
    dead = made(seed, Kind.CRASH, {"x": torch.tensor([1.0, float("inf")])}, "eager:cpu")
    done = run(write_crash(tmp_path / "crashes", dead) / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "died with exit status -6" in done.stdout
    alive = made(seed, Kind.CRASH, {"x": torch.tensor([1.0, 2.0])}, "eager:cpu")
    done = run(write_crash(tmp_path / "alive", alive) / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_source_that_cannot_stand_in_the_script_is_read_from_its_own_file(tmp_path: Path) -> None:
    clashing = (
        POOL
        + "\n\ndef different(x):\n    raise RuntimeError\n\n\nif __name__ == '__main__':\n    raise SystemExit(9)\n"
    )
    seed = builder_seed(tmp_path / "seeds", clashing)
    home = write_crash(tmp_path / "crashes", pool_crash(seed, "eager:cpu?layout=channels_last"))
    assert "class Pool" not in (home / "repro.py").read_text()
    assert (home / "model.py").read_text() == clashing
    done = run(home / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_large_inputs_come_from_the_file_beside_the_script(tmp_path: Path) -> None:
    seed = builder_seed(tmp_path / "seeds", inputs={"x": {"kind": "floats", "shape": [1, 1, 16, 16]}})
    x = torch.arange(256.0).view(1, 1, 16, 16)
    x[0, 0, 6, 9] = float("nan")
    crash = made(seed, Kind.NONFINITE, {"x": x}, "onnxruntime:cpu")
    home = write_crash(tmp_path / "crashes", crash)
    assert "inputs.safetensors" in (home / "repro.py").read_text()
    done = run(home / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[0, 0, 3, 4]: reference nan, target" in done.stdout


def test_an_onnx_file_is_run_at_two_optimisation_levels(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    shape = [1, 1, 4, 4]
    x = helper.make_tensor_value_info("picture", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Relu", ["picture"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (tmp_path / "relu.onnx").write_bytes(model.SerializeToString())
    seed = builder_seed(
        tmp_path, model={"source": "onnx", "path": "relu.onnx"}, reference="onnxruntime:cpu?opt=none", name="relu"
    )
    sample = {"x": torch.full((1, 1, 4, 4), -1.0)}
    home = write_crash(tmp_path / "crashes", made(seed, Kind.VALUE, sample, "onnxruntime:cpu?opt=all", path=".y"))
    assert onnx.load(home / "model.onnx").graph.node[0].op_type == "Relu"
    done = run(home / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at .y: torch.float32 [1, 1, 4, 4]" in done.stdout


def test_an_onnx_file_against_its_conversion_makes_a_script_that_converts_it(tmp_path: Path) -> None:
    pytest.importorskip("onnx2torch")
    import onnx
    from onnx import TensorProto, helper

    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "relu.onnx"
    )
    inputs = {"x": {"kind": "floats", "shape": [2, 3]}}
    seed = builder_seed(tmp_path, model={"source": "onnx", "path": "relu.onnx"}, inputs=inputs, name="relu")
    crash = made(seed, Kind.VALUE, {"x": torch.full((2, 3), -1.0)}, "onnxruntime:cpu", path=".y")
    done = run(write_crash(tmp_path / "crashes", crash) / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at .y: torch.float32 [2, 3]" in done.stdout


def test_a_script_needs_nothing_of_this_project_and_says_what_it_is(tmp_path: Path) -> None:
    crash = pool_crash(builder_seed(tmp_path / "seeds", about="pools"), environment={"torch": "9.9"})
    text = render_repro(crash, POOL)
    compile(text, "repro.py", "exec")
    assert "fuzzer" not in text.split('"""', 2)[2]
    head = text.split('"""')[1]
    for word in ("onnxruntime:cpu", "eager:cpu", "numeric/nonfinite", "pools", "torch 9.9", "python repro.py"):
        assert word in head


def own_lines(text: str) -> list[str]:
    """What a maintainer reads beside the docstring and the model's source."""
    return [line for line in text.split('"""', 2)[2].splitlines() if line.strip() and line not in POOL.splitlines()]


@pytest.mark.parametrize("target", ["onnxruntime:cpu", "inductor:cpu", "eager:cpu?threads=2"])
def test_the_script_of_a_reduced_crash_is_short_and_has_no_annotations(tmp_path: Path, target: str) -> None:
    export = {"export": {"exporter": "dynamo", "dynamic": False}}
    crash = replace(pool_crash(builder_seed(tmp_path), target), found=export)
    text = render_repro(crash, POOL)
    assert len(own_lines(text)) < 60
    assert not [line for line in own_lines(text) if re.search(r"->|: (Any|str|int|dict)\b", line)]


def test_a_script_that_knows_how_the_model_was_exported_shows_the_same(tmp_path: Path) -> None:
    seed = builder_seed(
        tmp_path / "seeds",
        inputs={"x": {"kind": "floats", "shape": [1, 1, "h", "w"]}},
        dims={name: {"size": 6, "min": 2} for name in "hw"},
    )
    nan = {"x": torch.tensor([[[[float("nan"), 0.0], [0.0, 0.0]]]])}
    crash = replace(pool_crash(seed), inputs=nan, found={"export": {"exporter": "dynamo", "dynamic": True}})
    done = run(write_crash(tmp_path / "crashes", crash) / "repro.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[0, 0, 0, 0]: reference nan, target 0.0, float64 nan" in done.stdout
    assert "onnxruntime 1" in done.stdout


COUNTS = """import torch


class Counts(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.mode == "changes":
            self.calls += 1
        return x * 2
"""


@pytest.mark.parametrize(
    ("kind", "mode", "status"),
    [(Kind.MUTATION, "changes", 1), (Kind.MUTATION, "keeps", 0), (Kind.NONDETERMINISM, "changes", 0)],
)
def test_state_that_leaks_has_a_script_of_its_own(tmp_path: Path, kind: Kind, mode: str, status: int) -> None:
    model = {"source": "builder", "path": ".", "builder": "counts:Counts", "args": {"mode": mode}}
    inputs = {"x": {"kind": "floats", "shape": [2]}}
    seed = builder_seed(tmp_path / "seeds", COUNTS, "counts:Counts", model=model, inputs=inputs)
    crash = made(seed, kind, {"x": torch.tensor([1.0, float("nan")])}, "eager:cpu?threads=1")
    done = run(write_crash(tmp_path / "crashes", crash) / "repro.py")
    assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("target", ["inductor:cpu", "onnxruntime:cpu", "eager:cuda?tf32=true", "mine:cpu"])
def test_every_kind_has_a_script_whose_names_are_all_there(tmp_path: Path, kind: Kind, target: str) -> None:
    path = ".out[0]" if kind not in (Kind.EXCEPTION, Kind.CRASH, Kind.HANG, Kind.MEMORY) else "$"
    large = {"x": torch.zeros(1, 1, 9, 9)}
    seed = builder_seed(tmp_path, inputs={"x": {"kind": "floats", "shape": [1, 1, "n", "n"]}}, dims={"n": {"size": 9}})
    for sample in (large, {"x": torch.zeros(1, 1, 2, 2)}):
        (tmp_path / "repro.py").write_text(render_repro(made(seed, kind, sample, target, path=path), POOL))
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F823,E9", "--no-cache"]
        done = subprocess.run([*ruff, str(tmp_path / "repro.py")], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_name_or_message_from_elsewhere_cannot_break_out_of_the_docstring(tmp_path: Path) -> None:
    crash = pool_crash(builder_seed(tmp_path / "seeds", about='"""\nimport os; os.abort()\n\\"""'))
    hostile = replace(crash, evidence=('""" + 1', 'ends in a quote"', "\\"))
    text = render_repro(hostile, POOL)
    tree = compile(text, "repro.py", "exec", flags=1024)  # ast.PyCF_ONLY_AST
    assert "os.abort()" in tree.body[0].value.value  # type: ignore[attr-defined]


def test_half_of_what_was_seen_still_counts_as_the_difference(tmp_path: Path) -> None:
    seed = builder_seed(tmp_path / "seeds")
    crash = made(seed, Kind.VALUE, {"x": torch.ones(1, 1, 4, 4)}, "aot_eager:cpu", stats=[LeafStats("$", 4, 4, 0.5)])
    assert "ABSOLUTE = 0.25\nRELATIVE = 0.0\n" in render_repro(crash, POOL)
    own = builder_seed(tmp_path / "seeds", tolerance={"atol": 1e-3, "rtol": 1e-2})
    crash = made(own, Kind.VALUE, {"x": torch.ones(1, 1, 4, 4)}, "aot_eager:cpu", stats=[LeafStats("$", 4, 4, 0.5)])
    assert "ABSOLUTE = 0.001\nRELATIVE = 0.01\n" in render_repro(crash, POOL)


NESTED = """import torch


class Nested(torch.nn.Module):
    def forward(self, x):
        return {"a": x * 2, "b": (x + 1, 3, None)}
"""


def test_a_known_export_of_a_nested_output_keeps_its_leaves_in_their_places(tmp_path: Path) -> None:
    seed = builder_seed(tmp_path / "seeds", NESTED, "nested:Nested", inputs={"x": {"kind": "floats", "shape": [2]}})
    sample = {"x": torch.tensor([1.0, 2.0])}
    crash = made(seed, Kind.VALUE, sample, "onnxruntime:cpu", path=".b[0]")
    crash = replace(crash, found={"export": {"exporter": "dynamo", "dynamic": False}})
    done = run(write_crash(tmp_path / "crashes", crash) / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "target at .b[0]: torch.float32 [2]" in done.stdout


NET = """import torch
from sizes import width


class Net(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.fc, self.scale = torch.nn.Linear(4, width("sizes.txt")), scale

    def forward(self, x):
        import late

        return late.twice(self.fc(x)) * self.scale
"""
HUB = "from net import Net\n\n\ndef small(scale):\n    return Net(scale)\n"


def net_folder(folder: Path) -> None:
    """A repository: modules that import one another, one of them late, and a file read from the working directory."""
    folder.mkdir(parents=True)
    files = {"net.py": NET, "late.py": "def twice(x):\n    return 2 * x\n", "sizes.txt": "3", "hubconf.py": HUB}
    files["sizes.py"] = "def width(name):\n    return int(open(name).read())\n"
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("source", ["repo", "hub", "exported"])
@pytest.mark.parametrize("target", ["onnxruntime:cpu", "aot_eager:cpu"])
def test_what_stays_where_it_is_is_found_from_the_script_or_told_as_lacking(
    tmp_path: Path, source: str, target: str
) -> None:
    folder = tmp_path / "it's {here}"
    net_folder(folder)
    model: dict[str, Any] = {"source": source, "path": folder.name}
    if source == "exported":
        model["path"] += "/net.pt2"
        torch.export.save(torch.export.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),)), folder / "net.pt2")
    else:
        model |= {"args": {"scale": 2.0}} | ({"name": "small"} if source == "hub" else {"builder": "net:Net"})
    inputs = {"x": {"kind": "floats", "shape": [2, 4]}}
    seed = Seed.model_validate({"name": "net", "model": model, "inputs": inputs}).at(tmp_path)
    crash = made(seed, Kind.VALUE, {"x": torch.ones(2, 4)}, target, stats=[LeafStats("$", 6, 6, 1.0)])
    home = write_crash(tmp_path / "crashes", crash)
    done = run(home / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the difference is gone" in done.stdout
    folder.rename(tmp_path / "elsewhere")
    done = run(home / "repro.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "here}" in done.stdout
    assert "which is not there" in done.stdout


def test_a_repository_that_cannot_be_imported_says_what_it_lacks_whatever_the_kind(tmp_path: Path) -> None:
    net_folder(tmp_path / "net")
    (tmp_path / "net" / "sizes.py").write_text("import no_such_package\n")
    model = {"source": "repo", "path": "net", "builder": "net:Net"}
    inputs = {"x": {"kind": "floats", "shape": [2, 4]}}
    seed = Seed.model_validate({"name": "net", "model": model, "inputs": inputs}).at(tmp_path)
    for kind in (Kind.VALUE, Kind.EXCEPTION, Kind.MUTATION):
        done = run(
            write_crash(tmp_path / kind, made(seed, kind, {"x": torch.ones(2, 4)}, "aot_eager:cpu")) / "repro.py"
        )
        assert done.returncode == 2, done.stdout + done.stderr
        assert "No module named 'no_such_package'" in done.stdout


VERSIONED = """import torch


class Versioned(torch.nn.Module):
    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version") != 2:
            raise ValueError("which version?")
        super()._load_from_state_dict(state, prefix, metadata, *more)

    def forward(self, x):
        return x * self.weight
"""


def test_layers_that_ask_for_the_version_of_their_weights_get_it(tmp_path: Path) -> None:
    inputs = {"x": {"kind": "floats", "shape": [2]}}
    seed = builder_seed(tmp_path / "seeds", VERSIONED, "versioned:Versioned", inputs=inputs)
    crash = made(seed, Kind.VALUE, {"x": torch.ones(2)}, "aot_eager:cpu")
    done = run(write_crash(tmp_path / "crashes", crash, weights={"weight": torch.tensor([3.0, 4.0])}) / "repro.py")
    assert done.returncode == 0, done.stdout + done.stderr
