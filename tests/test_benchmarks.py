"""The benchmarks run, and what they count is what they say."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import ill_conditioned, known
from benchmarks.controls import report, wilson
from benchmarks.given import judge_table
from benchmarks.harmless import CONTROLS, Reversed, call
from benchmarks.known_cases import ORT, by_name
from benchmarks.known_search import Plan
from benchmarks.known_search import hunt as hunt_case
from benchmarks.lossy import lost_by
from benchmarks.mutants import BEYOND_ERROR, Caught, hunt, plant
from benchmarks.silence import Loud, Silence, Tally, reference_is_wrong, run_window
from benchmarks.tasks import ROOT, Found, Task, planned, run_task, run_tasks, synthetic_models
from fuzzer.campaign.plan import PLAIN_INPUTS
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seed, seed_to_json
from fuzzer.trees import flatten
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict


def transformer() -> Seed:
    return load_seed(ROOT / "seeds" / "transformer.yaml")


def test_controls_on_a_real_seed_are_silent(cache: Path) -> None:
    tally = run_window(transformer(), 20, rng_seed=0, cache=cache)
    assert (tally.inputs, tally.executions) == (20, 20 * len(CONTROLS))
    assert tally.false_reports == []
    assert tally.judged > 0
    assert tally.outcomes["pass"] > 0


def test_ill_conditioned_modules_are_silent(cache: Path) -> None:
    tallies = [run_window(seed, 4, rng_seed=1, cache=cache, first=PLAIN_INPUTS) for seed in ill_conditioned.seeds(ROOT)]
    assert [tally.false_reports for tally in tallies] == [[]] * len(tallies)
    assert sum(tally.judged for tally in tallies) > 0


def test_a_window_that_is_over_runs_nothing(cache: Path) -> None:
    assert run_window(transformer(), 20, rng_seed=0, cache=cache, over=lambda: True).executions == 0


def test_windows_of_one_stream_add_up_to_it(cache: Path) -> None:
    whole, parts = Tally("transformer"), Tally("transformer")
    whole.add(run_window(transformer(), PLAIN_INPUTS, rng_seed=0, cache=cache))
    for first in range(PLAIN_INPUTS):
        tally = run_window(transformer(), 1, rng_seed=0, cache=cache, first=first)
        parts.add(Tally.from_json(json.loads(json.dumps(tally.to_json()))))
    assert (parts.inputs, parts.executions) == (whole.inputs, whole.executions)
    assert parts.outcomes == whole.outcomes


def test_tasks_that_are_kept_are_not_run_again_and_files_merge(cache: Path, tmp_path: Path) -> None:
    plan = planned([transformer()], [], 200, 0, rng_seed=0, draws=0, targets=[], cache=cache)
    (task,) = [replace(task, inputs=2) for task in plan]
    state = tmp_path / "state.json"
    found = Found()
    run_tasks([task], found, state, cache=cache, jobs=1, ends_at=time.monotonic() + 300)
    assert found.tasks[task.key]["executions"] == 2 * len(CONTROLS)
    kept = Found.read(state)
    assert kept.tasks == json.loads(json.dumps(found.tasks))
    kept.tasks[task.key]["executions"] += 1000  # what is kept is believed, not run again
    run_tasks([task], kept, None, cache=cache, jobs=1, ends_at=time.monotonic() + 300)
    assert report(kept)["executions"] == 2 * len(CONTROLS) + 1000
    other = Found({"controls/transformer/9/0": found.tasks[task.key]})
    other.merge(kept)
    assert report(other)["executions"] == 4 * len(CONTROLS) + 1000
    other.merge(kept)  # the same tasks count once
    assert report(other)["executions"] == 4 * len(CONTROLS) + 1000


def test_a_task_that_dies_is_named_and_the_others_go_on(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\n\ndef build():\n    os.abort()\n")
    deadly = {"source": "builder", "builder": "deadly:build", "path": "."}
    inputs = {"x": {"kind": "floats", "shape": [2]}}
    seed = Seed.model_validate({"name": "deadly", "model": deadly, "inputs": inputs})
    plan = planned([transformer()], [], 7, 0, rng_seed=0, draws=0, targets=[], cache=cache)
    tasks = [
        Task("mutants/deadly", (seed_to_json(seed), str(tmp_path)), draws=1),
        *(replace(t, inputs=1) for t in plan),
    ]
    found = Found()
    run_tasks(tasks, found, None, cache=cache, jobs=1, ends_at=time.monotonic() + 300)
    assert found.died == ["mutants/deadly: its process died"]
    assert report(found)["executions"] == len(CONTROLS)


def test_nothing_starts_once_the_time_is_over(cache: Path) -> None:
    for task in planned([transformer()], [], 200, 0, rng_seed=0, draws=1, targets=[ORT], cache=cache):
        assert run_task(task, cache, time.monotonic()) is None


@pytest.mark.parametrize(
    ("function", "value", "told"),
    [
        (lambda x: torch.nn.functional.layer_norm(x, (64,)), 1e30, "native_layer_norm overflows or gives NaN"),
        (lambda x: torch.nn.functional.layer_norm(x, (64,)), 1.0, None),
        (lambda x: (x * x).sum() - (x * x).sum(), 1e4, None),
        (lambda x: torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist"), 1e25, "_euclidean_dist overflows"),
    ],
)
def test_the_operator_that_lost_it_is_told(function: Any, value: float, told: str | None) -> None:
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) * value
    loss = lost_by(lambda sample: function(sample["x"]), {"x": x})
    assert (loss is None) if told is None else str(loss).startswith(told)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_a_control_computes_the_same_in_another_way(control: Any, cache: Path) -> None:
    seed = transformer()
    sample = base_sample(seed, 0)
    run = control.build(build_model(seed, cache))
    plain, other = flatten(call(build_model(seed, cache), sample)), flatten(run(sample))
    assert plain.keys() == other.keys()
    for path, leaf in plain.items():
        torch.testing.assert_close(other[path], leaf, rtol=1e-4, atol=1e-5)


@given(st.integers(1, 40), st.integers(0, 2**20))
def test_reversed_sums_are_those_of_the_reversed_terms(length: int, seed: int) -> None:
    x = torch.rand(3, length, generator=torch.Generator().manual_seed(seed)) * 1e4
    w = torch.rand(length, 2, generator=torch.Generator().manual_seed(seed + 1))
    with Reversed():  # type: ignore[no-untyped-call]
        summed, product, shares = x.sum(-1), x @ w, x.softmax(-1)
    assert torch.equal(summed, x.flip(-1).sum(-1))
    assert torch.equal(product, x.flip(-1) @ w.flip(0))
    torch.testing.assert_close(shares, x.softmax(-1))


def test_every_mutant_of_the_synthetic_outputs_is_caught() -> None:
    found = Caught()
    hunt(synthetic_models()[0], 1, found)
    wanted = {
        *("one element moved", "two elements swapped", "a leaf zeroed", "NaN moved", "last tile wrong"),
        *("an integer 1 more", "an integer 4 more", "(n, 1) for (n, n)", "a row less", "a leaf dropped"),
        *("a key renamed", "a list one shorter", "−0 for +0", "float16 inside"),
    }
    assert set(found.planted) == wanted
    assert found.missed == []
    assert found.caught == found.planted


@pytest.mark.parametrize("error", [0.0, 1e-6, 0.5])
def test_the_moved_element_moves_further_than_the_models_own_rounding(error: float) -> None:
    leaf = torch.linspace(-1, 1, 21)
    truth = leaf.double() + error
    truth[:2] += 100  # two rows that changed places are no rounding
    wrong = next(leaves["$"] for name, _, leaves in plant({"$": leaf}, {"$": truth}) if name == "one element moved")
    moved = (wrong - leaf).abs()
    assert int((moved > 0).sum()) == 1
    step = max(1e-3 * float(leaf.double().std()), BEYOND_ERROR * error)
    assert float(moved.max()) == pytest.approx(step, rel=1e-3)


@pytest.mark.slow
def test_one_element_in_four_million_is_caught() -> None:
    found = Caught()
    hunt(synthetic_models()[1], 1, found, {"one element moved"})
    assert found.caught == {"one element moved": 1}


@pytest.mark.parametrize(
    ("kinds", "blame", "right"),
    [
        ([Kind.NONFINITE], Blame.REFERENCE, True),
        ([Kind.NONFINITE], Blame.BOTH, False),
        ([Kind.NONFINITE], Blame.TARGET, False),
        ([Kind.VALUE], Blame.REFERENCE, False),  # the judge's own noise would clear itself
        ([Kind.NONFINITE, Kind.VALUE], Blame.REFERENCE, False),
    ],
)
def test_a_reference_that_is_nan_where_its_float64_is_not_is_rightly_reported(
    kinds: list[Kind], blame: Blame, right: bool
) -> None:
    found = Verdict(Outcome.MISMATCH, differences=[Difference("$", kind, "", blame=blame) for kind in kinds])
    assert reference_is_wrong(found) is right


def test_a_wrong_reference_is_counted_beside_the_faults_of_kernels(cache: Path) -> None:
    lane = Silence(transformer(), cache, 0, time.perf_counter)
    found = Verdict(Outcome.MISMATCH, differences=[Difference("$", Kind.NONFINITE, "", blame=Blame.REFERENCE)])
    for of_kernel in (False, False, True):
        lane._count(found, "itself", Recipe(0), 0, "softmax", of_kernel=of_kernel)
    tally = Tally.from_json(json.loads(json.dumps(lane.tally.to_json())))
    assert (tally.reference_faults, tally.kernel_faults, tally.false_reports) == (2, 1, [])
    assert tally.reference_faults_by_group == {"softmax": 2}
    assert [loud.group for loud in tally.reference_faults_shown] == ["softmax"]


def test_two_runs_take_other_streams_and_merge_and_a_later_result_replaces_an_earlier(cache: Path) -> None:
    plans = [
        planned([transformer()], [], 3000, 0, rng_seed=rng_seed, draws=1, targets=[ORT], cache=cache)
        for rng_seed in (0, 1)
    ]
    streams = [{task.rng_seed for task in plan if task.kind == "controls"} for plan in plans]
    assert all(streams)
    assert not streams[0] & streams[1]
    keys = [{task.key for task in plan} for plan in plans]
    assert {key.split("/")[0] for key in keys[0] & keys[1]} == {"mutants", "given"}
    loud = Loud("s", "itself", {}, 0, "", [], "reference", "softmax rounds")
    odd = Tally("s", executions=3, reference_faults=1, reference_faults_shown=[loud])
    odd.reference_faults_by_group["softmax rounds"] = 1
    found = Found({"controls/s/0/0": odd.to_json(), "mutants/s": vars(Caught({"a": 1}))})
    found.merge(Found({"controls/s/1/0": odd.to_json(), "mutants/s": vars(Caught({"a": 1}, {"a": 1}))}))
    told = report(found)
    assert (told["executions"], told["reference_faults"], told["caught"]["count"]) == (6, 2, 1)
    assert [(group["count"], group["example"]["control"]) for group in told["reference_fault_groups"]] == [
        (2, "itself")
    ]


def test_a_report_is_told_from_a_near_tie(cache: Path) -> None:
    lane = Silence(transformer(), cache, 0, time.perf_counter)
    apart = [Difference("$", Kind.VALUE, "", near_tie=tie) for tie in (True, False)]
    for differences in (apart[:1], apart):
        lane._count(Verdict(Outcome.MISMATCH, differences=differences), "itself", Recipe(0), 0, "")
    assert lane.tally.near_ties == 1
    assert [len(loud.differences) for loud in lane.tally.false_reports] == [2]


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_holds_the_share_and_stays_within_one(hits: int, trials: int) -> None:
    hits = min(hits, trials)
    low, high = wilson(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1


def test_wilsons_interval_has_its_known_values() -> None:
    """Newcombe (1998), table I: 81 of 263 has 0.2553 to 0.3662, 0 of 20 has 0 to 0.1611."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_table_is_judged_pair_by_pair() -> None:
    chosen = [by_name(name) for name in ("expm1_tiny", "embedding_minus_two", "clamp_nan", "gelu_tail")]
    found = judge_table([ORT], chosen)
    assert (found.pairs, found.flagged, found.raising, found.raising_flagged) == (1, 1, 1, 1)
    assert (found.controls, found.controls_flagged, found.benign, found.benign_flagged) == (1, 0, 1, 0)


