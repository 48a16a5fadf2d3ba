"""The faulty side alone: would an input make the fault strike? No verdict, no session, and no harm to the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.planted import arithmetic
from benchmarks.planted.backend import Planted
from benchmarks.planted.fault import Canary, Fault, Mechanism
from benchmarks.planted.order import overlaps
from fuzzer.backends.registry import parse
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.mutate.base import find_mutator
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed


class Scout:
    """A fault in its module. Raises ValueError for one that has no canary."""

    def __init__(self, fault: Fault, seed: Seed) -> None:
        if fault.mechanism is Mechanism.INDUCTOR:
            raise ValueError(f"{fault.name} has no canary")
        self._fault = fault
        self._backend = Planted(parse(f"planted:cpu?fault={fault.name}&dry=true"))
        self._model, self._example = build_model(seed, None), base_sample(seed, 0)
        self._backend.prepare(self._model, self._example)

    def __call__(self, sample: Mapping[str, Tensor]) -> Canary:
        """What the canary counts on this input, from a fault that has seen no other since it was prepared."""
        if self._fault.remembers:
            self._backend.prepare(self._model, self._example)
        self._backend.run({name: tensor.clone() for name, tensor in sample.items()})
        assert self._backend.canary is not None
        return self._backend.canary


def quick_sample(seed: Seed, recipe: Recipe) -> dict[str, Tensor]:
    """What `apply_recipe` gives, without the base values that a recipe of uniform inputs writes over."""
    over = {step.params["input"] for step in recipe.steps if step.mutator == "uniform"}
    if over != set(seed.inputs) or len(recipe.steps) != len(over) or not seed.allow.beyond_range:
        return apply_recipe(seed, recipe)
    sizes = {name: recipe.dims.get(name, dim.size) for name, dim in seed.dims.items()}
    fill, sample = find_mutator("uniform"), dict.fromkeys(seed.inputs, torch.empty(0))
    for step in recipe.steps:
        name = step.params["input"]
        shape = [sizes[side] if isinstance(side, str) else side for side in seed.inputs[name].shape]
        sample |= fill.apply(seed, {**sample, name: torch.empty(shape)}, step.params)
    return sample


#: Says of each of n finite inputs at once, (n, …) by name, whether the fault may strike on it: (n,) bool. Where it says
#: no the fault does not; where it says yes the canary has to tell.
Possible = Callable[[Mapping[str, Tensor]], Tensor]


def _any(where: Tensor) -> Tensor:
    return where.flatten(1).any(1)


def _ties(x: Tensor) -> Tensor:
    """Whether two elements are equal along the last dimension, anywhere."""
    values = x.sort(-1).values
    return _any(values[..., 1:] == values[..., :-1])


def _windows(x: Tensor) -> Tensor:
    """(…, height, width) in windows of two by two: (…, windows, 4)."""
    return x.unflatten(-1, (-1, 2)).unflatten(-3, (-1, 2)).movedim(-2, -3).flatten(-2)


#: Faults that uniform inputs hit so seldom that they are looked for in many at once.
POSSIBLE: dict[str, Possible] = {
    "topk_ties": lambda s: _ties(s["x"]),
    "sort_ties": lambda s: _ties(s["x"]),
    "argmax_last": lambda s: _ties(s["x"]),
    "pool_indices": lambda s: _ties(_windows(s["x"])),
    "nms_ge": lambda s: _any(overlaps(s["boxes"]) == 0.5),
    "nms_unordered": lambda s: _ties(s["scores"]),
    "flush_subnormal": lambda s: _any(s["x"].abs() < 2e-6),
    "amax_drops_nan": lambda s: _any(s["x"] < 0),
    "clamp_drops_nan": lambda s: _any(s["x"] < 0),
    "round_half_away": lambda s: _any((s["x"] - s["x"].trunc()).abs() == 0.5),
    "half_accumulation": lambda s: s["x"].flatten(1).abs().amax(1) <= arithmetic.SMALL_OPERAND,
    "fast_exp": lambda s: _any(s["x"] > arithmetic.EXP_FROM),
    "fast_tanh": lambda s: _any(s["x"].abs() > arithmetic.TANH_FROM),
    "log1p_small": lambda s: _any(s["x"].abs() < arithmetic.LOG1P_BELOW),
    "saturating_cast": lambda s: _any(s["x"] >= 2.0**31),
    "crash": lambda s: _any(s["x"] < 0),
}
