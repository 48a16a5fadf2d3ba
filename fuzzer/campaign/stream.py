"""The stream of inputs of one seed: which recipe comes next, and what the reference's answer to the last one taught.

A function of the seed, the RNG seed, the search and the reference's answers alone. Campaign and benchmarks both draw
their inputs from here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from fuzzer.backends.session import Answer
from fuzzer.campaign.features import features
from fuzzer.campaign.plan import PLAIN_INPUTS, next_recipe
from fuzzer.errors import InputError
from fuzzer.mutate.base import find_mutator
from fuzzer.mutate.havoc import shapes_after
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.mutate.resize import resizable, sizes
from fuzzer.seeds import Seed

#: What may be searched with: everything; mutations without feedback; uniform values; base inputs alone.
SEARCHES = ("full", "blind", "uniform", "seeds")


@dataclass(frozen=True)
class Search:
    """How inputs are made. `mutates`: by mutators. `learns`: the reference's answers feed a corpus. `uniform`: every
    value and every size is drawn uniformly from its valid range. With none of them: base inputs.
    """

    name: str = "full"
    mutates: bool = True
    learns: bool = True
    uniform: bool = False

    @classmethod
    def named(cls, name: str) -> Search:
        """Raises InputError where there is no such search."""
        if name not in SEARCHES:
            raise InputError(f"no search is named {name!r}; there are: {', '.join(SEARCHES)}")
        return cls(name, name in ("full", "blind"), name == "full", name == "uniform")


class Stream:
    """Recipes by index, each asked for at most one past those that are known. `corpus`: recipes to start from."""

    def __init__(self, seed: Seed, rng_seed: int, search: Search, corpus: Iterable[Recipe] = ()) -> None:
        self.seed = seed
        self.search = search
        self.recipes: list[Recipe] = []
        self.corpus: list[Recipe] = list(corpus) if search.learns else []
        self.seen: set[str] = set()
        self._rng_seed = rng_seed

    def recipe(self, index: int) -> Recipe:
        """The recipe of the `index`-th input."""
        if index == len(self.recipes):
            self.recipes.append(self._next(index))
        return self.recipes[index]

    def learn(self, index: int, answer: Answer) -> frozenset[str]:
        """Take an input with a new feature into the corpus, unless the search has none; gives what was new."""
        new = features(answer) - self.seen
        self.seen |= new
        if new and self.search.learns:
            self.corpus.append(self.recipes[index])
        return new

    def restore(self, recipe: Recipe, new: Iterable[str]) -> None:
        """Take up the next input from a journal, with the features that were new then."""
        self.recipes.append(recipe)
        found = set(new)
        self.seen |= found
        if found and self.search.learns:
            self.corpus.append(recipe)

    def _next(self, index: int) -> Recipe:
        if not self.search.mutates and not self.search.uniform:
            return Recipe(index)
        if self.search.uniform:
            return uniform_recipe(self.seed, random.Random(f"{self._rng_seed}/{self.seed.name}/{index}"))
        return next_recipe(self.seed, self._rng_seed, index, self.corpus)


def uniform_recipe(seed: Seed, rng: random.Random) -> Recipe:
    """Every named dimension of a size, and every element of a value, uniform over what is valid."""
    dims = {name: rng.choice(sizes(seed.dims[name], seed.allow)) for name in resizable(seed)}
    fill = find_mutator("uniform")
    shapes = shapes_after(seed, dims, ())
    steps = [Step(fill.name, fill.pick(seed, name, shapes[name], rng).model_dump(mode="json")) for name in seed.inputs]  # type: ignore[attr-defined]
    return Recipe(0, dims, tuple(steps))


__all__ = ["PLAIN_INPUTS", "SEARCHES", "Search", "Stream", "uniform_recipe"]
