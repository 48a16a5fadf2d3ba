"""Runs the controls on a window of one seed's stream of inputs, and keeps every verdict that is not silent."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.harmless import CONTROLS, RoundedOnce, call, rounding_once
from benchmarks.local import Computed, Remembering
from benchmarks.lossy import lost_by
from fuzzer.backends.session import Answer
from fuzzer.campaign.features import features
from fuzzer.campaign.plan import PLAIN_INPUTS, next_recipe, run_seed
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
#: Reported in full, of each window; the rest is counted.
MOST_SHOWN = 2
#: What a kernel fault is called where no operator lost it alone.
NO_OPERATOR = "no single operator"


@dataclass
class Loud:
    """A verdict on a control that was not silent, with what rebuilds its input.

    `group`: of a kernel fault, the operator that lost it and how.
    """

    seed: str
    control: str
    recipe: dict[str, Any]
    rng_seed: int
    sentence: str
    differences: list[dict[str, Any]]
    blame: str = ""
    group: str = ""


@dataclass
class Tally:
    """What became of a seed's executions. Times in seconds.

    `near_ties`: all that differs hangs on a margin within the noise, and nobody is blamed. `over_tolerance`: the same,
    or it is within the noise but over the tolerance that the seed itself asks for. `kernel_faults`: reports
    that were right (see `_faults_of_the_yardstick`), counted by kind of difference, by the side that was blamed and by
    group, with one of each group in full. `reference_faults`: others that were right (see `reference_is_wrong`).
    """

    seed: str
    inputs: int = 0
    executions: int = 0
    judged: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    near_ties: int = 0
    near_ties_by_control: Counter[str] = field(default_factory=Counter)
    near_ties_shown: list[Loud] = field(default_factory=list)
    over_tolerance: int = 0
    over_tolerance_shown: list[Loud] = field(default_factory=list)
    false_reports: list[Loud] = field(default_factory=list)
    kernel_faults: int = 0
    kernel_faults_by_kind: Counter[str] = field(default_factory=Counter)
    kernel_faults_by_blame: Counter[str] = field(default_factory=Counter)
    kernel_faults_by_group: Counter[str] = field(default_factory=Counter)
    kernel_faults_shown: list[Loud] = field(default_factory=list)
    reference_faults: int = 0
    reference_faults_by_group: Counter[str] = field(default_factory=Counter)
    reference_faults_shown: list[Loud] = field(default_factory=list)
    reference_failed: int = 0
    forward_s: float = 0.0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = dict(vars(self))
        for key, value in plain.items():
            if isinstance(value, Counter):  # `asdict` cannot copy one
                plain[key] = dict(value)
        return asdict(replace(self, **plain))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tally:
        """The inverse of `to_json`."""
        found = cls(**data)
        for each in fields(cls):
            value = getattr(found, each.name)
            if isinstance(value, dict):
                setattr(found, each.name, Counter(value))
            elif isinstance(value, list):
                setattr(found, each.name, [Loud(**loud) for loud in value])
        return found

    def add(self, other: Tally) -> None:
        """Count another window of the same seed in."""
        for each in fields(self):
            if each.name not in ("seed", "forward_s"):
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        self.forward_s = max(self.forward_s, other.forward_s)
        self.near_ties_shown = self.near_ties_shown[:MOST_SHOWN]
        self.over_tolerance_shown = self.over_tolerance_shown[:MOST_SHOWN]
        self.kernel_faults_shown = _one_a_group(self.kernel_faults_shown)
        self.reference_faults_shown = _one_a_group(self.reference_faults_shown)


class RoundingOnce(Remembering):
    """The oracle of the yardstick: its kernels round once too, so that what overflows inside them hides no noise."""

    def run(self, sample: Mapping[str, Tensor], *, rng_seed: int, check: bool = False, **variant: Any) -> Answer:
        with RoundedOnce():  # type: ignore[no-untyped-call]
            return super().run(sample, rng_seed=rng_seed, check=check, **variant)


class Silence:
    """One seed with its reference, oracle and controls, all in this process; its inputs from the `first`-th on."""

    def __init__(
        self, seed: Seed, cache: Path | None, rng_seed: int, clock: Callable[[], float], first: int = 0
    ) -> None:
        self.seed = seed
        self.tally = Tally(seed.name)
        model = build_model(seed, cache)
        assert model.module is not None
        self.model = model
        example = base_sample(seed, 0)
        self.reference = Computed("eager:cpu", lambda sample: call(model, sample))
        self.oracle = Remembering(seed, copy.deepcopy(model.module), example)
        self.oracle_once = RoundingOnce(seed, copy.deepcopy(model.module), example)
        self.yardstick = Computed("rounded once", rounding_once(self.reference.compute))
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
        self._next = first
        self._corpus = [Recipe(index) for index in range(min(first, PLAIN_INPUTS))]
        self._seen: set[str] = set()
        self._answer = Answer()
        self.tally.forward_s = forward_seconds(self.reference, example, clock)

    def step(self) -> None:
        """The next input of the stream, on every control."""
        started = self._clock()
        index = self._next
        self._next += 1
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
            own = own_tolerance_only(verdict, self.seed)
            fault = (
                bool(kinds)
                and not own
                and not kinds & self._faults_of_the_yardstick(control, sample, rng_seed, verdict.blame)
            )
            right = fault or reference_is_wrong(verdict)
            group = self._group(control, sample, verdict.blame) if right else ""
            self._count(verdict, control.backend, recipe, rng_seed, group, of_kernel=fault)
        self.tally.seconds += self._clock() - started

    def _faults_of_the_yardstick(
        self, control: Computed, sample: dict[str, Tensor], rng_seed: int, blame: Blame
    ) -> set[Kind]:
        """What differs still where each operator of the side that is blamed rounds once.

        What no longer does was rightly reported: a kernel lost more than rounding does, by overflowing inside or by
        adding up many equal terms one after the other. Both sides may have done so: where both are blamed, and for
        NaN and infinities, the yardstick stands beside float64 instead.
        """
        if blame is Blame.TARGET:
            once = Computed(f"{control.backend}, rounded once", rounding_once(control.compute))
            return _faults(self._verdict(once, sample, self._answer, rng_seed))
        exact = self.yardstick.run(sample, rng_seed=rng_seed)
        if exact.leaves is None:
            return set(Kind)
        left = _faults(self._verdict(control, sample, exact, rng_seed))
        if not left:
            return left
        beside = _faults(self._verdict(self.wide, sample, exact, rng_seed))
        return beside if blame is Blame.BOTH else left - ({Kind.NONFINITE} - beside)

    def _group(self, control: Computed, sample: dict[str, Tensor], blame: Blame) -> str:
        """Which operator lost it, on the side that is blamed; of both, the reference first."""
        sides = {Blame.REFERENCE: [self.reference], Blame.TARGET: [control]}.get(blame, [self.reference, control])
        for side in sides:
            try:
                loss = lost_by(side.compute, sample)
            except (RuntimeError, NotImplementedError) as error:  # an operator that float64 has not
                return f"not known: {type(error).__name__}"
            if loss is not None:
                return str(loss)
        return NO_OPERATOR

    def _verdict(self, control: Computed, sample: dict[str, Tensor], reference: Answer, rng_seed: int) -> Verdict:
        real = reference is self._answer
        sides = (self.reference, self.oracle) if real else (self.yardstick, self.oracle_once)
        bench = Bench(self.seed, sides[0], control, sides[1])  # type: ignore[arg-type]
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

    def _count(
        self, verdict: Verdict, control: str, recipe: Recipe, rng_seed: int, group: str, *, of_kernel: bool = True
    ) -> None:
        """`group`: of a report that was right, empty for any other verdict; `of_kernel`: the yardstick says so."""
        tally = self.tally
        tally.executions += 1
        tally.judged += int(verdict.judged)
        tally.outcomes[str(verdict.outcome)] += 1
        if verdict.outcome is not Outcome.MISMATCH:
            return
        found = [difference.to_json() for difference in verdict.differences]
        sentence = sentence_of(verdict)
        loud = Loud(self.seed.name, control, recipe.to_json(), rng_seed, sentence, found, str(verdict.blame), group)
        if all(difference.near_tie for difference in verdict.differences):
            tally.near_ties += 1
            tally.near_ties_by_control[control] += 1
            if len(tally.near_ties_shown) < MOST_SHOWN:
                tally.near_ties_shown.append(loud)
        elif own_tolerance_only(verdict, self.seed):
            tally.over_tolerance += 1
            if len(tally.over_tolerance_shown) < MOST_SHOWN:
                tally.over_tolerance_shown.append(loud)
        elif group and not of_kernel:
            tally.reference_faults += 1
            tally.reference_faults_by_group[group] += 1
            if group not in {shown.group for shown in tally.reference_faults_shown}:
                tally.reference_faults_shown.append(loud)
        elif group:
            tally.kernel_faults += 1
            tally.kernel_faults_by_group[group] += 1
            tally.kernel_faults_by_blame[str(verdict.blame)] += 1
            tally.kernel_faults_by_kind.update(str(kind) for kind in _faults(verdict))
            if group not in {shown.group for shown in tally.kernel_faults_shown}:
                tally.kernel_faults_shown.append(loud)
        else:
            tally.false_reports.append(loud)


def _one_a_group(shown: list[Loud]) -> list[Loud]:
    """The first of each group."""
    return list({loud.group: loud for loud in reversed(shown)}.values())


def reference_is_wrong(verdict: Verdict) -> bool:
    """Whether the reference alone gives NaN or infinities where its own float64 answer and the control do not.

    (Or the other way round.) Such a report is right whatever the control: no noise floor has a say in it. Of values,
    shapes and integers the judge's word is not enough, because its noise is what the controls are to measure.
    """
    return verdict.blame is Blame.REFERENCE and _faults(verdict) == {Kind.NONFINITE}


def own_tolerance_only(verdict: Verdict, seed: Seed) -> bool:
    """Whether the judge calls all that differs noise, and blames nobody, but the seed's own tolerance forbids it."""
    return seed.tolerance is not None and all(
        difference.kind is Kind.VALUE and difference.blame is Blame.NEITHER for difference in verdict.differences
    )


def _faults(verdict: Verdict) -> set[Kind]:
    """The kinds of what differs by more than a near-tie."""
    return {difference.kind for difference in verdict.differences if not difference.near_tie}


def forward_seconds(side: Computed, sample: Mapping[str, Tensor], clock: Callable[[], float]) -> float:
    """The median of five runs."""
    times = []
    for _ in range(5):
        started = clock()
        side.run(sample, rng_seed=0)
        times.append(clock() - started)
    return sorted(times)[2]


def run_window(
    seed: Seed,
    inputs: int,
    *,
    rng_seed: int,
    cache: Path | None,
    first: int = 0,
    over: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Tally:
    """`inputs` inputs of the stream of `rng_seed`, from the `first`-th on, each on every control; fewer once `over`."""
    if over():
        return Tally(seed.name)
    lane = Silence(seed, cache, rng_seed, clock, first)
    while lane.tally.inputs < inputs and not over():
        lane.step()
    return lane.tally
