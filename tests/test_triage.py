"""Crashes for a reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crash_samples import builder_seed, pool_crash

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.severity import severity
from fuzzer.crashes.signature import Signature
from fuzzer.diagnose import Label
from fuzzer.files import to_json as json_text
from fuzzer.triage import rows, show, summary, table, to_json
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def crash(tmp_path: Path) -> Crash:
    return pool_crash(builder_seed(tmp_path / "seeds"), environment={"torch": "2.14.1", "capabilities": ["avx512f"]})


def named(crash: Crash, seed: str, grade: str, label: str) -> Crash:
    signature = Signature(seed, "onnxruntime:cpu", "numeric", "$", "value")
    return replace(crash, signature=signature, severity=grade, label=Label.parse(label))


def test_rows_are_gravest_first_then_by_label(crash: Crash) -> None:
    crashes = [
        named(crash, "a", "minor", "numeric/rounding?"),
        named(crash, "b", "wrong", "numeric/wrong-value?"),
        named(crash, "c", "crash", "execution/hang?"),
        named(crash, "d", "wrong", "execution/exception?"),
        named(crash, "e", "decision", "order/tie"),
    ]
    assert [row.id[0] for row in rows(crashes)] == ["c", "d", "b", "e", "a"]


def test_columns_of_a_table_are_aligned(crash: Crash) -> None:
    lines = table(rows([crash, named(crash, "a_long_name_of_a_seed", "minor", "numeric/rounding?")])).splitlines()
    assert len(lines) == 3
    start = lines[0].index("label")
    assert lines[1][start:].startswith("numeric/nonfinite?")
    assert lines[2][start:].startswith("numeric/rounding?")


def test_no_crashes_is_said_in_words() -> None:
    assert table(rows([])) == "no crashes"


def test_a_reduced_crash_shows_both_sizes(crash: Crash) -> None:
    assert rows([replace(crash, sizes={"original": 256, "reduced": 16})])[0].size == "256→16"
    assert rows([crash])[0].size == "16"


def test_json_has_what_other_programs_need(crash: Crash) -> None:
    value = to_json(crash)
    json_text(value)
    assert value["id"] == "pool-onnxruntime-cpu-42593075"
    assert value["label"] == "numeric/nonfinite?"
    assert value["blame"] == "target"
    assert value["stage"] is None
    assert value["mitigations"] == []
    assert value["sizes"] == {"original": 16, "reduced": 16}
    assert (value["seed"], value["target"], value["kind"], value["leaf"]) == (
        "pool",
        "onnxruntime:cpu",
        "nonfinite",
        "$",
    )


def test_show_says_who_is_to_blame_what_was_seen_and_how_to_see_it_again(crash: Crash) -> None:
    text = show(crash)
    for part in (
        "onnxruntime:cpu is 3.1e+04 noise floors from float64, eager:cpu is 0.8 noise floors from float64",
        "reference nan",
        "target    5.0",
        "x: float32 [1, 1, 4, 4], 0 to 15, 1 NaN",
        "xbfuzz replay crashes/pool-onnxruntime-cpu-42593075",
        "python crashes/pool-onnxruntime-cpu-42593075/repro.py",
        "torch: 2.14.1",
        "avx512f",
    ):
        assert part in text


def test_text_from_a_crash_cannot_write_to_the_terminal(crash: Crash) -> None:
    text = show(replace(crash, evidence=("\x1b[2J gone \r",)))
    assert "\x1b" not in text
    assert "\r" not in text


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.tensor([NAN, INF, -INF, -0.0, 1e-45, 2.0, 2.0]), "1 NaN, 1 +inf, 1 −inf, 1 −0, 1 subnormal, 1 repeated"),
        (torch.tensor([[1, -5], [7, 2]]), "x: int64 [2, 2], -5 to 7"),
        (torch.tensor([True, False]), "x: bool [2], 1 true"),
        (torch.zeros(0, 4), "x: float32 [0, 4], empty"),
        (torch.tensor([1 + 2j]), "x: complex64 [1], 1 to 2"),
        (torch.tensor([NAN]), "x: float32 [1], 1 NaN"),
        (torch.tensor([0.5], dtype=torch.bfloat16), "x: bfloat16 [1], 0.5 only"),
    ],
)
def test_an_input_is_summed_up_in_a_line(tensor: torch.Tensor, text: str) -> None:
    assert text in summary("x", tensor)


@pytest.mark.parametrize(
    ("kind", "blame", "label", "expected"),
    [
        (Kind.CRASH, Blame.UNKNOWN, "execution/crash", "crash"),
        (Kind.HANG, Blame.UNKNOWN, "execution/hang?", "crash"),
        (Kind.EXCEPTION, Blame.UNKNOWN, "execution/exception?", "wrong"),
        (Kind.NONFINITE, Blame.TARGET, "numeric/nonfinite?", "wrong"),
        (Kind.VALUE, Blame.TARGET, "numeric/wrong-value?", "wrong"),
        (Kind.VALUE, Blame.NEITHER, "numeric/rounding?", "minor"),
        (Kind.INTEGER, Blame.TARGET, "order/tie?", "decision"),
        (Kind.INTEGER, Blame.NEITHER, "order/near-tie?", "decision"),
        (Kind.SIGNED_ZERO, Blame.TARGET, "numeric/signed-zero?", "minor"),
    ],
)
def test_severity_follows_from_what_was_seen(kind: Kind, blame: Blame, label: str, expected: str) -> None:
    verdict = Verdict(Outcome.MISMATCH, differences=[Difference("$", kind, "", blame=blame)])
    assert severity(verdict, Label.parse(label)) == expected
