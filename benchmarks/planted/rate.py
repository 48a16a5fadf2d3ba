"""How often uniform random inputs make a fault strike: no verdicts, the canary alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.planted.scout import POSSIBLE, Scout, quick_sample
from benchmarks.planted.trial import fault_named, seed_named
from fuzzer.campaign.stream import uniform_recipe
from fuzzer.mutate.base import find_mutator
from fuzzer.seeds import Seed

#: So many strikes are enough for a rate: it is then known to about a third.
ENOUGH = 30
#: Elements that are drawn at once.
ELEMENTS = 2**20


@dataclass
class Rate:
    """`struck` of `executions` uniform inputs."""

    fault: str
    executions: int
    struck: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(name: str, most: int, rng_seed: int, *, clock: Callable[[], float], seconds: float) -> Rate:
    """Run until the fault struck `ENOUGH` times, `most` inputs, or `seconds`; a fault that remembers forgets each time.

    Process faults are counted, not let loose. Inputs of a fault in `POSSIBLE` are drawn and looked through in batches;
    its canary is asked where it may strike. Raises ValueError for a fault that has no canary.
    """
    seed = seed_named(name)
    scout = Scout(fault_named(name), seed)
    rate, ends = Rate(name, 0, 0), clock() + seconds
    rng = random.Random(f"rate/{rng_seed}/{name}")
    for sample, passed in _chosen(seed, rng) if name in POSSIBLE else _all(seed, rng):
        rate.executions += passed
        if sample is not None:
            rate.executions += 1
            rate.struck += scout(sample).triggered > 0
        if rate.executions >= most or rate.struck >= ENOUGH or clock() >= ends:
            break
    return rate


#: An input to ask the canary of, or None, after so many of which it need not be asked.
_Looked = Iterator[tuple[dict[str, Tensor] | None, int]]


def _all(seed: Seed, rng: random.Random) -> _Looked:
    while True:
        yield quick_sample(seed, uniform_recipe(seed, rng)), 0


def _chosen(seed: Seed, rng: random.Random) -> _Looked:
    """Inputs of one size, of which those that cannot strike are counted alone."""
    fill, possible = find_mutator("uniform"), POSSIBLE[seed.name]
    shapes = {name: [int(side) for side in spec.shape] for name, spec in seed.inputs.items()}
    count = max(1, ELEMENTS // max(torch.Size(shape).numel() for shape in shapes.values()))
    while True:
        batch: dict[str, Tensor] = {}
        for name, shape in shapes.items():
            params = fill.pick(seed, name, (count, *shape), rng).model_dump(mode="json")  # type: ignore[attr-defined]
            batch |= fill.apply(seed, {name: torch.empty(count, *shape)}, params)
        last = -1
        for place in possible(batch).nonzero()[:, 0].tolist():
            yield {name: values[place] for name, values in batch.items()}, place - last - 1
            last = place
        yield None, count - last - 1
