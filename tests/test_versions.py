"""Backends under another interpreter: the same worker protocol, other packages, and a corpus across the two."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from campaign_runs import TARGET, trick_crash, xbfuzz
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.backends.interpreter import availability_there, environment_there
from fuzzer.backends.registry import availability, parse
from fuzzer.backends.session import Session, State, Where
from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.against import Across, Change, under
from fuzzer.crashes.expect import Expectation, package_of
from fuzzer.crashes.replay import CrashState, Replayed
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.crashes.trust import needs_trust
from fuzzer.errors import CrashFolderError, SpecError
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed

NAN = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
#: On the target, drops NaN in the releases that the seed's mode lists; the release is in the environment.
RELEASES = """from __future__ import annotations

import os

import torch
from torch import nn


class Trick(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.broken = mode.split("+")

    def forward(self, x):
        y = self.linear(x)
        release = os.environ.get("TRICK_RELEASE", "one")
        return y.nan_to_num(0.0) if torch.get_num_threads() == 2 and release in self.broken else y
"""


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the next release: this one, with one package in another version in front of the rest."""
    folder = tmp_path_factory.mktemp("newer")
    about = folder / "site" / "onnxruntime-99.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 99.0\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" TRICK_RELEASE=two exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


PATHS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)


@given(st.dictionaries(st.sampled_from(["opt", "threads"]), st.sampled_from(["all", "2"])), PATHS)
def test_a_backend_string_keeps_its_interpreter(options: dict[str, str], path: str) -> None:
    spec = BackendSpec("onnxruntime", "cpu", options, path)
    assert BackendSpec.parse(str(spec)) == spec
    assert spec.base == "onnxruntime:cpu"
    assert str(spec.under("")) == str(spec).partition("@")[0]


def test_an_interpreter_needs_a_name() -> None:
    with pytest.raises(SpecError):
        BackendSpec.parse("eager:cpu@")


def test_the_other_interpreter_is_asked_what_it_has(newer: Path) -> None:
    assert availability_there(str(newer), "eager:cpu") is None
    found = environment_there(str(newer))
    assert found["onnxruntime"] == "99.0"
    assert found["torch"] == torch.__version__.partition("+")[0]
    assert availability(parse(f"eager:cpu@{newer}")) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "there is no program"),
        ("#!/bin/sh\nexit 3\n", "exits with 3"),
        ("#!/bin/sh\necho ModuleNotFoundError: torch >&2\nexit 1\n", "cannot run xbfuzz: ModuleNotFoundError: torch"),
        ("#!/bin/sh\necho hello\n", "does not answer as a Python interpreter"),
        ("\x7fELF", "cannot run xbfuzz"),
    ],
)
def test_what_is_no_interpreter_is_unavailable_with_the_reason(tmp_path: Path, script: str | None, words: str) -> None:
    path = tmp_path / "python"
    if script is not None:
        path.write_text(script)
        path.chmod(0o755)
    reason = availability(parse(f"eager:cpu@{path}"))
    assert reason is not None
    assert words in reason


def test_a_worker_runs_there_with_the_packages_of_there(newer: Path, where: Where, tmp_path: Path) -> None:
    from fuzzer.crashes.crash import seed_of

    seed = seed_of(trick_crash(tmp_path, "seed", NAN, mode="two", source=RELEASES))
    answers = []
    for backend in (TARGET, f"{TARGET}@{newer}"):
        session = Session(seed, backend, base_sample(seed, 0), where)
        assert session.prepare() is State.READY, session.reason
        answer = session.run({"x": NAN})
        session.close()
        assert answer.leaves is not None
        answers.append(answer.leaves["$"])
    assert torch.isnan(answers[0]).any()
    assert not torch.isnan(answers[1]).any()


def test_a_crash_that_names_an_interpreter_runs_nothing_without_trust(tmp_path: Path) -> None:
    found = trick_crash(tmp_path / "code", "seed", NAN)
    assert needs_trust(found, tmp_path) is None
    for side in ("target", "reference"):
        reason = needs_trust(replace(found, **{side: "eager:cpu?threads=2@/tmp/evil"}), tmp_path)
        assert reason == "it runs the program /tmp/evil"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("corpus")
    for name, mode in {"fixed": "one", "broken": "two", "always": "one+two"}.items():
        write_crash(place / "crashes", trick_crash(place / "code" / name, name, NAN, mode=mode, source=RELEASES))
    return place


