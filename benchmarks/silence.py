"""Runs the controls on one seed's stream of inputs, and keeps every verdict that is not silent."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.harmless import CONTROLS, call, rounded_once
from benchmarks.local import Computed, Remembering
from fuzzer.backends.session import Answer
from fuzzer.campaign.features import features
from fuzzer.campaign.plan import next_recipe, run_seed
from fuzzer.errors import InputError
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Bench, examine
from fuzzer.verify.screen import FloorScreen
from fuzzer.verify.vacuity import informative_leaves
from fuzzer.verify.verdict import Blame, Kind, Outcome, Verdict, sentence_of

#: As in a campaign: one execution in so many is judged whatever the screen says.
JUDGE_ONE_IN = 50
#: A heavy seed waits while it has had more than this share of the time.
HEAVY_SHARE = 0.1
#: Reported in full, of each seed; the rest is counted.
MOST_SHOWN = 20


@dataclass
class Loud:
    """A verdict on a control that was not silent, with what rebuilds its input."""

    seed: str
    control: str
    recipe: dict[str, Any]
    rng_seed: int
    sentence: str
    differences: list[dict[str, Any]]


@dataclass
class Tally:
    """What became of a seed's executions. Times in seconds.

    `near_ties`: all that differs hangs on a margin within the noise, and nobody is blamed. `kernel_faults`: reports
    that were right (see `_faults_of_the_yardstick`).
    """

    seed: str
    inputs: int = 0
    executions: int = 0
    judged: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    near_ties: int = 0
    near_ties_by_control: Counter[str] = field(default_factory=Counter)
    near_ties_shown: list[Loud] = field(default_factory=list)
    false_reports: list[Loud] = field(default_factory=list)
    kernel_faults: list[Loud] = field(default_factory=list)
    kernel_faults_by_kind: Counter[str] = field(default_factory=Counter)
    reference_failed: int = 0
    forward_s: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = dict(vars(self))
        for key, value in plain.items():
            if isinstance(value, Counter):  # `asdict` cannot copy one
                plain[key] = dict(value)
        return asdict(replace(self, **plain))


class Silence:
    """One seed with its reference, oracle and controls, all in this process."""

    def __init__(self, seed: Seed, cache: Path | None, rng_seed: int, clock: Callable[[], float]) -> None:
        self.seed = seed
        self.tally = Tally(seed.name)
        model = build_model(seed, cache)
        assert model.module is not None
        self.model = model
        example = base_sample(seed, 0)
        self.reference = Computed("eager:cpu", lambda sample: call(model, sample))
        self.oracle = Remembering(seed, copy.deepcopy(model.module), example)
        self.yardstick = Computed("rounded once", rounded_once(Model(seed, copy.deepcopy(model.module))))
        self.controls: list[Computed] = []
        for control in CONTROLS:
            run = control.build(Model(seed, copy.deepcopy(model.module)))
            if run is not None:
                self.controls.append(Computed(control.name, run))
        self.wide = next(control for control in self.controls if control.backend == "float64")
        plain = [self.reference.run(base_sample(seed, draw), rng_seed=draw).leaves or {} for draw in range(4)]
        self.vacuity = informative_leaves(plain, seed.tolerance)
        self.screen = FloorScreen()
        self._rng_seed = rng_seed
        self._clock = clock
        self._corpus: list[Recipe] = []
        self._seen: set[str] = set()
        self._answer = Answer()
        times = []
        for _ in range(5):
            started = clock()
            self.reference.run(example, rng_seed=0)
            times.append(clock() - started)
        self.tally.forward_s = sorted(times)[2]

    def step(self) -> None:
        """The next input of the stream, on every control."""
        started = self._clock()
        index = self.tally.inputs
        self.tally.inputs += 1
        recipe = next_recipe(self.seed, self._rng_seed, index, self._corpus)
        rng_seed = run_seed(self._rng_seed, index)
        try:
            sample = apply_recipe(self.seed, recipe)
        except InputError:
            return
        reference = self._answer = self.reference.run(sample, rng_seed=rng_seed)
        new = features(reference) - self._seen
        if new:
            self._seen |= new
            self._corpus.append(recipe)
        self.tally.reference_failed += int(reference.leaves is None)
        for control in self.controls:
            verdict = self._verdict(control, sample, reference, rng_seed)
            kinds = _faults(verdict)
            fault = bool(kinds) and not kinds & self._faults_of_the_yardstick(control, sample, rng_seed, verdict.blame)
            self._count(verdict, control.backend, recipe, rng_seed, fault=fault)
        self.tally.seconds += self._clock() - started

    def _faults_of_the_yardstick(
        self, control: Computed, sample: dict[str, Tensor], rng_seed: int, blame: Blame
    ) -> set[Kind]:
        """What differs still where each operator rounds once.

        What no longer does was rightly reported: a kernel lost more than rounding does, by overflowing inside or by
        adding up many equal terms one after the other. Both sides may have done so: where both are blamed, and for
        NaN and infinities, the yardstick stands beside float64 instead.
        """
        exact = self.yardstick.run(sample, rng_seed=rng_seed)
        if exact.leaves is None:
            return set(Kind)
        left = _faults(self._verdict(control, sample, exact, rng_seed))
        if not left:
            return left
        beside = _faults(self._verdict(self.wide, sample, exact, rng_seed))
        return beside if blame is Blame.BOTH else left - ({Kind.NONFINITE} - beside)

    def _verdict(self, control: Computed, sample: dict[str, Tensor], reference: Answer, rng_seed: int) -> Verdict:
        side = self.reference if reference is self._answer else self.yardstick
        bench = Bench(self.seed, side, control, self.oracle)  # type: ignore[arg-type]
        return examine(
            bench,
            sample,
            reference,
            control.run(sample, rng_seed=rng_seed),
            rng_seed=rng_seed,
            vacuity=self.vacuity,
            screen=self.screen,
            always_judge=self.tally.executions % JUDGE_ONE_IN == 0,
        ).verdict

    def _count(self, verdict: Verdict, control: str, recipe: Recipe, rng_seed: int, *, fault: bool) -> None:
        tally = self.tally
        tally.executions += 1
        tally.judged += int(verdict.judged)
        tally.outcomes[str(verdict.outcome)] += 1
        if verdict.outcome is not Outcome.MISMATCH:
            return
        found = [difference.to_json() for difference in verdict.differences]
        loud = Loud(self.seed.name, control, recipe.to_json(), rng_seed, sentence_of(verdict), found)
        if all(difference.near_tie for difference in verdict.differences):
            tally.near_ties += 1
            tally.near_ties_by_control[control] += 1
            if len(tally.near_ties_shown) < MOST_SHOWN:
                tally.near_ties_shown.append(loud)
        else:
            (tally.kernel_faults if fault else tally.false_reports).append(loud)
            if fault:
                tally.kernel_faults_by_kind.update(str(kind) for kind in _faults(verdict))


def _faults(verdict: Verdict) -> set[Kind]:
    """The kinds of what differs by more than a near-tie."""
    return {difference.kind for difference in verdict.differences if not difference.near_tie}


def run_all(
    seeds: list[Seed],
    executions: int,
    *,
    heavy: int,
    heavy_s: float,
    cache: Path | None,
    rng_seed: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    say: Callable[[str], None] = lambda line: None,
) -> list[Tally]:
    """Deal inputs to the seeds in turn until `executions` are spent or `budget_s` seconds are over.

    A seed whose reference takes longer than `heavy_s` gets `heavy` executions at most, and little of the time.
    """
    started = clock()
    lanes = [Silence(seed, cache, rng_seed, clock) for seed in seeds]
    turn = 0
    while clock() - started < budget_s:
        share = HEAVY_SHARE * (clock() - started)
        open_ = [
            x for x in lanes if x.tally.forward_s < heavy_s or (x.tally.executions < heavy and x.tally.seconds <= share)
        ]
        if not open_ or sum(x.tally.executions for x in lanes) >= executions:
            break
        for lane in open_:
            before = len(lane.tally.false_reports)
            lane.step()
            for loud in lane.tally.false_reports[before:]:
                say(f"{loud.seed} {loud.control} {loud.sentence} {loud.recipe}")
        turn += 1
        if turn % 100 == 0:
            total = sum(x.tally.executions for x in lanes)
            say(
                f"{total} executions, {clock() - started:.0f} s: "
                + ", ".join(
                    f"{x.tally.seed} {x.tally.executions}/{x.tally.judged}j/{x.tally.near_ties}t/{x.tally.seconds:.0f}s"
                    for x in lanes
                )
            )
    return [lane.tally for lane in lanes]
