"""The statistics of the planted-fault benchmark, against independently worked-out values and lifelines."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")
pytest.importorskip("lifelines")

from lifelines.statistics import logrank_test
from lifelines.utils import restricted_mean_survival_time

from benchmarks.planted.statistics import Times, holm, log_rank, mean_of, ratio_and_difference
from benchmarks.planted.study import SCALES, Record, jobs_of, read, whole_rounds
from benchmarks.planted.summary import by_arm, hard_faults, summarize, times_of
from benchmarks.planted.trial import Trial

BUDGET = 100


def times(*values: int) -> Times:
    """Times below the budget are detections."""
    return Times(tuple(map(float, values)), tuple(value < BUDGET for value in values))


def trial(fault: str, arm: str, number: int, detected_at: int | None) -> Trial:
    ran = detected_at or BUDGET
    return Trial(fault, arm, number, BUDGET, executions=ran, reached_at=1, triggered_at=ran, detected_at=detected_at)


SAMPLES = st.lists(st.integers(1, BUDGET), min_size=2, max_size=12).map(lambda values: times(*values))


@given(SAMPLES, SAMPLES)
def test_with_one_stratum_the_log_rank_test_is_lifelines_own(one: Times, other: Times) -> None:
    if not any(one.found + other.found):
        assert log_rank([(one, other)]) == 1.0
        return
    theirs = logrank_test(one.times, other.times, one.found, other.found).p_value
    ours = log_rank([(one, other)])
    assert ours == pytest.approx(theirs, abs=1e-9) or (ours == 1.0 and math.isnan(theirs))


@given(SAMPLES)
def test_the_restricted_mean_is_the_area_under_the_survival_curve(one: Times) -> None:
    from lifelines import KaplanMeierFitter

    curve = KaplanMeierFitter().fit(one.times, one.found)
    assert one.restricted_mean == pytest.approx(restricted_mean_survival_time(curve, t=BUDGET), rel=1e-6)


def test_strata_add_up_where_each_alone_says_little() -> None:
    early, late = times(1, 2, 9), times(5, 12, 40)
    alone = log_rank([(early, late)])
    assert log_rank([(early, late)] * 8) < 0.05 < alone


def test_strata_do_not_mix_faults_that_are_found_at_other_times() -> None:
    same = [(times(1, 2, 3), times(1, 2, 3)), (times(70, 80, 90), times(70, 80, 90))]
    assert log_rank(same) == pytest.approx(1.0)


def test_the_ratio_is_that_of_the_restricted_means_and_lies_in_its_interval() -> None:
    fast, slow = {"a": times(2, 4), "b": times(10, 20)}, {"a": times(30, 30), "b": times(100, 100)}
    ratio, difference = ratio_and_difference(slow, fast, np.random.default_rng(0))
    assert ratio.value == pytest.approx(((30 + 100) / 2) / ((3 + 15) / 2))
    assert difference.value == pytest.approx(65 - 9)
    assert ratio.low <= ratio.value <= ratio.high
    assert mean_of(fast, np.random.default_rng(0)).value == 9.0


def test_an_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        sample = Times(tuple(rng.integers(1, 100, 20).astype(float)), (True,) * 20)
        estimate = mean_of({"a": sample}, rng, repeats=400)
        hits += estimate.low <= 50.0 <= estimate.high
    assert 0.88 <= hits / 200 <= 0.99


def test_holm_multiplies_the_smallest_by_all_and_never_falls() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_what_is_not_found_is_censored_at_the_budget_and_not_dropped() -> None:
    found = times_of([trial("fast_tanh", "full", 0, 7), trial("fast_tanh", "full", 1, None)])
    assert found == Times((7.0, 100.0), (True, False))
    assert found.per_execution == pytest.approx(1 / 107)


def test_hard_are_the_faults_that_uniform_inputs_find_slower_than_one_in_a_hundred() -> None:
    record = Record()
    for number in range(4):
        record.trials += [trial("fast_tanh", "uniform", number, None), trial("writes_input", "uniform", number, 3)]
    assert hard_faults(by_arm(record)) == ["fast_tanh"]


def test_the_summary_counts_faults_and_keeps_controls_apart() -> None:
    record = Record(about={"processor": "x", "torch": "y"})
    for number in range(3):
        record.trials += [
            trial("fast_tanh", "full", number, 5 + number),
            trial("fast_tanh", "uniform", number, None),
            trial("nms_ge", "full", number, None),
            trial("nms_ge", "uniform", number, None),
            trial("none", "full", number, None),
        ]
    record.trials[-1].false = 2
    found = summarize(record)
    assert (found["faults"], found["reached"], found["detected"], found["labelled"]) == (2, 2, 1, 0)
    assert found["not"]["detected"] == ["nms_ge"]
    assert (found["controls_reported"], found["controls_executions"], found["false_reports"]) == (2, 300, 0)
    assert found["rmst_ratio"] == pytest.approx(100 / ((6 + 100) / 2))
    assert (found["recall"]["full"]["found"], found["recall"]["full"]["trials"]) == (3, 6)
    assert 0 < found["logrank_p"] < 0.1


def test_a_file_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    import json

    path = tmp_path / "trials.jsonl"
    one = trial("fast_tanh", "full", 0, 7)
    whole = json.dumps({"about": {"torch": "y"}}) + "\n" + json.dumps({"trial": one.to_json()}) + "\n"
    path.write_text(whole + '{"trial": {"fau')
    record = read(path)
    assert record.trials == [one]
    assert record.done == {("fast_tanh", "full", 0)}


def test_of_a_round_that_was_killed_nothing_is_compared() -> None:
    record = Record(about={"scale": "full", "trials": 3, "processor": "x", "torch": "y"})
    for number in range(3):
        record.trials += [trial("fast_tanh", arm, number, 5 + number) for arm in ("full", "uniform")]
    assert whole_rounds(record) == 3
    record.trials.remove(trial("fast_tanh", "uniform", 1, 6))
    found = summarize(record)
    assert (found["rounds"], found["left_out"]) == (1, 3)
    assert found["recall"]["full"]["trials"] == 1
    assert found["faults"] == 1


def test_rates_are_measured_after_one_round_so_that_a_cut_leaves_them() -> None:
    jobs = jobs_of(SCALES["full"], ["none", "fast_tanh"], ("full", "blind", "uniform", "seeds"))
    place = jobs.index(("fast_tanh", "rate", 0))
    assert {number for _, _, number in jobs[:place]} == {0}
    assert all(number > 0 for _, _, number in jobs[place + 1 :])
    counts = {arm: sum(job[:2] == ("fast_tanh", arm) for job in jobs) for arm in ("full", "blind", "uniform", "seeds")}
    assert counts == {"full": 20, "blind": 20, "uniform": 20, "seeds": 1}
    assert sum(name == "none" for name, _, _ in jobs) * SCALES["full"].budget >= 25_000


def test_a_study_has_no_job_twice_and_controls_run_in_the_full_search_alone() -> None:
    jobs = jobs_of(SCALES["full"], ["none", "fast_tanh", "relu_accuracy"], ("full", "uniform", "seeds"))
    assert len(jobs) == len(set(jobs))
    assert {arm for name, arm, _ in jobs if name == "none"} == {"full"}
    assert sum(arm == "seeds" for _, arm, _ in jobs) == 1
    assert sum(name == "relu_accuracy" for name, _, _ in jobs) == 1
