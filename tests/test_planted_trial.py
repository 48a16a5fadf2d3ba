"""One trial for each kind of fault, with the campaign's own stream, judge, confirmation, reduction and diagnosis."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.planted.rate import measure
from benchmarks.planted.study import Scale, read, run
from benchmarks.planted.trial import Trial, fault_named, run_trial, seed_named, where_for
from fuzzer.backends.session import Session, State
from fuzzer.errors import InputError
from fuzzer.inputs import base_sample


def tried(name: str, arm: str = "full", budget: int = 300, follow: float = 0.0) -> Trial:
    trial = run_trial(name, arm, 1, budget, clock=time.perf_counter, follow=follow)
    assert trial.failed == ""
    return trial


def test_a_fault_of_an_operator_is_found_reduced_and_labelled() -> None:
    trial = tried("fast_tanh", follow=30.0)
    assert trial.detected_at is not None
    assert trial.triggered_at is not None
    assert trial.triggered_at <= trial.detected_at
    assert trial.after is not None
    assert trial.after.reduced
    assert trial.after.after["filled"] <= 1
    assert trial.after.label.rstrip("?") == "numeric/approximation"


def test_a_trial_is_a_function_of_its_number() -> None:
    one, other = tried("fast_tanh"), tried("fast_tanh")
    assert (one.detected_at, one.triggered) == (other.detected_at, other.triggered)


def test_base_inputs_alone_do_not_find_what_they_do_not_trigger() -> None:
    trial = tried("sort_ties", "seeds", budget=60)
    assert trial.executions == 60
    assert (trial.reached_at, trial.triggered_at, trial.detected_at) == (1, None, None)


def test_a_write_to_an_input_is_seen_without_a_process_too() -> None:
    assert tried("writes_input").detected_at is not None


def test_the_module_as_it_is_and_a_sum_in_another_order_are_not_reported() -> None:
    none, reversed_sum = tried("none", budget=150), tried("reversed_sum", budget=150)
    assert (none.triggered, none.false, none.near_ties) == (0, 0, 0)
    assert reversed_sum.triggered > 0
    assert reversed_sum.false == 0


def test_uniform_inputs_strike_at_the_rate_that_the_range_says() -> None:
    rate = measure("writes_input", 4000, 0, clock=lambda: 0.0, seconds=1.0)
    share = 1 - (1 - 0.01 / 1.01) ** 4  # one of four elements in the negative hundredth of the range
    assert rate.struck == 30
    assert rate.struck / rate.executions == pytest.approx(share, rel=0.6)


def test_a_study_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    scale = Scale("tiny", 40, 2, ("full", "uniform"), 100, 5.0, 0, 0.0, 1)
    store, told = tmp_path / "trials.jsonl", list[str]()
    run(scale, ["writes_input"], ("full",), 1, store=store, seconds=600.0, say=told.append)
    assert len(told) == 3
    run(scale, ["writes_input"], ("full", "uniform"), 1, store=store, seconds=600.0, say=told.append)
    assert len(told) == 5
    assert len(read(store).done) == 5
    with pytest.raises(InputError, match="budget 40, not 50"):
        run(replace(scale, budget=50), ["writes_input"], ("full",), 1, store=store, seconds=600.0, say=told.append)


@pytest.mark.slow
def test_a_fault_that_kills_the_process_is_found_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBFUZZ_PLUGINS", "benchmarks.planted.backend")
    assert tried("crash").detected_at is not None


@pytest.mark.slow
def test_pytorch_s_own_compile_error_is_found_when_the_target_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBFUZZ_PLUGINS", "benchmarks.planted.backend")
    trial = tried("relu_compile_error", budget=1)
    assert (trial.detected_at, trial.executions) == (1, 0)
    assert trial.after is not None
    assert trial.after.label == "execution/unsupported"


def sessions(backend: str, name: str) -> Session:
    return Session(seed_named(name), backend, base_sample(seed_named(name), 0), where_for(fault_named(name)))


def test_a_session_without_a_process_answers_like_the_module_and_sees_what_a_run_changed() -> None:
    session = sessions("planted:cpu?fault=writes_input", "writes_input")
    assert session.prepare() is State.READY
    answer = session.run({"x": torch.tensor([1.0, -2.0, 3.0, -4.0])})
    assert answer.leaves is not None
    torch.testing.assert_close(answer.leaves, {"$": torch.tensor([1.0, 0.0, 3.0, 0.0])})
    assert answer.changed == ["input x"]
    assert session.evidence["canary"] == {"reached": 1, "triggered": 1}
    session.close()
    assert session.state is State.IDLE


def test_a_session_without_a_process_says_what_a_run_raised() -> None:
    session = sessions("eager:cpu", "last_tile")
    session.prepare()
    answer = session.run({})
    assert answer.failure is not None
    assert (answer.failure.kind, answer.failure.type) == ("exception", "KeyError")
