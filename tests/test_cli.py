"""The command line: whatever is wrong is one clear line and exit 2, before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from campaign_runs import command, environment, seed_folder, xbfuzz
from crash_samples import builder_seed, pool_crash
from safetensors.torch import save_file

from fuzzer.campaign import Campaign
from fuzzer.campaign.summary import Summary
from fuzzer.cli import main
from fuzzer.crashes.store import write_crash


class Said(NamedTuple):
    status: int
    out: str
    err: list[str]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run a command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, out, err.splitlines())

    return call


def refuses(said: Said, *words: str) -> None:
    """One line on standard error with all `words`, nothing on standard output, exit 2."""
    assert (said.status, said.out) == (2, ""), said
    (line,) = said.err
    assert line.startswith("xbfuzz")
    for word in words:
        assert word in line


GOOD = """name: one
model: {source: builder, path: ., builder: 'trick:Trick'}
inputs:
  x: {kind: floats, shape: [2, 4]}
backends: ['eager:cpu?threads=2']
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "backend: [x]\n", ["one.yaml:6", "backend", "did you mean 'backends'"]),
        (GOOD + "deadline_s: soon\n", ["one.yaml:6", "deadline_s", "number"]),
        (GOOD + "name: two\n", ["one.yaml:6", "name", "twice"]),
        (GOOD.replace("trick:", "truck:"), ["no module 'truck'"]),
        (GOOD.replace("Trick'", "Trick', weights: gone.safetensors"), ["gone.safetensors"]),
        (GOOD.replace("eager:cpu?", "eagre:cpu?"), ["no backend is called 'eagre'", "did you mean 'eager'"]),
        (GOOD.replace("?threads", "?thread"), ["thread"]),
        (GOOD + "mutators: {only: [scales]}\n", ["seed one", "scales", "scale"]),
        (GOOD.replace("kind: floats", "kind: floats, files: [gone.npz]"), ["gone.npz"]),
    ],
)
def test_a_seed_that_does_not_hold_together_is_told_in_one_line(
    say, tmp_path: Path, text: str, words: list[str]
) -> None:  # type: ignore[no-untyped-def]
    seeds = seed_folder(tmp_path / "seeds", {})
    (seeds / "one.yaml").write_text(text)
    refuses(say("run", seeds, "--max-execs", "4", "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists(), "nothing is written before the seeds hold together"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "gone.yaml"], ["gone.yaml"]),
        (["run", "empty"], ["empty", "no *.yaml file"]),
        (["run", "seeds", "--budget", "soon"], ["'soon'", "90s"]),
        (["run", "seeds", "--budget", "10m3"], ["'10m3'"]),
        (["run", "seeds", "--budget", "0s"], ["longer than nothing"]),
        (["run", "seeds", "--max-execs", "0"], ["--max-execs"]),
        (["run", "seeds", "--max-exec", "3"], ["--max-exec", "--max-execs"]),
        (["run", "seeds", "--rng-seed", "-1"], ["--rng-seed"]),
        (["run", "seeds", "--corpus", "gone"], ["gone"]),
        (["run", "seeds", "--backend", "onnxruntim:cpu"], ["did you mean 'onnxruntime'"]),
        (["run", "seeds", "--max-execs", "3", "--out", "file"], ["cannot write under file"]),
        (["run", "seeds", "--max-execs", "3", "--resume"], ["no run to resume"]),
        (["replay", "gone"], ["gone", "no such folder"]),
        (["replay", "seeds"], ["seeds"]),
        (["show", "gone"], ["no crash gone"]),
        (["triage", "--crashes", "gone"], ["gone"]),
        (["fuzz"], ["fuzz"]),
    ],
)
def test_a_command_line_that_makes_no_sense_is_told_in_one_line(  # type: ignore[no-untyped-def]
    say, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    seeds = seed_folder(tmp_path / "seeds", {})
    (seeds / "one.yaml").write_text(GOOD)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    refuses(say(*arguments), *words)


@pytest.fixture
def crash_folder(tmp_path: Path) -> Path:
    return write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "own")))


@pytest.mark.parametrize("verb", ["replay", "triage", "show"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("crash.yaml", b"\xff\xfe"),
        ("crash.yaml", b"format: 1\n"),
        ("crash.yaml", b"a: !!python/object/apply:os.system [touch pwned]\n"),
        ("inputs.safetensors", b"not tensors"),
    ],
)
def test_a_damaged_crash_folder_is_told_in_one_line(  # type: ignore[no-untyped-def]
    say, crash_folder: Path, verb: str, name: str, content: bytes
) -> None:
    (crash_folder / name).write_bytes(content)
    given = {"replay": [crash_folder], "triage": [], "show": [crash_folder.name]}[verb]
    refuses(say(verb, *given), str(Path(crash_folder.name) / name))
    assert not Path("pwned").exists()


