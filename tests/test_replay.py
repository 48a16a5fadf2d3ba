"""Replay says what became of a crash, from its folder alone, and fails only where it did not do what is expected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import torch
from campaign_runs import trick_crash, xbfuzz
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.github import annotation
from fuzzer.crashes.junit import junit
from fuzzer.crashes.replay import CrashState, Replayed, replay
from fuzzer.crashes.store import load_crash, write_crash

NAN = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
PLAIN = torch.tensor([[0.5, 0, 0, 0], [1, 2, 3, 4]])


def crash(folder: Path, name: str) -> Crash:
    return trick_crash(folder, name, NAN)


CASES: dict[str, Callable[[Crash], Crash]] = {
    "reproduces": lambda found: found,
    "agrees": lambda found: replace(found, expect="agrees"),
    "fixed": lambda found: replace(found, inputs={"x": PLAIN}),
    "wasfixed": lambda found: replace(found, inputs={"x": PLAIN}, expect="agrees"),
    "changed": lambda found: replace(found, inputs={"x": torch.full((2, 4), 1234.0)}),
    "flaky": lambda found: found,
    "first": lambda found: found,
    "elsewhere": lambda found: replace(
        found,
        target="eager:cuda",
        signature=replace(found.signature, target="eager:cuda"),
        environment={"torch": "1.0", "python": "2.7"},
    ),
}


class Said(NamedTuple):
    status: int
    crashes: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Said:
    place = tmp_path_factory.mktemp("replay")
    for name, change in CASES.items():
        write_crash(place / "crashes", change(crash(place / "code" / name, name)))
    for name in ("flaky", "first"):
        (place / "code" / name / name).touch()
    done = xbfuzz("replay", "--json", "--cache", cache, cwd=place)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)["crashes"]
    assert [one["id"] for one in said] == sorted(path.name for path in (place / "crashes").iterdir() if path.is_dir())
    return Said(done.returncode, {one["id"].partition("-")[0]: one for one in said})


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without CUDA")
@pytest.mark.parametrize(
    ("name", "state", "ok"),
    [
        ("reproduces", "reproduces", True),
        ("agrees", "reproduces", False),
        ("fixed", "fixed", False),
        ("wasfixed", "fixed", True),
        ("changed", "changed", False),
        ("flaky", "flaky", False),
        ("first", "reproduces", True),
        ("elsewhere", "unavailable", True),
    ],
)
def test_each_crash_is_told_as_what_it_is(said: Said, name: str, state: str, ok: bool) -> None:
    one = said.crashes[name]
    assert (one["state"], one["ok"]) == (state, ok), one
    assert one["expect"] == ("agrees" if name in ("agrees", "wasfixed") else "diverges")


def test_one_crash_that_does_not_do_what_it_should_exits_1(said: Said) -> None:
    assert said.status == 1


def test_attempts_are_counted(said: Said) -> None:
    counts = {name: (one["reproduced"], one["attempts"]) for name, one in said.crashes.items()}
    assert counts["reproduces"] == counts["agrees"] == (3, 3)
    assert counts["fixed"] == (0, 3)
    assert counts["flaky"] == (1, 3)
    assert said.crashes["flaky"]["detail"] == "1 of 3 attempts reproduce it"


def test_what_each_fresh_process_shows_once_reproduces(said: Said) -> None:
    first = said.crashes["first"]
    assert (first["reproduced"], first["attempts"]) == (3, 3)
    assert first["detail"] == "in each fresh process, and not again in the same one"


def test_what_it_changed_to_is_named(said: Said) -> None:
    assert said.crashes["changed"]["detail"] == "now numeric (value) at $"


def test_a_missing_backend_and_another_machine_are_named_and_are_no_failure(said: Said) -> None:
    one = said.crashes["elsewhere"]
    assert one["detail"].startswith("eager:cuda: ")
    assert any(line.startswith("torch: 1.0 → ") for line in one["differs"])
    assert said.crashes["reproduces"]["differs"] == []


def test_crashes_that_do_what_they_should_exit_0_in_words_too(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "project").mkdir()
    home = write_crash(tmp_path / "crashes", crash(tmp_path / "code", "nan"))
    done = xbfuzz("replay", home, "--trust", "--cache", cache, cwd=tmp_path / "project")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"ok   {home.name}: reproduces, expected diverges\n"


def test_no_crash_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "crashes").mkdir()
    done = xbfuzz("replay", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "xbfuzz: nothing was compared: there are no crashes in crashes\n"
    asked = xbfuzz("replay", "--json", "--junit", "replay.xml", cwd=tmp_path)
    assert (asked.returncode, json.loads(asked.stdout)) == (2, {"crashes": []})
    assert ElementTree.parse(tmp_path / "replay.xml").getroot()[0].get("tests") == "0"


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without CUDA")
def test_crashes_that_cannot_run_here_are_no_success_either(tmp_path: Path, cache: Path) -> None:
    home = write_crash(tmp_path / "crashes", CASES["elsewhere"](crash(tmp_path / "code", "elsewhere")))
    github = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path)}
    done = xbfuzz("replay", "--cache", cache, cwd=tmp_path, **github)
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"skip {home.name}: unavailable, expected diverges: eager:cuda: ")
    assert lines[-1].startswith(f"::warning file=crashes/{home.name}/crash.yaml,title=")
    assert done.stderr == "xbfuzz: nothing was compared: it cannot run here\n"


@pytest.mark.parametrize("state", list(CrashState))
@pytest.mark.parametrize("expect", ["diverges", "agrees"])
def test_only_what_is_expected_is_ok(state: CrashState, expect: str) -> None:
    wanted = {"diverges": CrashState.REPRODUCES, "agrees": CrashState.FIXED}[expect]
    assert Replayed("id", state, expect).ok is (state in (wanted, CrashState.UNAVAILABLE))


def test_the_rate_of_a_flaky_crash_is_told(said: Said) -> None:
    assert said.crashes["flaky"]["rate"] == pytest.approx(1 / 3)
    assert said.crashes["elsewhere"]["rate"] is None


@pytest.mark.slow
def test_a_fixed_crash_becomes_a_guard_and_what_else_runs_beside_it_stays(tmp_path: Path, cache: Path) -> None:
    for name in ("fixed", "reproduces"):
        write_crash(tmp_path / "crashes", CASES[name](crash(tmp_path / "code" / name, name)))
    before = {path.name: (path / "crash.yaml").read_bytes() for path in (tmp_path / "crashes").glob("*-*")}
    report = tmp_path / "report.xml"
    options = ("--jobs", "2", "--attempts", "1", "--junit", report, "--cache", cache)
    done = xbfuzz("replay", "--update", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    (fixed,) = (name for name in before if name.startswith("fixed"))
    (other,) = (name for name in before if name.startswith("reproduces"))
    assert lines[f"ok   {fixed}"] == "fixed, expected agrees; crash.yaml updated"
    assert load_crash(tmp_path / "crashes" / fixed).expect == "agrees"
    assert (tmp_path / "crashes" / other / "crash.yaml").read_bytes() == before[other]
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "0", "0")


def result(state: CrashState, **fields: Any) -> Replayed:
    return Replayed("seed-eager-cpu-1", state, "diverges", **fields)


@given(st.text())
def test_junit_is_xml_whatever_a_crash_says(text: str) -> None:
    results = [
        result(CrashState.REPRODUCES),
        result(CrashState.CHANGED, detail=text),
        result(CrashState.UNAVAILABLE, detail=text, differs=[text]),
    ]
    suite = ElementTree.fromstring(junit(results, {"seed-eager-cpu-1": "seed"}).encode())[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    assert [case.get("classname") for case in suite] == ["seed"] * 3
    assert [len(case.findall("failure")) for case in suite] == [0, 1, 0]
    assert [len(case.findall("skipped")) for case in suite] == [0, 0, 1]


@pytest.mark.parametrize(
    ("state", "differs", "level"),
    [
        (CrashState.REPRODUCES, [], None),
        (CrashState.REPRODUCES, ["torch: 1 → 2"], "notice"),
        (CrashState.FLAKY, [], "error"),
        (CrashState.UNAVAILABLE, [], "warning"),
    ],
)
def test_github_shows_what_needs_a_look_at_its_file(
    tmp_path: Path, state: CrashState, differs: list[str], level: str | None
) -> None:
    home = write_crash(tmp_path / "crashes", crash(tmp_path / "code", "seed"))
    line = annotation(load_crash(home), result(state, detail="50 %, so\nso", differs=differs), tmp_path.resolve())
    if level is None:
        assert line is None
        return
    assert line is not None
    assert "\n" not in line
    assert line.startswith(f"::{level} file=crashes/{home.name}/crash.yaml,title={home.name}%3A numeric/nonfinite?::")
    assert "50 %25, so%0Aso" in line


def test_two_sides_that_could_not_be_compared_are_not_called_fixed(tmp_path: Path, where: Where) -> None:
    found = crash(tmp_path / "code", "raises")
    write_raising = (
        (tmp_path / "code" / "trick.py")
        .read_text()
        .replace("        y = self.linear(x)\n", "        raise ValueError('never')\n")
    )
    (tmp_path / "code" / "trick.py").write_text(write_raising)
    both = replay(found, where, attempts=1)
    assert both.state is CrashState.UNAVAILABLE
    assert both.detail == "nothing was compared: both sides raise: ValueError and ValueError"
