"""How often uniform random inputs make a fault strike: no verdicts, the faulty side alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.planted.backend import Planted
from benchmarks.planted.fault import Mechanism
from benchmarks.planted.trial import fault_named, seed_named
from fuzzer.backends.registry import parse
from fuzzer.campaign.stream import uniform_recipe
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.mutate.havoc import apply_recipe

#: So many strikes are enough for a rate: it is then known to about a third.
ENOUGH = 30


@dataclass
class Rate:
    """`struck` of `executions` uniform inputs."""

    fault: str
    executions: int
    struck: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(name: str, most: int, rng_seed: int, *, clock: Callable[[], float], seconds: float) -> Rate:
    """Run until the fault struck `ENOUGH` times, `most` executions, or `seconds`; a fault that remembers forgets each
    time. Process faults are counted, not let loose. Raises ValueError for a fault that has no canary."""
    fault = fault_named(name)
    if fault.mechanism is Mechanism.INDUCTOR:
        raise ValueError(f"{name} has no canary")
    seed = seed_named(name)
    backend = Planted(parse(f"planted:cpu?fault={name}&dry=true"))
    model, example = build_model(seed, None), base_sample(seed, 0)
    backend.prepare(model, example)
    rate, ends = Rate(name, 0, 0), clock() + seconds
    while rate.executions < most and rate.struck < ENOUGH and clock() < ends:
        if fault.mechanism is Mechanism.STATE:
            backend.prepare(model, example)
        recipe = uniform_recipe(seed, random.Random(f"rate/{rng_seed}/{name}/{rate.executions}"))
        backend.run(apply_recipe(seed, recipe))
        assert backend.canary is not None
        rate.executions += 1
        rate.struck += backend.canary.triggered > 0
    return rate
