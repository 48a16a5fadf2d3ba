"""A campaign is the same whoever is slow, goes on after any death, its own included, and stores what reproduces."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from campaign_runs import TARGET, count, events, seed_folder, start, until, workers_of, xbfuzz

from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import State, Where
from fuzzer.campaign import Campaign, Options, loop
from fuzzer.campaign.lane import Lane
from fuzzer.campaign.plan import make_plan
from fuzzer.crashes.crash import seed_of
from fuzzer.crashes.store import load_crash
from fuzzer.models import build_model
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seeds

OTHER = "eager:cpu?layout=channels_last"
RUN_KEYS = {
    *("inputs", "executions", "elapsed_s", "first_comparison_s", "digest", "targets", "vacuous", "findings"),
    *("exit_code", "interrupted", "harness_errors", "outcomes"),
}


class Ran(NamedTuple):
    """One `run --json`: where, with what exit status, what it printed, and its journal."""

    out: Path
    status: int
    said: dict[str, Any]
    journal: list[dict[str, Any]]
    stderr: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    seed_folder(folder / "seeds", {"nan": "drops-nan"}, targets=(TARGET, OTHER))
    return folder


def fuzz(place: Path, cache: Path, out: str, *more: str, seeds: str = "seeds", rng: int = 1, **extra: str) -> Ran:
    arguments = ("run", seeds, "--rng-seed", str(rng), "--out", out, "--cache", cache, "--json", *more)
    if "--max-execs" not in more:
        arguments = (*arguments, "--max-execs", "60")
    done = xbfuzz(*arguments, cwd=place, **extra)
    assert done.stdout, done.stderr
    return Ran(place / out, done.returncode, json.loads(done.stdout), events(place / out), done.stderr)


@pytest.fixture(scope="module")
def first(place: Path, cache: Path) -> Ran:
    return fuzz(place, cache, "A")


@pytest.fixture(scope="module")
def second(place: Path, cache: Path, first: Ran) -> Ran:
    return fuzz(place, cache, "A")


def test_a_run_prints_one_object_with_all_that_a_machine_wants_to_know(first: Ran) -> None:
    said = first.said
    assert said.keys() >= RUN_KEYS
    assert (said["inputs"], said["executions"]) == (30, 60)
    assert 0 < said["first_comparison_s"] < said["elapsed_s"]
    assert {t["backend"]: t["status"] for t in said["targets"]} == {TARGET: "ok", OTHER: "ok"}
    assert all(t.keys() >= {"seed", "reason", "evidence"} for t in said["targets"])
    assert said["targets"][0]["evidence"]["threads"] == 2
    keys = {"id", "label", "seed", "target", "tiers", "executions_to_detection", "new"}
    assert said["findings"]
    assert all(finding.keys() >= keys for finding in said["findings"])


def test_statistics_on_disk_are_what_was_printed(first: Ran) -> None:
    assert json.loads((first.out / first.said["run"] / "stats.json").read_text()) == first.said


def test_new_findings_exit_1_and_known_ones_exit_0(first: Ran, second: Ran) -> None:
    assert first.status == first.said["exit_code"] == 1
    assert all(finding["new"] for finding in first.said["findings"])
    assert second.status == second.said["exit_code"] == 0
    assert {f["id"] for f in second.said["findings"]} == {f["id"] for f in first.said["findings"]}
    assert {f["standing"] for f in second.said["findings"]} == {"known"}


def test_only_the_target_that_disagrees_has_findings(first: Ran) -> None:
    outcomes = {t["backend"]: t["outcomes"] for t in first.said["targets"]}
    assert outcomes[OTHER] == {"pass": 30}
    assert outcomes[TARGET]["mismatch"] == sum(finding["count"] for finding in first.said["findings"])


def test_the_same_rng_seed_gives_the_same_inputs_and_another_one_others(
    first: Ran, second: Ran, place: Path, cache: Path
) -> None:
    other = fuzz(place, cache, "other", rng=2)
    assert first.said["digest"] == second.said["digest"] != other.said["digest"]
    assert len(first.said["digest"]) == 32


def test_a_slow_target_and_one_that_is_ready_late_change_nothing(first: Ran, place: Path, cache: Path) -> None:
    slow = fuzz(place, cache, "slow", TRICK_SLEEP="0.03", TRICK_LATE=str(place / "late"))
    assert slow.said["digest"] == first.said["digest"]
    ran = {
        spec: [e["index"] for e in slow.journal if e["event"] == "run" and e["target"] == spec]
        for spec in (TARGET, OTHER)
    }
    assert ran[TARGET] == ran[OTHER] == list(range(30)), "each target sees every input, from the first, in order"
    order = [e["target"] for e in slow.journal if e["event"] == "run"]
    assert order[:3] in ([TARGET] * 3, [OTHER] * 3), "one of them was late"


def test_what_is_stored_reproduced_and_was_shrunk(first: Ran) -> None:
    (finding,) = [f for f in first.said["findings"] if f["kind"] == "nonfinite"]
    assert finding["standing"] == "stored"
    crash = load_crash(first.out / "crashes" / finding["id"])
    assert (crash.target, crash.blame) == (TARGET, "target")
    as_found = next(e for e in first.journal if e["event"] == "finding" and e["id"] == finding["id"])
    before, shrunk = Recipe.from_json(as_found["recipe"]), Recipe.from_json(crash.found["recipe"])
    assert len(shrunk.steps) == 1 <= len(before.steps), "one mutation makes the NaN; no other is needed"
    assert (crash.recipe, crash.found["reduction"]["finished"]) == (None, True)
    left = crash.inputs["x"].nonzero().tolist()
    assert crash.sizes == {"original": 8, "reduced": 8, "filled": len(left)}
    assert len(left) == (1 if bool(crash.inputs["x"].isnan().any()) else 2), "a NaN, or infinities that cancel"
    module = build_model(seed_of(crash), None).module
    assert module is not None
    linear = module.get_submodule("linear")  # what the trick computes where it is no target
    assert bool(linear(crash.inputs["x"]).isnan().any())
    for row, column in left:
        without = crash.inputs["x"].clone()
        without[row, column] = 0.0
        assert not bool(linear(without).isnan().any()), "what is left among the zeros is needed"
    assert crash.original is not None
    told = [t for t in first.journal if t["event"] == "confirmed" and t["id"] == finding["id"]]
    assert [t["standing"] for t in told] == ["stored"] * 4, "as found, reduced, diagnosed, taken apart"
    assert crash.diagnosis, "the graph step, which comes last, leaves the diagnosis of the whole"
    assert crash.found["reduction"]["whole"] == "its graph of operators shows no difference", "the fault is Python's"
    assert finding["detail"].startswith("reduced: 8 elements")
    assert sorted(p.name for p in (first.out / "crashes").iterdir() if p.is_dir()) == sorted(
        f["id"] for f in first.said["findings"]
    )


def test_corpora_of_two_runs_are_one_set(first: Ran, second: Ran) -> None:
    kept = sorted(path.stem for path in (first.out / "corpus" / "nan").glob("*.json"))
    tensors = sorted(path.stem for path in (first.out / "corpus" / "nan").glob("*.safetensors"))
    fresh = {e["content"] for e in first.journal if e["event"] == "input" and e["new"]}
    assert kept == tensors
    assert set(kept) == fresh, "the second run, which kept the same inputs, has added nothing"


@pytest.mark.slow
def test_a_campaign_survives_sigint_and_kill_9_and_ends_with_the_same_digest(
    first: Ran, place: Path, cache: Path
) -> None:
    out = place / "killed"
    arguments = ("run", "seeds", "--rng-seed", "1", "--max-execs", "60", "--out", out, "--cache", cache, "--json")
    hold = place / "hold"
    hold.touch()
    process = start(*arguments, cwd=place, TRICK_HOLD=str(hold))
    until(lambda: count(out, "run") >= 1, process=process)  # the next seven inputs are on their way

    beside = xbfuzz(*arguments, cwd=place)
    assert beside.returncode == 2
    (line,) = beside.stderr.splitlines()
    assert "another campaign is running in" in line
    assert beside.stdout == ""

    process.send_signal(signal.SIGINT)
    hold.unlink()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    interrupted = json.loads(stdout)
    assert interrupted["interrupted"]
    before = count(out, "run")
    assert interrupted["executions"] == before < 60

    process = start(*arguments, "--resume", cwd=place, TRICK_SLEEP="0.2")
    until(lambda: count(out, "run") >= before + 6, process=process)
    workers = workers_of(process)
    assert len(workers) >= 3
    process.kill()
    process.communicate(timeout=10)
    until(lambda: not any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers), seconds=20)
    ran = count(out, "run")

    last = fuzz(place, cache, "killed", "--resume")
    assert len(list((out / "runs").glob("*/events.jsonl"))) == 1
    assert last.said["digest"] == first.said["digest"]
    assert (last.said["inputs"], last.said["executions"]) == (30, 60)
    indices = [e["index"] for e in last.journal if e["event"] == "input"]
    assert indices == list(range(30)), "no input was lost or made twice"
    per_target = [(e["target"], e["index"]) for e in last.journal if e["event"] == "run"]
    assert len(per_target) == len(set(per_target)) == 60 > ran
    assert {f["id"]: f["standing"] for f in last.said["findings"]} == {
        f["id"]: f["standing"] for f in first.said["findings"]
    }
    assert last.status == 1
    counts = {f["id"]: f["count"] for f in first.said["findings"]}
    for finding in last.said["findings"]:  # the input in flight may have been seen a second time
        assert 0 <= finding["count"] - counts[finding["id"]] <= 2


def test_a_run_is_resumed_only_as_what_it_was(first: Ran, place: Path, cache: Path) -> None:
    other = xbfuzz("run", "seeds", "--rng-seed", "2", "--max-execs", "60", "--out", "A", "--resume", cwd=place)
    assert (other.returncode, other.stdout) == (2, "")
    assert "--rng-seed 1" in other.stderr
    seed_folder(place / "changed", {"nan": "agrees"})
    changed = xbfuzz("run", "changed", "--rng-seed", "1", "--max-execs", "60", "--out", "A", "--resume", cwd=place)
    assert (changed.returncode, changed.stdout) == (2, "")
    assert "nan changed since that run" in changed.stderr


@pytest.fixture(scope="module")
def deaths(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Ran:
    """Four seeds: a target that dies, one that hangs, one that is killed from outside, and a reference that dies."""
    place = tmp_path_factory.mktemp("deaths")
    modes = {"dies": "dies", "hangs": "hangs", "waits": "waits", "refdies": "reference-dies"}
    seeds = seed_folder(place / "seeds", modes, extra="deadline_s: 3\nmutators: {only: [scale]}\n")
    (seeds / "waits.yaml").write_text((seeds / "waits.yaml").read_text().replace("deadline_s: 3", "deadline_s: 60"))
    (seeds / "wait").touch()
    arguments = ("run", "seeds", "--rng-seed", "1", "--max-execs", "40", "--out", "out", "--cache", cache, "--json")
    process = start(*arguments, cwd=place)
    until((seeds / "pid").exists, process=process, seconds=500)
    (seeds / "wait").unlink()
    others = {"hangs", "refdies"}  # go on while one of them gets no answer
    until(lambda: _runs(place / "out", others) == 20, process=process, seconds=500)
    until(lambda: (seeds / "pid").read_text() != "")
    os.kill(int((seeds / "pid").read_text()), signal.SIGSEGV)
    stdout, stderr = process.communicate(timeout=200)
    assert stdout, stderr
    return Ran(place / "out", process.returncode, json.loads(stdout), events(place / "out"), stderr)


def _runs(out: Path, seeds: set[str]) -> int:
    return sum(event["event"] == "run" and event["seed"] in seeds for event in events(out))


def finding_of(ran: Ran, seed: str) -> dict[str, Any]:
    (found,) = [finding for finding in ran.said["findings"] if finding["seed"] == seed]
    return dict(found)


def target_of(ran: Ran, seed: str) -> dict[str, Any]:
    (found,) = [target for target in ran.said["targets"] if target["seed"] == seed]
    return dict(found)


def test_a_target_that_dies_is_a_crash_that_reproduces(deaths: Ran) -> None:
    finding = finding_of(deaths, "dies")
    assert (finding["standing"], finding["kind"], finding["blame"]) == ("stored", "crash", "target")
    assert finding["label"] == "execution/crash", "confirmed: it died again in fresh processes"
    assert "SIGSEGV" in finding["message"]
    assert (deaths.out / "crashes" / finding["id"] / "crash.yaml").exists()


def test_a_target_that_keeps_dying_is_abandoned_and_shown_so(deaths: Ran) -> None:
    target = target_of(deaths, "dies")
    assert target["status"] == "abandoned"
    assert target["reason"].startswith("died 5 times")
    assert target["executions"] == 6, "one answer, five deaths"


def test_a_target_that_hangs_is_a_finding_and_the_campaign_goes_on(deaths: Ran) -> None:
    finding = finding_of(deaths, "hangs")
    assert (finding["standing"], finding["kind"], finding["count"]) == ("stored", "hang", 1)
    assert target_of(deaths, "hangs")["outcomes"] == {"mismatch": 1, "pass": 9}


def test_a_death_from_outside_does_not_reproduce_and_is_no_crash(deaths: Ran) -> None:
    finding = finding_of(deaths, "waits")
    assert (finding["standing"], finding["kind"], finding["new"]) == ("unconfirmed", "crash", False)
    assert finding["detail"] == "in fresh processes: fixed"
    assert not (deaths.out / "crashes" / finding["id"]).exists()
    assert (deaths.out / deaths.said["run"] / "findings" / finding["id"]).exists(), "it is kept for a look"


def test_a_reference_that_dies_is_isolated_and_blamed(deaths: Ran) -> None:
    finding = finding_of(deaths, "refdies")
    assert (finding["standing"], finding["kind"], finding["blame"]) == ("stored", "crash", "reference")
    assert target_of(deaths, "refdies")["status"] == "ok"
    assert target_of(deaths, "refdies")["outcomes"]["pass"] >= 8


@pytest.mark.slow
def test_more_lanes_than_fit_take_turns(tmp_path: Path, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SLICE_S", 0.0)
    seed_folder(tmp_path / "seeds", {"a": "agrees"}, targets=(TARGET, OTHER))
    seeds = seed_folder(tmp_path / "seeds", {"b": "agrees"})
    most = 0

    def watch(campaign: Campaign) -> None:
        nonlocal most
        most = max(most, sum(s.pid is not None for lane in campaign.lanes for s in lane.sessions))

    options = Options(out=tmp_path / "out", budget_s=200, max_execs=6, max_workers=3)
    summary = Campaign(load_seeds([seeds]), options, where, watch=watch).run()
    assert most == 3
    assert summary.elapsed_s < 200, "neither a lane nor a second target starves"
    assert [(t["seed"], t["executions"]) for t in summary.targets] == [("a", 2), ("a", 2), ("b", 2)]


def test_accepted_behaviour_is_counted_and_not_stored_and_private_keeps_no_originals(
    tmp_path: Path, cache: Path
) -> None:
    seeds = seed_folder(tmp_path / "seeds", {"nan": "drops-nan"})
    seed_folder(tmp_path / "seeds", {"owned": "drops-nan"}, extra="accept: [{kind: nonfinite, why: we know}]\n")
    ran = fuzz(tmp_path, cache, "out", "--private", seeds=str(seeds))
    owned = next(t for t in ran.said["targets"] if t["seed"] == "owned")
    assert ran.said["accepted"] == {"we know": owned["outcomes"]["mismatch"]}
    assert {f["seed"] for f in ran.said["findings"]} == {"nan"}
    names = {path.name for path in ran.out.rglob("*") if path.is_file()}
    assert "inputs.safetensors" in names
    assert "original.safetensors" not in names
    assert not (ran.out / "corpus").exists()


def test_a_full_disk_ends_the_campaign_with_one_line_and_a_journal_that_can_be_resumed(
    tmp_path: Path, cache: Path
) -> None:
    seed_folder(tmp_path / "seeds", {"ok": "agrees"})
    arguments = ("run", "seeds", "--max-execs", "100", "--out", "out", "--cache", cache, "--private", "--json")
    process = start(*arguments, cwd=tmp_path, TRICK_SLEEP="0.05")
    until(lambda: count(tmp_path / "out", "run") >= 4, process=process)
    (journal,) = (tmp_path / "out" / "runs").glob("*/events.jsonl")
    limit = journal.stat().st_size + 300
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    (line,) = stderr.splitlines()
    assert line.startswith("xbfuzz: cannot write under")
    assert line.endswith("File too large")
    done = xbfuzz(*arguments, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["executions"] == 100


def test_a_quick_target_is_prepared_first_and_alone_until_something_was_compared(tmp_path: Path) -> None:
    model, inputs = {"source": "builder", "builder": "m:M"}, {"x": {"kind": "floats", "shape": [2]}}
    targets = ["inductor:cpu", "aot_eager:cpu", "eager:cpu?threads=2"]
    given = Seed.model_validate({"name": "n", "model": model, "inputs": inputs, "backends": targets})
    (planned,) = make_plan([given], Options(out=tmp_path)).seeds
    lane = Lane(planned, Where(None), 0, [])
    waiting = [session.backend for session in lane.wanted()]
    assert waiting == ["eager:cpu", ORACLE, "aot_eager:cpu", "eager:cpu?threads=2", "inductor:cpu"]
    slow, quick, other = lane.targets
    assert slow.session is not None
    assert quick.session is not None
    assert not lane.awaits_first
    quick.session.state = State.PREPARING
    assert lane.awaits_first
    other.executions = 1
    assert not lane.awaits_first
    other.executions, quick.session.state, slow.session.state = 0, State.READY, State.PREPARING
    assert not lane.awaits_first  # nobody waits for the slow one
