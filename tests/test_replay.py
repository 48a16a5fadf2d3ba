"""Replay says what became of a crash, from its folder alone, and fails only where it did not do what is expected."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from campaign_runs import TARGET, TRICK, xbfuzz
from crash_samples import builder_seed, pool_crash

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.replay import CrashState, Replayed
from fuzzer.crashes.store import write_crash

NAN = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
PLAIN = torch.tensor([[0.5, 0, 0, 0], [1, 2, 3, 4]])


def crash(folder: Path, name: str) -> Crash:
    """A crash of the trick that drops NaN, as a campaign stores it."""
    model = {"source": "builder", "path": ".", "builder": "trick:Trick", "args": {"mode": "drops-nan"}}
    inputs = {"x": {"kind": "floats", "shape": [2, 4]}}
    seed = builder_seed(folder, TRICK, "trick:Trick", name=name, model=model, inputs=inputs)
    return replace(pool_crash(seed, TARGET), inputs={"x": NAN}, original=None, recipe=None)


CASES: dict[str, Callable[[Crash], Crash]] = {
    "reproduces": lambda found: found,
    "agrees": lambda found: replace(found, expect="agrees"),
    "fixed": lambda found: replace(found, inputs={"x": PLAIN}),
    "wasfixed": lambda found: replace(found, inputs={"x": PLAIN}, expect="agrees"),
    "changed": lambda found: replace(found, inputs={"x": torch.full((2, 4), 1234.0)}),
    "flaky": lambda found: found,
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
    (place / "code" / "flaky" / "flaky").touch()
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


@pytest.mark.parametrize("state", list(CrashState))
@pytest.mark.parametrize("expect", ["diverges", "agrees"])
def test_only_what_is_expected_is_ok(state: CrashState, expect: str) -> None:
    wanted = {"diverges": CrashState.REPRODUCES, "agrees": CrashState.FIXED}[expect]
    assert Replayed("id", state, expect).ok is (state in (wanted, CrashState.UNAVAILABLE))