def test_the_report_is_json_with_the_keys_that_it_promises() -> None:
    faults = Tally("s", executions=3, kernel_faults=2, kernel_faults_by_group=Counter({"softmax": 2}))
    tasks = {"mutants/s": vars(Caught({"a": 2}, {"a": 1})), "given/t/0": judge_table([], []).to_json()}
    found = report(Found(tasks | {"controls/s/0/0": faults.to_json(), "controls/s/0/1": faults.to_json()}))
    assert {"executions", "false_reports", "mutants", "caught", "given", "screen_overhead", "tier2_s"} <= set(found)
    assert (found["executions"], found["mutants"], found["caught"]["count"]) == (6, 2, 1)
    assert [(group["group"], group["count"], group["seeds"]) for group in found["kernel_fault_groups"]] == [
        ("softmax", 4, {"s": 4})
    ]
    json.dumps(found)


def test_a_small_campaign_finds_a_known_case_from_ordinary_inputs() -> None:
    found = hunt_case(by_name("average_pool_divisor"), Plan(100))
    assert found.first is not None
    assert found.labelled_at is not None
    assert found.executions == found.labelled_at
    assert found.expected in found.labels
    told = json.loads(json.dumps(known.report([found])))
    assert (told["cases"], told["found"], told["labelled"]) == (1, 1, 1)
    assert told["hunts"][0]["labels"] == dict(found.labels)


def test_a_case_that_kills_its_process_is_found_by_its_death() -> None:
    found = hunt_case(by_name("roi_align_nan"), Plan(400, diagnose_s=10))
    assert "execution/crash" in found.labels
    assert "died" in found.note


def test_what_a_target_refuses_is_found_when_it_is_prepared() -> None:
    found = hunt_case(by_name("stable_sort"), Plan(10))
    assert found.note.startswith("refused: ")
    assert found.labelled_at == 0
