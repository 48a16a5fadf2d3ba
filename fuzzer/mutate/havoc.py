"""From recipes to inputs, and from old recipes to new ones: the search's one source of variety."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuzzer.inputs import sample_with_dims
from fuzzer.mutate.base import InputMutator, Mutator, Shapes, find_mutator, mutators_for
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.mutate.resize import Shape, check_dims, propose_size, resizable
from fuzzer.seeds.schema import InputSpec, Seed

#: A recipe that is proposed has no more steps than this.
MOST_STEPS = 8
#: Base inputs from which to start: enough for variety, few enough that reports show familiar numbers.
DRAWS = 1000
#: The share of recipes in which a dimension changes: of those that start from a base input, and of the others.
#: Guards, tiles and tails depend on sizes alone, so that a base input of another size is worth as much as a mutation.
RESIZED_FRESH, RESIZED = 0.6, 0.4
#: The share of steps that act where an earlier one did.
ALIGNED = 0.35
#: The share of steps that are made on a second input too, where there is one: both large, both zero, NaN in both.
TOGETHER = 0.2
#: The share of steps that leave nothing of an input, of those that come before all others instead of undoing them.
UNDER = 0.6


def apply_recipe(seed: Seed, recipe: Recipe) -> dict[str, Tensor]:
    """The input that `recipe` describes: one contiguous tensor for each input of the seed, in the seed's order.

    Raises InputError where the recipe does not belong to the seed: other inputs, other dimensions, sizes out of bounds.
    """
    check_dims(seed, recipe.dims)
    sample = dict(sample_with_dims(seed, recipe.draw, all_dims(seed, recipe.dims)))
    for step in recipe.steps:
        sample = find_mutator(step.mutator).apply(seed, sample, step.params)
    if not seed.allow.beyond_range:
        sample = {name: _within(seed.inputs[name], tensor) for name, tensor in sample.items()}
    return sample


def _within(spec: InputSpec, tensor: Tensor) -> Tensor:
    """`tensor` with its finite elements held in the range that the seed gives for it; NaN and infinities stay."""
    if spec.range is None or not tensor.is_floating_point():
        return tensor
    low, high = spec.range
    if spec.mean is not None and spec.std is not None:  # an image's range is that before it is normalised
        ends = [(end - m) / s for end in spec.range for m, s in zip(spec.mean, spec.std, strict=True)]
        low, high = min(ends), max(ends)
    return torch.where(torch.isfinite(tensor), tensor.clamp(low, high), tensor)


def all_dims(seed: Seed, dims: Mapping[str, int]) -> dict[str, int]:
    """The size of every named dimension: as `dims` says, else the seed's own."""
    return {name: dims.get(name, dim.size) for name, dim in seed.dims.items()}


def shapes_after(seed: Seed, dims: Mapping[str, int], steps: Sequence[Step]) -> Shapes:
    """The shape of each input of the seed when `steps` have been applied. No tensor is made."""
    sizes = all_dims(seed, dims)
    for step in steps:
        mutator = find_mutator(step.mutator)
        sizes.update(mutator.resized(mutator.read(step.params)))
    return {
        name: tuple(side if isinstance(side, int) else sizes[side] for side in spec.shape)
        for name, spec in seed.inputs.items()
    }


