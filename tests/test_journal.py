"""A journal loses at most the line that was being written, and belongs to one campaign at a time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.backends.session import Where
from fuzzer.campaign import Campaign, Options
from fuzzer.campaign.findings import Finding, Ledger, Standing
from fuzzer.campaign.intake import restore
from fuzzer.campaign.journal import Journal, stamp
from fuzzer.crashes.signature import Signature
from fuzzer.errors import XbfuzzError
from fuzzer.seeds import Seed


def written(folder: Path, count: int) -> Path:
    with Journal(folder, "run", resume=False) as journal:
        for i in range(count):
            journal.write("run", index=i, text="ä\n")
        return journal.folder / "events.jsonl"


@given(st.integers(0, 10_000))
def test_a_journal_that_is_cut_anywhere_goes_on_after_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    path = written(folder, 5)
    content = path.read_bytes()
    size = cut % (len(content) + 1)
    os.truncate(path, size)
    whole = content[:size].count(b"\n")
    with Journal(folder, "other", resume=True) as journal:
        assert journal.folder.name == "run"
        assert [event["index"] for event in journal.events()] == list(range(whole))
        journal.write("run", index=whole, value=float("nan"))
        assert [event["index"] for event in journal.events()] == list(range(whole + 1))


def test_two_campaigns_in_one_folder_exclude_each_other(tmp_path: Path) -> None:
    with Journal(tmp_path, "one", resume=False):
        with pytest.raises(XbfuzzError, match="another campaign is running"), Journal(tmp_path, "two", resume=False):
            pass
        assert not (tmp_path / "runs" / "two").exists()
    with Journal(tmp_path, "two", resume=False) as journal:
        assert journal.folder.exists()


def test_with_nothing_to_resume_the_folder_is_free_again(tmp_path: Path) -> None:
    with pytest.raises(XbfuzzError, match="there is no run to resume"), Journal(tmp_path, "one", resume=True):
        pass
    with Journal(tmp_path, "two", resume=False):
        pass


def test_a_folder_that_cannot_be_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(XbfuzzError, match=r"^cannot write under .*file: .*$"),
        Journal(tmp_path / "file", "a", resume=False),
    ):
        pass


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    path.write_text('{"event": "start"}\nnonsense\n')
    with Journal(tmp_path, "x", resume=True) as journal, pytest.raises(XbfuzzError, match=r"events\.jsonl:2: not JSON"):
        list(journal.events())


def test_stamps_sort_by_time() -> None:
    assert stamp(lambda: 0.0) == f"19700101-000000-{os.getpid()}" < stamp(lambda: 1e9)


def test_a_ledger_is_restored_as_it_was() -> None:
    finding = Finding(
        Signature("seed", "eager:cpu", "numeric", "$", "value"),
        "numeric/unknown?",
        7,
        {"tensors": "fail"},
        "target",
        "far apart",
        Standing.PENDING,
    )
    run = {"event": "run", "finding": finding.signature.id}
    journal = [
        {"event": "finding", **json.loads(json.dumps(finding.to_json()))},
        run,
        run,
        {"event": "confirmed", "id": finding.signature.id, "standing": "stored", "label": "numeric/x", "detail": "d"},
        {"event": "run", "accepted": "we know"},
        {"event": "run"},
    ]
    ledger = Ledger.with_known([])
    for event in journal:
        restore(ledger, event)
    (found,) = ledger.findings.values()
    assert (found.signature, found.count, found.standing) == (finding.signature, 2, Standing.STORED)
    assert (found.label, found.executions, found.detail) == ("numeric/x", 7, "d")
    assert ledger.accepted == {"we know": 1}


@pytest.mark.parametrize(
    "line",
    ['{"event": "input", "seed": "one", "index": 0}', '{"event": "start"}', '{"event": "run", "seed": "one"}', "{}"],
)
def test_a_journal_that_lacks_something_is_refused(tmp_path: Path, line: str) -> None:
    data = {
        "name": "one",
        "model": {"source": "builder", "builder": "m:M"},
        "inputs": {"x": {"kind": "floats", "shape": [2]}},
    }
    written(tmp_path, 0).write_text(line + "\n")
    options = Options(out=tmp_path, max_execs=4, resume=True)
    campaign = Campaign([Seed.model_validate(data)], options, Where(None))
    with pytest.raises(XbfuzzError, match="runs/run cannot be resumed"):
        campaign.run()
