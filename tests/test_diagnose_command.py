"""`xbfuzz diagnose` and the reruns it makes, with real worker processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from campaign_runs import TARGET, trick_crash, xbfuzz

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.session import Where
from fuzzer.crashes.rerun import Reruns
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.diagnose.rerun import CannotRerun, Change
from fuzzer.verify.verdict import Kind, Outcome

NAN = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
PLAIN = torch.tensor([[0.5, 0, 0, 0], [1, 2, 3, 4]])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a crash whose target drops NaN, and one whose input does not show it any more."""
    place = tmp_path_factory.mktemp("diagnose")
    for name, x in (("nan", NAN), ("plain", PLAIN)):
        write_crash(place / "crashes", trick_crash(place / "code" / name, name, x))
    return place


def folder(place: Path, name: str) -> Path:
    return next(path for path in (place / "crashes").iterdir() if path.name.startswith(name))


@pytest.fixture(scope="module")
def said(place: Path, cache: Path) -> dict[str, Any]:
    found = folder(place, "nan")
    done = xbfuzz("diagnose", found, "--json", "--cache", cache, cwd=place)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_cause_is_proven_and_told_as_json(said: dict[str, Any]) -> None:
    assert said["label"] == "numeric/nonfinite"
    last = said["interventions"][-1]
    assert (last["name"], last["outcome"]) == ("finite", "gone")


def test_what_was_found_is_in_the_crash(said: dict[str, Any], place: Path) -> None:
    crash = load_crash(folder(place, "nan"))
    assert crash.id == said["id"]
    assert str(crash.label) == "numeric/nonfinite"
    assert any("replaced by finite values: gone" in line for line in crash.evidence)
    assert crash.diagnosis["interventions"] == said["interventions"]


def test_a_crash_that_cannot_be_seen_stays_as_it_was_and_exits_1(place: Path, cache: Path) -> None:
    home = folder(place, "plain")
    before = (home / "crash.yaml").read_bytes()
    done = xbfuzz("diagnose", home.name, "--cache", cache, cwd=place)
    assert done.returncode == 1
    assert "its own input does not show it here" in done.stdout
    assert (home / "crash.yaml").read_bytes() == before


def test_a_crash_that_is_not_there_is_told_in_one_line(place: Path, cache: Path) -> None:
    done = xbfuzz("diagnose", "no-such-crash", "--cache", cache, cwd=place)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture
def reruns(place: Path, where: Where) -> Iterator[Reruns]:
    reruns = Reruns(load_crash(folder(place, "nan")), where)
    yield reruns
    reruns.close()


def test_reruns_share_warm_processes_until_a_change_wants_fresh_ones(reruns: Reruns) -> None:
    sample = {"x": NAN}
    seen = [reruns(sample), reruns({"x": PLAIN}), reruns(sample, Change(fresh=True)), reruns(sample)]
    mismatch = Outcome.MISMATCH
    assert [one.verdict.outcome for one in seen] == [mismatch, Outcome.PASS, mismatch, mismatch]
    assert seen[0].verdict.differences[0].kind is Kind.NONFINITE
    bench = reruns._bench
    assert (bench.reference.starts, bench.target.starts) == (1, 1)


def test_another_backend_in_the_target_s_place_agrees_and_is_timed(reruns: Reruns) -> None:
    change = Change(target="eager:cpu")
    assert reruns({"x": NAN}, change).verdict.outcome is Outcome.PASS
    seconds = reruns.seconds({"x": NAN}, change, 3)
    assert seconds is not None
    assert 0 < seconds < 10
    assert reruns.seconds({"x": NAN}, Change(fresh=True), 3) is None
    assert reruns({"x": NAN}, Change(target=TARGET)).verdict.outcome is Outcome.MISMATCH


def test_what_a_backend_refuses_cannot_be_rerun(reruns: Reruns) -> None:
    with pytest.raises(CannotRerun, match="refuses"):
        reruns({"x": NAN}, Change(adaptation=Adaptation(order="no such order")))
