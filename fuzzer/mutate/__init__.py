"""Mutators, and the recipes that record what they did."""

from fuzzer.mutate import (
    arithmetic,
    boxes,
    integers,
    pairs,
    patterns,
    resize,
    set_values,
    specials,
    spread,
    ties,
    uniform,
    values,
)
from fuzzer.mutate.base import (
    AtPlaces,
    InputMutator,
    Mutator,
    OnInput,
    find_mutator,
    mutator_names,
    mutators_for,
    register,
)
from fuzzer.mutate.havoc import apply_recipe, propose_recipe, shapes_after
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.mutate.where import Where, positions, propose_where

__all__ = [
    "AtPlaces",
    "InputMutator",
    "Mutator",
    "OnInput",
    "Recipe",
    "Step",
    "Where",
    "apply_recipe",
    "find_mutator",
    "mutator_names",
    "mutators_for",
    "positions",
    "propose_recipe",
    "propose_where",
    "register",
    "shapes_after",
]
#: Importing a module registers its mutators.
_BUILT_IN = (arithmetic, boxes, integers, pairs, patterns, resize, set_values, specials, spread, ties, uniform, values)
