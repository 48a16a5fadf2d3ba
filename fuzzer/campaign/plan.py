"""The plan of a campaign: which seeds and targets, in which order, and which input comes when.

The stream of inputs is a function of the seeds, the RNG seed and the reference's answers alone. Which target is slow,
and when a compile ends, must not change it: the order of seeds and the number of inputs of each are decided here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzer.backends.registry import availability, parse
from fuzzer.errors import InputError
from fuzzer.mutate.base import mutators_for
from fuzzer.mutate.havoc import propose_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.verify.tasks import check_task

#: The first inputs of each seed are plain base inputs.
PLAIN_INPUTS = 4


@dataclass(frozen=True)
class Options:
    """What the user asked for. `budget_s` and `max_execs`: at least one is given. Folders lie under `out`."""

    out: Path
    budget_s: float | None = None
    max_execs: int | None = None
    rng_seed: int = 0
    backends: tuple[str, ...] = ()
    cache: Path | None = None
    corpus: Path | None = None
    private: bool = False
    resume: bool = False
    max_workers: int | None = None
    confirm_s: float = 90.0  # how long confirmations may go on after the budget
    search: str = "full"  # how inputs are made: a name of `fuzzer.campaign.stream.SEARCHES`
    reduce_s: float = 20.0  # how long to look for a smaller input for each crash; 0: not at all
    diagnose_s: float = 60.0  # how long to look for the cause of each crash; 0: not at all

    @property
    def crashes(self) -> Path:
        return self.out / "crashes"


@dataclass
class Planned:
    """One seed of the campaign: its targets with the reason why one is not available, and its number of inputs."""

    seed: Seed
    reference: str
    targets: dict[str, str | None]
    inputs: int | None = None  # None: as many as the budget allows
    unavailable: str | None = None  # why the reference itself cannot run

    @property
    def runnable(self) -> list[str]:
        if self.unavailable is not None:
            return []
        return [spec for spec, reason in self.targets.items() if reason is None]


@dataclass
class Plan:
    """Seeds from the smallest to the largest."""

    seeds: list[Planned] = field(default_factory=list)


def make_plan(seeds: Sequence[Seed], options: Options) -> Plan:
    """Check every backend string, find out what can run here, and share `max_execs` out over the seeds.

    Raises SpecError on a backend string that names nothing, InputError on a mutator or a task that does not exist.
    """
    plan = Plan()
    for seed in sorted(seeds, key=size):
        _check_names(seed)
        reference = str(parse(seed.reference))
        specs = list(dict.fromkeys(str(parse(text)) for text in (options.backends or tuple(seed.backends))))
        targets = {spec: availability(parse(spec)) for spec in specs if spec != reference}
        plan.seeds.append(
            Planned(seed, reference, targets, unavailable=seed.unavailable or availability(parse(reference)))
        )
    if options.max_execs is not None:
        _share(plan, options.max_execs)
    return plan


def _check_names(seed: Seed) -> None:
    try:
        mutators_for(seed)
    except InputError as error:
        raise InputError(f"seed {seed.name}: mutators: {error}") from error
    try:
        check_task(seed.task)
    except InputError as error:
        raise InputError(f"seed {seed.name}: task: {error}") from error


def check_seed(seed: Seed) -> None:
    """Raises SpecError or InputError where a seed names a backend, an option, a mutator or a task that there is not."""
    for text in (seed.reference, *seed.backends):
        parse(text)
    _check_names(seed)


def size(seed: Seed) -> tuple[int, int, str]:
    """A key that puts seeds that prepare quickly first, without building anything: source, elements, name."""
    elements = 0
    for spec in seed.inputs.values():
        product = 1
        for side in spec.shape:
            product *= side if isinstance(side, int) else max(seed.dims[side].size, 1)
        elements += product
    large = seed.model.source in ("library", "repo", "hub", "exported")
    return int(large), elements, seed.name


def _share(plan: Plan, executions: int) -> None:
    """Deal inputs out in turn until `executions` are spent; an input costs one execution a target."""
    for planned in plan.seeds:
        planned.inputs = 0
    left = executions
    while left > 0:
        dealt = False
        for planned in plan.seeds:
            cost = len(planned.runnable)
            if cost > 0 and left > 0:
                planned.inputs = (planned.inputs or 0) + 1
                left -= cost
                dealt = True
        if not dealt:
            return


def next_recipe(seed: Seed, rng_seed: int, index: int, corpus: Sequence[Recipe]) -> Recipe:
    """The recipe of a seed's `index`-th input: a function of its arguments alone."""
    if index < PLAIN_INPUTS:
        return Recipe(index)
    rng = random.Random(f"{rng_seed}/{seed.name}/{index}")
    parent = rng.choice(corpus) if corpus else None
    other = rng.choice(corpus) if corpus else None
    return propose_recipe(seed, rng, parent, other)


def run_seed(rng_seed: int, index: int) -> int:
    """The seed of torch's generators for every run of one input, on every side."""
    return (rng_seed * 1_000_003 + index) % 2**31
