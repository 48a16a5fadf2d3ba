"""The study's models as seeds, in groups; parts of a result joined; the table of docs/study.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks import study
from benchmarks.study_models import MODELS, group
from benchmarks.study_report import END, START, merged, table, with_table
from fuzzer.campaign.stream import Search, Stream
from fuzzer.models import build_model
from fuzzer.mutate.havoc import apply_recipe

torch.set_num_threads(1)
NAMES = [model.short for model in MODELS]


def model(executions: int = 50, **others: Any) -> dict[str, Any]:
    return {
        "executions": executions,
        "outcomes": {"pass": executions - 1, "mismatch": 1},
        "vacuous": 0,
        "judged": 7,
        "not_fuzzed": "",
        "targets": {"onnxruntime:cpu": {"status": "ok", "reason": ""}},
        "findings": {"order/near-tie?": 1},
        "seconds": 12.3,
        "ok": True,
    } | others


def part(executions: int = 50, torch_version: str = "2.11", **models: dict[str, Any]) -> dict[str, Any]:
    machine = {"processor": "x86_64", "torch": torch_version, "python": "3.12"}
    return {"executions": executions, "machine": machine, "models": models, "ok": 0, "vacuous": 0}


@pytest.mark.parametrize("n", [1, 2, 6, 18])
def test_the_groups_together_are_all_models_once(n: int) -> None:
    names = [model.short for i in range(1, n + 1) for model in group(i, n)]
    assert sorted(names) == sorted(NAMES)


def test_no_group_of_six_costs_twice_another_unless_one_model_alone_does() -> None:
    costs = [sum(model.cost for model in group(i, 6)) for i in range(1, 7)]
    dearest = max(model.cost for model in MODELS)
    assert max(costs) <= max(2 * min(costs), dearest)


def test_parts_join_in_the_order_of_the_models_and_are_summed_anew() -> None:
    whole = merged([part(b=model(), c=model(ok=False, vacuous=2)), part(a=model())], ["a", "b"])
    assert list(whole["models"]) == ["a", "b", "c"]
    assert (whole["ok"], whole["vacuous"]) == (2, 2)


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ([], "nothing"),
        ([part(a=model()), part(a=model())], "in two parts: a"),
        ([part(a=model()), part(executions=9, b=model())], "executions"),
        ([part(a=model()), part(torch_version="2.14", b=model())], "machine"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(parts: list[dict[str, Any]], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        merged(parts, NAMES)


def test_the_table_has_a_row_for_each_model_and_says_why_one_was_not_fuzzed() -> None:
    failed = model(executions=0, outcomes={}, findings={}, not_fuzzed="vacuous: a | b", ok=False, vacuous=1)
    text = table(merged([part(a=model(), b=failed)], ["a", "b"]))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[1] == "| a | onnxruntime:cpu | 50 | 49 | 1 | 0 | 7 | order/near-tie? × 1 | 12 |"
    assert rows[2] == "| b | onnxruntime:cpu | 0 | 0 | 0 | 1 | 7 | vacuous: a \\| b | 12 |"
    assert "1 of 2 models ran 50 executions each (50 in all) with 1 vacuous. torch 2.11" in text


def test_a_table_takes_the_place_of_the_one_before_and_nothing_else() -> None:
    page = f"before\n{START}\nold\n{END}\nafter\n"
    assert with_table(with_table(page, "first"), "second") == f"before\n{START}\nsecond\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no lines"):
        with_table("a page", "x")


def test_the_page_has_a_place_for_the_table() -> None:
    assert "new rows" in with_table(study.PAGE.read_text(), "new rows")


def test_the_command_joins_parts(tmp_path: Path) -> None:
    for name, models in (("1", {"resnet18": model()}), ("2", {"squeezenet1_1": model()})):
        (tmp_path / name).write_text(json.dumps(part(**models)))
    out = tmp_path / "out" / "whole.json"
    arguments = ["--merge", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(out)]
    result = CliRunner().invoke(study.main, arguments)
    assert result.exit_code == 0, result.output
    assert list(json.loads(out.read_text())["models"]) == ["squeezenet1_1", "resnet18"]
    again = CliRunner().invoke(study.main, [*arguments, str(tmp_path / "1")])
    assert again.exit_code == 2
    assert "in two parts: resnet18" in again.output


def test_a_group_that_is_none_is_refused() -> None:
    for part_of in ("0/6", "7/6", "six"):
        result = CliRunner().invoke(study.main, ["--group", part_of])
        assert result.exit_code == 2
        assert "I/N" in result.output


def test_a_group_without_the_model_that_is_asked_for_runs_nothing() -> None:
    other = next(name for name in NAMES if name not in {model.short for model in group(1, 6)})
    result = CliRunner().invoke(study.main, ["--group", "1/6", "--model", other])
    assert result.exit_code == 2
    assert f"group 1/6 has none of {other}" in result.output


def test_the_seeds_of_a_group_can_be_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(study.main, ["--group", "2/6", "--write", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in tmp_path.iterdir()} == {model.short for model in group(2, 6)}


def test_a_table_of_results_that_are_not_there_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(study.main, ["--table", "--out", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "there is no" in result.output


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large"])
def test_a_detector_gives_boxes_for_every_input(name: str) -> None:
    seed = next(model for model in MODELS if model.short == name).seed()
    built = build_model(seed, None)
    assert built.module is not None
    stream = Stream(seed, 0, Search.named("blind"))
    for index in range(24):
        args, kwargs = built.call(apply_recipe(seed, stream.recipe(index)))
        with torch.no_grad():
            (found,) = built.module(*args, **kwargs)
        assert len(found["boxes"]) > 0, stream.recipe(index).to_json()