def test_a_crash_whose_code_is_not_the_projects_own_asks_for_trust(say, tmp_path: Path, crash_folder: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "project").mkdir()
    os.chdir(tmp_path / "project")
    refuses(say("replay", crash_folder), crash_folder.name, "outside", "--trust allows it")


def test_what_is_listed_needs_no_worker(say, tmp_path: Path, crash_folder: Path) -> None:  # type: ignore[no-untyped-def]
    seeds = seed_folder(tmp_path / "seeds", {"one": "agrees", "two": "dies"})
    listed = say("seeds", seeds, "--json")
    assert [seed["name"] for seed in json.loads(listed.out)["seeds"]] == ["one", "two"]
    assert "eager:cpu" in [b["backend"] for b in json.loads(say("backends", "--json").out)["backends"]]
    (crash,) = json.loads(say("triage", "--json").out)["crashes"]
    assert crash["id"] == crash_folder.name
    assert json.loads(say("show", crash_folder.name[:9], "--json").out)["id"] == crash_folder.name
    assert crash_folder.name in say("triage").out


def test_a_fault_of_our_own_exits_3_and_debug_shows_where(  # type: ignore[no-untyped-def]
    say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Campaign) -> Summary:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Campaign, "run", broken)
    seeds = seed_folder(tmp_path / "seeds", {"one": "agrees"})
    said = say("run", seeds)
    assert (said.status, said.out, len(said.err)) == (3, "", 1)
    assert "internal error: ZeroDivisionError: ours" in said.err[0]
    debugged = say("run", seeds, "--debug")
    assert debugged.status == 3
    assert any("Traceback" in line for line in debugged.err)


@pytest.mark.parametrize(
    ("outcomes", "findings", "errors", "interrupted", "status"),
    [
        ({"pass": 3}, [], [], False, 0),
        ({"pass": 3, "mismatch": 1}, ["known"], [], False, 0),
        ({"pass": 3, "mismatch": 1}, ["known", "stored"], [], False, 1),
        ({"mismatch": 1}, ["unconfirmed"], [], False, 1),
        ({"vacuous": 3, "not-compared": 4}, [], [], False, 2),
        ({}, [], [], False, 2),
        ({"pass": 3, "not-compared": 1}, [], ["harness error"], False, 3),
        ({"pass": 3}, ["stored"], ["harness error"], True, 130),
    ],
)
def test_the_exit_status_says_how_it_went(
    outcomes: dict[str, int], findings: list[str], errors: list[str], interrupted: bool, status: int
) -> None:
    found = [{"standing": standing} for standing in findings]
    summary = Summary(0, 0, 0, 1.0, None, "", outcomes, 0, [], [], [], found, {}, errors, interrupted)
    assert summary.exit_code == status


def test_help_and_no_arguments_explain_and_succeed(say) -> None:  # type: ignore[no-untyped-def]
    assert say().out == say("--help").out
    assert "run" in say("-h").out
    assert say("run", "--help").status == 0


def test_a_reader_that_has_seen_enough_is_no_fault(tmp_path: Path) -> None:
    shell = " ".join(f"'{word}'" for word in command("backends"))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell} | true"],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""


def test_weights_that_do_not_fit_and_a_model_that_cannot_be_built_are_told(tmp_path: Path, cache: Path) -> None:
    seeds = seed_folder(tmp_path / "seeds", {"one": "agrees", "two": "agrees"})
    save_file({"linear.weight": torch.zeros(3, 3)}, seeds / "small.safetensors")
    text = (seeds / "one.yaml").read_text()
    (seeds / "one.yaml").write_text(text.replace("mode: agrees}", "mode: agrees}, weights: small.safetensors"))
    (seeds / "two.yaml").write_text(text.replace("one", "two").replace("mode: agrees", "gone: 1"))
    done = xbfuzz("run", "seeds", "--max-execs", "4", "--out", "out", "--cache", cache, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("xbfuzz: nothing was compared: one: the reference eager:cpu cannot be prepared")
    assert "small.safetensors" in last
    assert "two: the reference eager:cpu cannot be prepared" in last
    assert "Traceback" not in done.stdout + done.stderr


def test_a_corpus_folder_without_kept_inputs_is_told_as_such(say, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "other" / "notes").mkdir(parents=True)
    (tmp_path / "other" / "notes" / "text.txt").write_text("mine")
    said = say("corpus", "minimize", "other")
    assert (said.status, said.out, said.err) == (0, "other: holds no kept inputs\n", [])
