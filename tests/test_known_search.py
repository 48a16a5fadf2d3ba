"""The benchmark of known divergences: other tables, resuming, and what it counts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import known
from benchmarks.known_cases import CASES, INDUCTOR, ORT, by_name, table
from benchmarks.known_search import Hunt, Plan, Sighting, hunt, target_of
from fuzzer.errors import InputError

OTHER_TABLE = """
import torch
from benchmarks.known_cases import Case, Function, Kind, ORT

CASES = [
    Case("wraps", Kind.DIVERGES, lambda: Function(torch.abs), lambda: (torch.ones(2),), lambda: (torch.ones(2),),
         (ORT,), "numeric/integer", "neither")
]
"""


def test_a_table_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OTHER_TABLE)
    cases = table(str(tmp_path / "other.py"))
    assert list(cases) == ["wraps"]
    assert cases["wraps"].targets == (ORT,)
    assert len(table()) == len(CASES)


@pytest.mark.parametrize("text", ["", "CASES = []", "CASES = ['wraps']"])
def test_a_file_without_cases_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.py").write_text(text)
    with pytest.raises(InputError, match="no list CASES"):
        table(str(tmp_path / "other.py"))


def test_a_table_that_is_not_there_and_a_name_that_it_lacks_are_told_in_one_line(tmp_path: Path) -> None:
    missing = CliRunner().invoke(known.main, ["--cases", str(tmp_path / "nothing.py")])
    unknown = CliRunner().invoke(known.main, ["--case", "topk_tied"])
    assert (missing.exit_code, unknown.exit_code) == (2, 2)
    assert "nothing.py is no Python file" in missing.output
    assert "the table has no case named topk_tied" in unknown.output


def hunted(name: str, expected: str, *sightings: Sighting, labels: dict[str, int] | None = None) -> Hunt:
    found = Hunt(name, ORT, expected, executions=9, first=sightings[0].execution if sightings else None)
    found.labels = Counter(labels or {each.symptom: 1 for each in sightings})
    for each in sightings:
        found.saw(each, {"draw": 0})
    return found


PROVEN = hunted("one", "numeric/integer", Sighting(3, "numeric/integer", "numeric/integer", "operands in range"))
SUSPECTED = hunted(
    "two",
    "numeric/nonfinite",
    Sighting(2, "numeric/overflow", "numeric/overflow?"),
    Sighting(5, "numeric/nonfinite", "numeric/nonfinite?"),
)
RELABELLED = hunted("three", "order/tie", Sighting(4, "order/tie", "order/near-tie", "margin widened"))
MISSED = hunted("four", "order/tie")


def test_the_report_tells_first_labels_from_later_ones_and_proofs_from_suspicions() -> None:
    told = known.report([PROVEN, SUSPECTED, RELABELLED, MISSED])
    assert (told["cases"], told["found"], told["missed"]) == (4, 3, ["four"])
    assert (told["labelled"], told["labelled_first"], told["proven"], told["labelled_by_symptom"]) == (2, 1, 1, 3)
    assert told["otherwise_labelled"] == {"three": ["order/tie", ["order/near-tie"]]}
    assert told["confusion"] == {
        "numeric/integer": {"numeric/integer": 1},
        "numeric/nonfinite": {"numeric/overflow?": 1},
        "order/tie": {"order/near-tie": 1},
    }
    assert (SUSPECTED.labelled_at, RELABELLED.labelled_at) == (5, None)


def test_a_run_goes_on_from_its_state_and_refuses_one_of_other_options(tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    known.Done(state, Plan(10)).add(SUSPECTED)
    again = known.Done(state, Plan(10))
    assert again.hunts == {"two": SUSPECTED}
    with pytest.raises(InputError, match="other options"):
        known.Done(state, Plan(20))


def test_a_finding_is_proven_by_reruns_of_its_own_case() -> None:
    found = hunt(by_name("truncated_division"), Plan(40, diagnose_s=20))
    told = json.loads(json.dumps(known.report([found])))
    assert told["hunts"][0]["sightings"][-1]["label"].startswith("numeric/integer")
    assert found.labelled_at == found.sightings[-1].execution


def test_a_target_that_takes_the_module_comes_before_one_that_refuses_it() -> None:
    assert target_of(by_name("clamp_beyond_uint8")) == INDUCTOR
    assert target_of(by_name("stable_sort")) == ORT  # refused by all: that is the divergence
    assert target_of(by_name("roi_align_nan")) == ORT