@pytest.mark.slow
def test_a_corpus_across_two_versions_shows_what_is_fixed_and_what_is_broken(
    corpus: Path, newer: Path, cache: Path
) -> None:
    done = xbfuzz("replay", "--against", newer, "--jobs", "2", "--attempts", "1", "--cache", cache, cwd=corpus)
    lines = done.stdout.splitlines()
    assert done.returncode == 1, done.stderr
    assert lines[0].endswith("→ 99.0")
    assert lines[0].startswith("onnxruntime ")
    changes = {line.split()[1].partition("-")[0]: line.split()[0] for line in lines[1:-1]}
    assert changes == {"fixed": "fixed-in", "broken": "regressed-in", "always": "unchanged"}
    assert lines[-1] == "1 fixed-in, 1 regressed-in, 1 unchanged"


@pytest.mark.slow
def test_fixed_in_expects_one_thing_before_and_another_from_that_version_on(
    tmp_path: Path, newer: Path, cache: Path
) -> None:
    crash = trick_crash(tmp_path / "code", "seed", NAN, mode="one", source=RELEASES)
    crash = replace(crash, expect="fixed-in: onnxruntime 99")
    home = write_crash(tmp_path / "crashes", crash)
    assert load_crash(home).expect == "fixed-in: onnxruntime 99"
    write_crash(tmp_path / "newer", under(crash, str(newer)))
    options = ("--json", "--trust", "--attempts", "1", "--cache", cache)
    said = [
        json.loads(xbfuzz("replay", folder, *options, cwd=tmp_path).stdout)["crashes"][0]
        for folder in ("crashes", "newer")
    ]
    assert [(one["state"], one["expected"], one["ok"]) for one in said] == [
        ("reproduces", "diverges", True),
        ("fixed", "agrees", True),
    ]


@pytest.mark.parametrize(
    ("here", "there", "change"),
    [
        ("reproduces", "fixed", Change.FIXED),
        ("changed", "fixed", Change.FIXED),
        ("fixed", "reproduces", Change.REGRESSED),
        ("fixed", "changed", Change.REGRESSED),
        ("fixed", "fixed", Change.UNCHANGED),
        ("reproduces", "reproduces", Change.UNCHANGED),
        ("reproduces", "changed", Change.OTHER),
        ("flaky", "fixed", Change.OTHER),
        ("fixed", "flaky", Change.OTHER),
        ("unavailable", "fixed", Change.UNKNOWN),
        ("reproduces", "unavailable", Change.UNKNOWN),
    ],
)
def test_a_change_is_named_only_where_both_sides_are_sure(here: str, there: str, change: Change) -> None:
    sides = (Replayed("id", CrashState(state), "diverges") for state in (here, there))
    assert Across(*sides).change is change


@pytest.mark.parametrize(
    ("version", "word"),
    [("2.14.1", "diverges"), ("2.15.0.dev20260901", "diverges"), ("2.15.0", "agrees"), ("2.15.0+cu128", "agrees")],
)
def test_versions_are_compared_as_versions(version: str, word: str) -> None:
    found = Expectation.parse("fixed-in: 2.15")
    assert found.under({"torch": version}, "inductor:cpu") == word
    assert found.under({"torch": "99"}, "onnxruntime:cpu") == "diverges"
    assert package_of("onnxruntime:cpu@python") == "onnxruntime"


@pytest.mark.parametrize("text", ["diverges", "agrees", "fixed-in: 2.15", "fixed-in: onnxruntime 1.33.0"])
def test_what_is_expected_survives_a_file(text: str, tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", replace(trick_crash(tmp_path, "seed", NAN), expect=text))
    assert load_crash(home).expect == text


@pytest.mark.parametrize("text", ["fixed", "fixed-in:", "fixed-in: soon", "fixed-in: torch", "{fixed: '2'}"])
def test_what_nobody_can_expect_is_told(text: str, tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", trick_crash(tmp_path, "seed", NAN))
    record = home / "crash.yaml"
    quoted = text if text.startswith("{") else f"'{text}'"
    record.write_text(record.read_text().replace("expect: diverges", f"expect: {quoted}"))
    with pytest.raises(CrashFolderError, match="expect"):
        load_crash(home)


def test_a_seed_may_name_an_interpreter() -> None:
    data = {
        "name": "one",
        "model": {"source": "builder", "builder": "a:B"},
        "inputs": {"x": {"kind": "floats", "shape": [1]}},
        "backends": ["inductor:cpu@old/bin/python"],
    }
    assert parse(Seed.model_validate(data).backends[0]).python == "old/bin/python"
