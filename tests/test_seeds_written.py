"""A written seed loads as what it was written from, wherever its file lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.seeds import Seed, load_seed, seed_from_text, seed_to_json, sketch
from fuzzer.seeds.written import commented

INPUT = {"kind": "floats", "shape": ["n", 4], "range": [-2, 1.5]}
SEED: dict[str, Any] = {
    "name": "one",
    "model": {"source": "builder", "builder": "m:M"},
    "inputs": {"x": INPUT},
    "dims": {"n": {"size": 2}},
}


def unusual() -> st.SearchStrategy[dict[str, Any]]:
    """Keys of a seed with values that are not the default, each there or not."""
    return st.fixed_dictionaries(
        {},
        optional={
            "about": st.text(max_size=20),
            "call": st.just({"args": [], "kwargs": {"x": "x"}}),
            "independent": st.just("n"),
            "task": st.sampled_from([{"kind": "classification", "outputs": {"logits": ".out"}}, {"kind": "tensors"}]),
            "backends": st.sampled_from([["inductor:cpu"], [], ["eager:cpu?threads=2", "dynamo:cpu"]]),
            "reference": st.just("eager:cpu?threads=2"),
            "tolerance": st.just({"atol": 1e-5}),
            "mutators": st.just({"skip": ["scale"]}),
            "allow": st.just({"nonfinite": False}),
            "accept": st.just([{"label": "order/*", "why": "no order: none was promised"}]),
            "deadline_s": st.floats(min_value=1, max_value=99),
            "signed_zero": st.booleans(),
            "inputs": st.sampled_from(
                [{"x": INPUT | {"range": [0, 1], "exact": True}}, {"x": INPUT | {"dtype": "float16", "range": [0, 1]}}]
            ),
            "model": st.sampled_from(
                [
                    {"source": "builder", "builder": "m:M", "weights": {"kind": "calibrated", "seed": 3}},
                    {
                        "source": "builder",
                        "builder": "m:M",
                        "weights": "random",
                        "args": {"seed": 0, "exact": [], "a": {}},
                    },
                    {"source": "graph", "graph": {"nodes": [], "seed": 0, "deep": {"shape": [], "empty": {}}}},
                ]
            ),
        },
    )


@given(unusual())
def test_a_written_seed_loads_as_the_one_that_was_written(changes: dict[str, Any]) -> None:
    seed = Seed.model_validate(SEED | changes).at(Path.cwd())
    text = commented(seed, "of a test", Path.cwd())
    assert seed_to_json(seed_from_text(text, Path.cwd())) == seed_to_json(seed)


def test_a_lone_number_keeps_its_empty_shape() -> None:
    seed = Seed.model_validate(SEED | {"inputs": {"x": INPUT, "k": {"kind": "floats", "shape": []}}}).at(Path.cwd())
    assert seed_from_text(commented(seed, "of a test", Path.cwd()), Path.cwd()).inputs["k"].shape == []


def test_paths_are_written_as_they_are_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    for name in ("nets/net.py", "w.safetensors", "x.npz"):
        (tmp_path / name).touch()
    model = {"source": "builder", "path": "nets", "builder": "net:Net", "weights": "w.safetensors"}
    data = SEED | {"model": model, "inputs": {"x": INPUT | {"files": ["x.npz"]}}}
    seed = Seed.model_validate(data).at(tmp_path)
    out = tmp_path / "seeds" / "deep" / "net.yaml"
    out.parent.mkdir(parents=True)
    out.write_text(commented(seed, "of a test", out.parent))
    kept = load_seed(out)  # which looks for every file that it names
    for path, kept_path in (("nets", kept.model.path), ("w.safetensors", kept.model.weights.file)):
        assert kept.path(str(kept_path)) == tmp_path / path
    assert kept.path(kept.inputs["x"].files[0]) == tmp_path / "x.npz"


def test_a_path_inside_a_package_stays_as_it_is(tmp_path: Path) -> None:
    model = {"source": "onnx", "path": "package:onnx/none.onnx"}
    seed = Seed.model_validate(SEED | {"model": model}).at(tmp_path)
    assert "path: package:onnx/none.onnx\n" in commented(seed, "of a test", tmp_path / "elsewhere")


@pytest.mark.parametrize("name", ["resnet18", "fasterrcnn_resnet50_fpn"])
def test_what_is_as_usual_is_left_out_and_comments_say_what_else_there_is(name: str) -> None:
    seed = sketch(f"torchvision:{name}")
    text = commented(seed, f"{name} for a test", Path.cwd())
    assert text.startswith(f"# {name} for a test\n")
    assert seed_to_json(seed_from_text(text, Path.cwd())) == seed_to_json(seed)
    keys = [line.partition(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    call = ["call"] if name.startswith("faster") else []
    assert sorted(keys) == sorted(["name", "about", "model", "inputs", "task", "backends", *call])
    assert sum(line.startswith("# ") for line in text.splitlines()) > 8
