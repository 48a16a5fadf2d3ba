"""The pytest plug-in: crash folders are items that speak of backends, and a suite without them notices nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from campaign_runs import ROOT, trick_crash

from fuzzer.crashes.store import write_crash
from fuzzer.diagnose import Label
from fuzzer.triage import load_known

NAN = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
PLAIN = torch.tensor([[0.5, 0, 0, 0], [1, 2, 3, 4]])
ELSEWHERE = {"torch": "1.0", "python": "2.7"}


def run_pytest(project: Path, cache: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with this plug-in and xdist and nothing else that happens to be installed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "XBFUZZ_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    plugins = ["-p", "fuzzer.pytest_plugin", "-p", "xdist", "-p", "no:cacheprovider", "--rootdir", str(project)]
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "--strict-markers", *plugins, *args]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose crash folder holds one crash of each sort, and an ordinary test."""
    place = tmp_path_factory.mktemp("project")
    changes = {
        "good": {},
        "gone": {"inputs": {"x": PLAIN}},
        "moved": {"inputs": {"x": PLAIN}, "environment": ELSEWHERE},
        "guard": {"expect": "agrees", "environment": ELSEWHERE},
        "cuda": {"target": "eager:cuda", "label": Label.parse("order/tie")},
    }
    for name, fields in changes.items():
        crash = replace(trick_crash(place / "code" / name, name, NAN), **fields)
        if name == "cuda":
            crash = replace(crash, signature=replace(crash.signature, target="eager:cuda"))
        write_crash(place / "crashes", crash)
    dies = trick_crash(place / "code" / "dies", "dies", PLAIN, mode="dies")
    write_crash(place / "crashes", replace(dies, rng_seed=1, expect="agrees"))
    away = trick_crash(place.parent / "outside", "away", NAN)
    write_crash(place / "crashes", away)
    torn = write_crash(place / "crashes", trick_crash(place / "code" / "torn", "torn", NAN))
    (torn / "inputs.safetensors").write_bytes(b"")
    (place / "test_own.py").write_text("def test_own():\n    pass\n")
    return place


@pytest.fixture(scope="module")
def said(project: Path, cache: Path) -> str:
    """What pytest prints; the project's outcome is a failure, not an error of pytest's."""
    done = run_pytest(project, cache)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def outcome(said: str, name: str) -> str:
    """The word that pytest prints behind the item of the crash with that seed."""
    found = re.search(rf"^crashes/({name}-[\w-]+)/crash\.yaml::\1 (\w+)", said, re.MULTILINE)
    assert found, said
    return found[2]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without CUDA")
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("good", "PASSED"),
        ("gone", "FAILED"),
        ("moved", "SKIPPED"),
        ("guard", "FAILED"),
        ("cuda", "SKIPPED"),
        ("dies", "FAILED"),
        ("away", "FAILED"),
        ("torn", "FAILED"),
    ],
)
def test_each_crash_is_an_item_named_by_its_id(said: str, name: str, word: str) -> None:
    assert outcome(said, name) == word


@pytest.mark.slow
def test_a_backend_that_dies_fails_its_item_and_the_tests_after_it_run(said: str) -> None:
    assert "died of SIG" in said
    assert "test_own.py::test_own PASSED" in said
    assert "5 failed, 2 passed, 2 skipped" in said


@pytest.mark.slow
def test_a_failure_speaks_of_backends_and_shows_no_traceback(said: str) -> None:
    assert re.search(r"^gone-eager-cpu-\w+: fixed, expected diverges$", said, re.MULTILINE)
    assert "recorded: eager:cpu?threads=2 and eager:cpu differ at $ (nonfinite), numeric/nonfinite?" in said
    assert "to keep it as a guard against its return: xbfuzz replay --update" in said
    assert "--xbfuzz-trust allows it" in said
    assert "its content is not what crash.yaml says" in said
    assert "Traceback" not in said
    assert "pytest_plugin.py" not in said.partition("short test summary")[0]


@pytest.mark.slow
def test_what_was_recorded_elsewhere_is_told_and_is_no_failure(said: str) -> None:
    _, _, section = said.partition("crashes that are not as recorded")
    assert re.search(r"^moved-\S+: fixed, expected diverges \[.*torch: 1\.0 → ", section, re.MULTILINE)
    assert re.search(r"SKIPPED .* recorded elsewhere: fixed", said)


@pytest.mark.slow
def test_xdist_gives_the_same_and_strict_makes_a_failure_of_what_is_gone(project: Path, cache: Path) -> None:
    done = run_pytest(project, cache, "-n", "2", "--xbfuzz-strict", "-k", "good or moved or own")
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert re.search(r"FAILED crashes/moved-", done.stdout)
    assert "crashes that are not as recorded" in done.stdout


def collected(project: Path, cache: Path, *args: str) -> set[str]:
    done = run_pytest(project, cache, "--collect-only", "-qq", *args)
    assert not done.stderr, done.stderr
    lines = (line for line in done.stdout.splitlines() if "::" in line)
    return {line.rpartition("::")[2].partition("-")[0] for line in lines}


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["-m", "order/tie"], {"cuda"}),
        (["-m", "numeric and not eager-cuda", "-k", "good or cuda"], {"good"}),
        (["-m", "eager and xbfuzz", "-k", "good or cuda or own"], {"good", "cuda"}),
        (["--xbfuzz-backends", "eager:cuda"], {"cuda", "test_own"}),
        (["--xbfuzz-backends", "onnxruntime:*,inductor:cpu"], {"test_own"}),
    ],
)
def test_crashes_are_chosen_by_label_and_by_backend(
    project: Path, cache: Path, args: list[str], names: set[str]
) -> None:
    assert collected(project, cache, *args) == names


def test_a_suite_that_has_a_crash_yaml_of_its_own_is_left_alone(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "crash.yaml").write_text("about: a car\n")
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    assert collected(tmp_path, cache) == {"test_own"}


def test_the_python_files_of_a_crash_are_never_imported(project: Path, cache: Path) -> None:
    home = next((project / "crashes").glob("good-*"))
    trap = home / "test_trap.py"
    trap.write_text("raise SystemExit('imported')\n")
    try:
        assert collected(project, cache, "--doctest-modules", "-k", "good or trap") == {"good"}
    finally:
        trap.unlink()


def test_the_fixture_gives_the_verdict_and_skips_what_cannot_run(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "test_model.py").write_text(
        "import torch\n"
        "MODEL, X = torch.nn.Linear(4, 2), torch.ones(3, 4)\n"
        "def test_agrees(xbfuzz_agree):\n    assert list(xbfuzz_agree(MODEL, X)) == ['dynamo:cpu']\n"
        "def test_elsewhere(xbfuzz_agree):\n    xbfuzz_agree(MODEL, X, ['eager:cuda'])\n"
    )
    done = run_pytest(tmp_path, cache, "--xbfuzz-backends", "dynamo:cpu")
    assert "test_agrees PASSED" in done.stdout, done.stdout
    if not torch.cuda.is_available():
        assert "test_elsewhere SKIPPED" in done.stdout


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_example_in_the_docs_passes(tmp_path: Path, cache: Path) -> None:
    (block,) = blocks("ci.md", "python")
    (tmp_path / "test_model.py").write_text(block)
    done = run_pytest(tmp_path, cache, "--xbfuzz-backends", "dynamo:cpu")
    assert "2 passed" in done.stdout, done.stdout


def test_the_known_issues_in_the_docs_load(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("crashes.md", "") if block.startswith("- pattern"))
    (tmp_path / "known.yaml").write_text(block)
    assert len(load_known(tmp_path / "known.yaml").entries) == 2
