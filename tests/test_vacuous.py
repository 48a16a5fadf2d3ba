"""Outputs that agree with everything are called vacuous, and are never a pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from campaign_runs import TARGET, xbfuzz

FLAT = """from __future__ import annotations

import torch
from torch import nn


class Constant(nn.Module):
    def forward(self, x):
        return torch.ones(3, 3)


class Empty(nn.Module):
    def forward(self, x):
        return x[:0]


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)
"""


def yaml(name: str, model: str, shape: str, extra: str = "") -> str:
    return (
        f"name: {name}\nmodel: {model}\ninputs:\n  x: {{kind: floats, shape: {shape}}}\nbackends: ['{TARGET}']\n{extra}"
    )


def builder(name: str) -> str:
    return f"{{source: builder, path: ., builder: 'flat:{name}'}}"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> tuple[int, dict[str, Any], str]:
    folder = tmp_path_factory.mktemp("vacuous")
    seeds = folder / "seeds"
    seeds.mkdir()
    (seeds / "flat.py").write_text(FLAT)
    texts = {
        "constant": yaml("constant", builder("Constant"), "[2, 4]"),
        "empty": yaml("empty", builder("Empty"), "[2, 4]"),
        "wide": yaml("wide", builder("Linear"), "[2, 4]", "tolerance: {atol: 100.0}\n"),
        "mobilenet": yaml("mobilenet", "{source: library, name: mobilenet_v2, weights: random}", "[1, 3, 64, 64]"),
        "vit": yaml(
            "vit", "{source: library, name: vit_b_16, weights: random, args: {image_size: 32}}", "[1, 3, 32, 32]"
        ),
    }
    for name, text in texts.items():
        (seeds / f"{name}.yaml").write_text(text)
    done = xbfuzz("run", "seeds", "--max-execs", "20", "--out", "out", "--cache", cache, "--json", cwd=folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_a_campaign_that_compared_nothing_exits_2_and_says_why(said: tuple[int, dict[str, Any], str]) -> None:
    status, report, stderr = said
    assert (status, report["executions"], report["outcomes"], report["findings"]) == (2, 0, {}, [])
    (line,) = stderr.splitlines()
    assert line.startswith("xbfuzz: nothing was compared: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("constant", "constant whatever the input"),
        ("empty", "empty"),
        ("wide", "is within the tolerance 100"),
        ("mobilenet", "is within the tolerance 1e-06"),
        ("vit", "constant whatever the input"),
    ],
)
def test_each_is_called_vacuous_with_its_reason(said: tuple[int, dict[str, Any], str], name: str, reason: str) -> None:
    _, report, _ = said
    (entry,) = [one for one in report["vacuous"] if one["seed"] == name]
    assert entry["reason"].startswith("vacuous: ")
    assert reason in entry["reason"]
    (target,) = [one for one in report["targets"] if one["seed"] == name]
    assert target["outcomes"] == {}
    (seed,) = [one for one in report["seeds"] if one["seed"] == name]
    assert not seed["vetted"]
