"""One trial for each kind of fault, with the campaign's own stream, judge, confirmation, reduction and diagnosis."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.planted import rate as rates
from benchmarks.planted import trial as trials
from benchmarks.planted.fault import Mechanism
from benchmarks.planted.faults import FAULTS
from benchmarks.planted.rate import measure
from benchmarks.planted.scout import POSSIBLE, Scout, quick_sample
from benchmarks.planted.study import Scale, read, run
from benchmarks.planted.trial import Trial, fault_named, run_trial, seed_named, where_for
from fuzzer.backends.process import Ending
from fuzzer.backends.session import Forward, Session, State
from fuzzer.campaign.stream import uniform_recipe
from fuzzer.errors import InputError
from fuzzer.inputs import base_sample
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.seeds.schema import InputSpec
from fuzzer.tensors import encode


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
    assert (trial.executions, trial.compared) == (60, 3)  # one in sixteen
    assert (trial.reached_at, trial.triggered_at, trial.detected_at) == (1, None, None)


@pytest.mark.parametrize(
    ("arm", "name"), [("uniform", "writes_input"), ("uniform", "shift_wraps"), ("seeds", "writes_input")]
)
def test_a_scout_spares_verdicts_and_changes_no_outcome(arm: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "WHOLE_ONE_IN", 1)
    whole = tried(name, arm)
    monkeypatch.setattr(trials, "WHOLE_ONE_IN", 10_000)
    scouted = tried(name, arm)
    assert whole.detected_at is not None
    assert (whole.compared, scouted.compared) == (whole.executions, 1)
    for what in ("executions", "reached_at", "triggered_at", "detected_at", "triggered", "missed", "false"):
        assert getattr(whole, what) == getattr(scouted, what), what


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


@pytest.mark.parametrize("name", FAULTS)
def test_a_uniform_input_made_quickly_is_the_one_of_its_recipe(name: str) -> None:
    seed = seed_named(name)
    for number in range(4):
        recipe = uniform_recipe(seed, random.Random(number))
        quick, slow = quick_sample(seed, recipe), apply_recipe(seed, recipe)
        assert list(quick) == list(slow)
        for one, other in zip(quick.values(), slow.values(), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def palette(spec: InputSpec, rng: random.Random) -> torch.Tensor:
    """Values on both sides of every threshold and on it, sometimes twice; boxes of few sizes."""
    shape = [int(side) for side in spec.shape]
    if spec.kind == "boxes":
        corners = torch.tensor([[rng.randrange(3), rng.randrange(3)] for _ in range(shape[0])], dtype=torch.float32)
        return torch.cat([corners, corners + torch.tensor([rng.choice([1.0, 2.0, 3.0]), 2.0])], 1)
    few = [-4.5, -0.5, -1e-7, 0.0, 1e-7, 1e-5, 0.5, 0.85, 0.9, 1.5, 2.5, 4.0, 4.5, 10.0, 12.0, 2.0**31, 2.0**30]
    values = torch.rand(math.prod(shape), generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    values = values * rng.choice([0.5, 1.0])
    for _ in range(rng.choice([0, 0, 1, 2, 8])):
        values[rng.randrange(len(values))] = rng.choice(few)
    return values.reshape(shape)


@pytest.mark.parametrize("name", POSSIBLE)
def test_where_a_fault_strikes_looking_at_many_inputs_at_once_had_said_that_it_may(name: str) -> None:
    seed, rng = seed_named(name), random.Random(name)
    assert fault_named(name).mechanism is not Mechanism.STATE
    scout = Scout(fault_named(name), seed)
    struck = 0
    for _ in range(150):
        samples = [{each: palette(spec, rng) for each, spec in seed.inputs.items()} for _ in range(2)]
        may = POSSIBLE[name]({each: torch.stack([s[each] for s in samples]) for each in seed.inputs})
        assert may.shape == (2,)
        for sample, possible in zip(samples, may.tolist(), strict=True):
            strikes = scout(sample).triggered > 0
            struck += strikes
            assert possible or not strikes, sample
    assert 0 < struck < 300


def test_rates_of_inputs_looked_at_one_by_one_and_in_batches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    batched = measure("crash", 10**6, 0, clock=lambda: 0.0, seconds=1.0)
    monkeypatch.setattr(rates, "POSSIBLE", {})
    alone = measure("crash", 10**6, 0, clock=lambda: 0.0, seconds=1.0)
    share = 1 - (1 - 0.001 / 1.001) ** 4  # one of four elements in the negative thousandth of the range
    for rate in (batched, alone):
        assert rate.struck == 30
        assert rate.struck / rate.executions == pytest.approx(share, rel=0.6)


def test_a_study_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    scale = Scale("tiny", 40, 2, ("full", "uniform"), 100, 5.0, 0, 0.0, 1, 0, 2)
    store, told = tmp_path / "trials.jsonl", list[str]()
    run(scale, ["writes_input"], ("full",), 1, store=store, seconds=600.0, say=told.append)
    assert len(told) == 3
    with store.open("a") as file:  # killed while it wrote
        file.write('{"trial": {"fau')
    run(scale, ["writes_input"], ("full", "uniform"), 1, store=store, seconds=600.0, say=told.append)
    assert len(told) == 5
    assert len(read(store).done) == 5
    run(scale, ["writes_input"], ("full", "blind"), 1, store=store, seconds=0.0, say=told.append)
    assert len(told) == 5
    with pytest.raises(InputError, match="budget 40, not 50"):
        run(replace(scale, budget=50), ["writes_input"], ("full",), 1, store=store, seconds=600.0, say=told.append)


def test_a_forked_worker_answers_dies_of_its_signal_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XBFUZZ_PLUGINS", "benchmarks.planted.backend")
    session = sessions("planted:cpu?fault=crash", "crash")
    assert session.prepare() is State.READY
    assert session.pid != os.getpid()
    assert session.run({"x": torch.ones(4)}).leaves is not None
    session.begin_all([Forward(encode({"x": sign * torch.ones(4)})) for sign in (1, -1, 1)])
    before, died, after = session.finish_all(3)
    assert (before, after) == (None, None), "it has left word which one it died of"
    assert died is not None
    death = died.death
    assert death is not None
    assert (death.kind, death.signal) == (Ending.CRASH, signal.SIGSEGV)
    assert "forkserver" in death.stderr  # its traceback, down to where it was forked
    assert session.prepare() is State.READY
    pid = session.pid
    assert pid is not None
    session.close()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


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
