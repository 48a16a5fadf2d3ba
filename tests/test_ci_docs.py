"""docs/ci.md: the workflow and the hooks are YAML of the right form, and each of their commands is one that runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from campaign_runs import command, environment, seed_folder, trick_crash
from test_docs import blocks

from fuzzer.cli import cli
from fuzzer.crashes.store import write_crash

WORKFLOW, HOOKS = (yaml.safe_load(text) for text in blocks("docs/ci.md", "yaml"))
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["xbfuzz"]["steps"]
COMMANDS = [step["run"] for step in STEPS if step.get("run", "").startswith("xbfuzz ")]
ENTRIES = [hook["entry"] for repo in HOOKS["repos"] for hook in repo["hooks"]]


def test_the_workflow_has_what_github_asks_of_one() -> None:
    assert WORKFLOW[True] == ["push", "pull_request"]  # YAML reads `on` as true; GitHub does not mind
    assert WORKFLOW["jobs"]["xbfuzz"]["runs-on"]
    for step in STEPS:
        assert ("uses" in step) != ("run" in step)
        assert set(step) <= {"uses", "run", "name", "with", "if"}
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1"))
    names = [step.get("uses", step.get("run", "")).split("@")[0] for step in STEPS]
    assert names.index("actions/checkout") < names.index("pip install .") < names.index(COMMANDS[0])


def test_what_is_kept_is_what_the_commands_write() -> None:
    written = [word for line in COMMANDS for word in shlex.split(line) if "." in word and word != "."]
    kept = next(step for step in STEPS if "upload-artifact" in step.get("uses", ""))["with"]["path"].split()
    assert sorted(kept) == sorted(["crashes", *written])


def test_hooks_have_what_pre_commit_asks_of_local_ones() -> None:
    for repo in HOOKS["repos"]:
        assert repo["repo"] == "local"
        for hook in repo["hooks"]:
            assert {"id", "name", "entry", "language"} <= set(hook)
            assert hook["language"] == "system"
            assert set(hook.get("stages", [])) <= {"pre-commit", "pre-push", "manual"}


@pytest.mark.parametrize("line", [*COMMANDS, *ENTRIES])
def test_each_command_is_one_that_the_program_takes(line: str) -> None:
    program, name, *words = shlex.split(line)
    assert program == "xbfuzz"
    cli.commands[name].make_context(name, words)


@pytest.mark.slow
def test_the_workflow_runs_from_top_to_bottom_in_a_project_of_its_own(tmp_path: Path, cache: Path) -> None:
    """Every step with its own words, but for the budget; the exit codes are those that the page promises."""
    import torch

    seeds = seed_folder(tmp_path / "seeds", {"plain": "agrees"})
    nan = torch.tensor([[float("nan"), 0, 0, 0], [1, 2, 3, 4]])
    write_crash(tmp_path / "crashes", trick_crash(seeds, "stored", nan))
    codes = {}
    for line in [*ENTRIES[:1], *COMMANDS]:
        words = shlex.split(line.replace("--budget 10m", "--max-execs 4"))[1:]
        variables = environment(XBFUZZ_CACHE=str(cache))
        done = subprocess.run(command(*words), cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240)
        codes[words[0]] = done.returncode
        assert done.returncode == 0, (line, done.stderr)
    assert list(codes) == ["seeds", "replay", "run", "triage"]
    assert {"crashes", "report.html", "replay.xml"} <= {path.name for path in tmp_path.iterdir()}