def propose_recipe(
    seed: Seed,
    rng: random.Random,
    parent: Recipe | None = None,
    other: Recipe | None = None,
    weights: Mapping[str, float] | None = None,
) -> Recipe:
    """A new recipe: the parent's (or a fresh base input) with one to four more steps, one more likely than two.

    Now and then the base input or a dimension changes as well, a step of the parent's is dropped, or the second half of
    the steps comes from `other`. `weights`: how often each mutator is chosen, 1 where it is not named. A function of
    its arguments and of `rng` alone. A seed that no mutator fits gets a plain base input.
    """
    mutators = mutators_for(seed)
    draw = rng.randrange(DRAWS)
    if not mutators:
        return Recipe(draw)
    base = parent if parent is not None else Recipe(draw)
    steps = list(base.steps)
    if other is not None and rng.random() < 0.3:
        steps = _spliced(base.steps, other.steps, rng)
    if len(steps) > 1 and rng.random() < 0.3:
        del steps[rng.randrange(len(steps))]
    dims = dict(base.dims)
    names = resizable(seed)
    if (
        names
        and any(isinstance(mutator, Shape) for mutator in mutators)
        and rng.random() < (RESIZED_FRESH if parent is None else RESIZED)
    ):
        for name in rng.sample(names, _geometric(rng, len(names))):
            dims[name] = propose_size(seed.dims[name], seed.allow, rng)
    if rng.random() < 0.9:
        draw = base.draw
    for _ in range(_geometric(rng, 4)):
        if len(steps) >= MOST_STEPS:
            del steps[rng.randrange(len(steps))]
        shapes = shapes_after(seed, dims, steps)
        step = _step(seed, mutators, shapes, steps, rng, weights or {})
        _add(steps, step, rng)
        if rng.random() < TOGETHER and len(steps) < MOST_STEPS:
            second = _on_another_input(seed, step, shapes, rng)
            if second is not None:
                _add(steps, second, rng)
    return Recipe(draw, dims, tuple(steps[-MOST_STEPS:]))


def _step(
    seed: Seed,
    mutators: Sequence[Mutator[Any]],
    shapes: Shapes,
    before: Sequence[Step],
    rng: random.Random,
    weights: Mapping[str, float],
) -> Step:
    mutator = rng.choices(mutators, [mutator.weight * weights.get(mutator.name, 1.0) for mutator in mutators])[0]
    params = mutator.propose(seed, shapes, rng)
    return Step(mutator.name, _aligned(params, shapes, before, rng))


def _add(steps: list[Step], step: Step, rng: random.Random) -> None:
    """Put the step last; or first, now and then, where it leaves nothing of what the others did to its input."""
    mutator = find_mutator(step.mutator)
    under = mutator.replaces(mutator.read(step.params))
    changed = {earlier.params.get("input") for earlier in steps}
    steps.insert(0 if under in changed and rng.random() < UNDER else len(steps), step)


def _on_another_input(seed: Seed, step: Step, shapes: Shapes, rng: random.Random) -> Step | None:
    """The same kind of change at the same places of another input that takes it, if there is one.

    As often with the same numbers as with its own: two infinities, but also a zero and a negative one.
    """
    mutator = find_mutator(step.mutator)
    if not isinstance(mutator, InputMutator) or "input" not in step.params:
        return None
    name = step.params["input"]
    spec = seed.inputs[name]
    others = [o for o in mutator.targets(seed) if o != name and seed.inputs[o].dtype_name == spec.dtype_name]
    if not others:
        return None
    other = rng.choice(others)
    own = mutator.pick(seed, other, shapes[other], rng).model_dump(mode="json")
    kept = {"where": step.params["where"]} if "where" in step.params else {}
    if rng.random() < 0.5:
        kept = {key: value for key, value in step.params.items() if key != "key"}
    return Step(mutator.name, {**own, **kept, "input": other})


def _aligned(params: dict[str, Any], shapes: Shapes, before: Sequence[Step], rng: random.Random) -> dict[str, Any]:
    """The parameters, now and then at the places of an earlier step on an input of the same shape.

    What two operands do together (0·∞, a zero beside a NaN, equal values) needs both at one place.
    """
    if "where" not in params or "input" not in params or rng.random() >= ALIGNED:
        return params
    shape = shapes[params["input"]]
    places = [
        step.params["where"]
        for step in before
        if "where" in step.params and shapes.get(step.params.get("input", "")) == shape
    ]
    return {**params, "where": rng.choice(places)} if places else params


def _spliced(first: Sequence[Step], second: Sequence[Step], rng: random.Random) -> list[Step]:
    """The beginning of one and the end of the other, cut at random."""
    return [*first[: rng.randint(0, len(first))], *second[rng.randint(0, len(second)) :]]


def _geometric(rng: random.Random, most: int) -> int:
    """1 with probability ½, 2 with ¼, and so on, at most `most`."""
    count = 1
    while count < most and rng.random() < 0.5:
        count += 1
    return count
