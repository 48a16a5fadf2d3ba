"""Reduction of a recipe: leave out whatever mutation the finding does not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fuzzer.mutate.recipe import Recipe


def shrink_recipe(recipe: Recipe, still_fails: Callable[[Recipe], bool], *, most_tests: int = 24) -> Recipe:
    """The recipe with as few steps and resized dimensions as possible, each removal keeping `still_fails` true.

    Removes dimensions first, then steps from the last to the first, again until nothing more goes; asks at most
    `most_tests` times. Deterministic. `still_fails(recipe)` itself is taken for granted.
    """
    tests = 0
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(recipe):
            if tests >= most_tests:
                return recipe
            tests += 1
            if still_fails(candidate):
                recipe, progress = candidate, True
                break
    return recipe


def _smaller(recipe: Recipe) -> list[Recipe]:
    """Every recipe with one thing less, the boldest first."""
    found = []
    if recipe.dims and recipe.steps:
        found.append(replace(recipe, dims={}))
    found += [
        replace(recipe, dims={name: size for name, size in recipe.dims.items() if name != dropped})
        for dropped in recipe.dims
    ]
    last = range(len(recipe.steps) - 1, -1, -1)
    found += [replace(recipe, steps=recipe.steps[:i] + recipe.steps[i + 1 :]) for i in last]
    return found
