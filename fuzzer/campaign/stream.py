"""The stream of inputs of one seed: which recipe comes next, and what the reference's answer to the last one taught.

A function of the seed, the RNG seed, the search and the reference's answers alone. Campaign and benchmarks both draw
their inputs from here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzzer.backends.session import Answer, Session
from fuzzer.campaign.blocks import Blocks
from fuzzer.campaign.energy import Kept, Memory
from fuzzer.campaign.features import features
from fuzzer.campaign.plan import PLAIN_INPUTS
from fuzzer.errors import InputError
from fuzzer.mutate.base import find_mutator
from fuzzer.mutate.havoc import DRAWS, MOST_STEPS, apply_recipe, propose_recipe, shapes_after
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.mutate.resize import resizable, sizes
from fuzzer.mutate.set_values import boundary_names
from fuzzer.seeds import Seed

#: Each input is made from what all before it taught.
ONE_BY_ONE = Blocks()
#: What may be searched with: everything; mutations without feedback; uniform values; base inputs alone.
SEARCHES = ("full", "blind", "uniform", "seeds")
#: The share of inputs that start from a base input rather than from the corpus, once there have been `EARLY` inputs.
#: It falls to that from 1: what one mutation shows is found soonest before anything has been learnt.
FRESH = 0.5
EARLY = 128
#: The share of inputs for which the reference is asked where a decision of its own turns: it costs several forwards.
GUIDED_ONE_IN = 8
#: The share of inputs on which the reference tells of its inside.
WATCHED_ONE_IN = 4


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


@dataclass(frozen=True)
class Learnt:
    """What the answer to one input taught: its features as numbers, in the order of their first appearance, those
    that were new, by name, and the mutators that were tried. A journal keeps it.
    """

    features: tuple[int, ...] = ()
    new: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"features": list(self.features), "new": list(self.new), "tried": list(self.tried)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Learnt:
        return cls(tuple(value.get("features", ())), tuple(value["new"]), tuple(value.get("tried", ())))


#: Leads a recipe to where a decision of the reference turns, chosen by a number: the step to add, or None.
Guide = Callable[[Recipe, int], Step | None]


class Stream:
    """Recipes by index, each asked for at most one past those that are known, and then what was learnt from it.

    `corpus`: recipes to start from. `guide`: the reference, asked for one input in GUIDED_ONE_IN. `blocks`: see
    `fuzzer.campaign.blocks`; with blocks of one, each input is made from all before it.
    """

    def __init__(
        self,
        seed: Seed,
        rng_seed: int,
        search: Search,
        corpus: Iterable[Recipe] = (),
        *,
        guide: Guide | None = None,
        blocks: Blocks = ONE_BY_ONE,
    ) -> None:
        self.seed = seed
        self.search = search
        self.recipes: list[Recipe] = []
        self.memory = Memory()
        if search.learns:
            self.memory.corpus += [Kept(recipe, frozenset()) for recipe in corpus]
        self._numbers: dict[str, int] = {}  # of features
        self._names: list[str] = []
        self._tried: list[tuple[str, ...]] = []
        self._waiting: list[tuple[int, Learnt]] = []
        self._rng_seed = rng_seed
        self.blocks = blocks
        self._guide = guide if search.learns and boundary_names(seed) else None
        self._plain = plain_inputs(seed)

    @property
    def corpus(self) -> list[Recipe]:
        """The recipes kept so far, those of a block that is not over left out."""
        return [kept.recipe for kept in self.memory.corpus]

    def recipe(self, index: int) -> Recipe:
        """The recipe of the `index`-th input."""
        if index == len(self.recipes):
            if index == self.blocks.start(index):
                self._digest(index)
            recipe, tried = self._next(index)
            self.recipes.append(recipe)
            self._tried.append(tried)
        return self.recipes[index]

    def settled(self, index: int) -> bool:
        """Whether a recipe can be made before the answers to the block before its own, and without asking the guide."""
        guided = self._guide is not None and index % GUIDED_ONE_IN == GUIDED_ONE_IN - 1
        return self.blocks.size > 1 and not guided

    def needs(self, index: int) -> int:
        """How many inputs must have been learnt from before the `index`-th can be made."""
        start = self.blocks.start(index)
        return self.blocks.before(start) if self.blocks.size > 1 else start

    def watched(self, index: int) -> bool:
        """Whether the reference should tell of its inside on the `index`-th input."""
        return self.search.learns and index % WATCHED_ONE_IN == 0

    def learn(self, index: int, answer: Answer) -> frozenset[str]:
        """Take in the reference's answer to an input, once, in the order of inputs; gives the features that are new."""
        return frozenset(self.taught(index, answer).new)

    def taught(self, index: int, answer: Answer) -> Learnt:
        """Like `learn`, with everything that a journal has to keep."""
        found = sorted(features(answer))
        new = tuple(feature for feature in found if feature not in self._numbers)
        self._number(new)
        learnt = Learnt(tuple(self._numbers[feature] for feature in found), new, self._tried[index])
        self._waiting.append((index, learnt))
        return learnt

    def restore(self, recipe: Recipe, learnt: Learnt) -> None:
        """Take up the next input from a journal."""
        if len(self.recipes) == self.blocks.start(len(self.recipes)):
            self._digest(len(self.recipes))
        self.recipes.append(recipe)
        self._tried.append(learnt.tried)
        self._number(learnt.new)
        self._waiting.append((len(self.recipes) - 1, learnt))

    def named(self, learnt: Learnt) -> list[str]:
        """The names of an input's features."""
        return [self._names[number] for number in learnt.features]

    def _number(self, new: Iterable[str]) -> None:
        for feature in new:
            self._numbers[feature] = len(self._names)
            self._names.append(feature)

    def _digest(self, start: int) -> None:
        """Let what was learnt decide from now on, but for the block just before the one that begins at `start`."""
        known = self.needs(start)
        if self.search.learns:
            for index, learnt in self._waiting:
                if index < known:
                    names = (self._names[i] for i in learnt.features)
                    self.memory.enter(self.recipes[index], names, learnt.tried)
        self._waiting = [(index, learnt) for index, learnt in self._waiting if index >= known]

    def _next(self, index: int) -> tuple[Recipe, tuple[str, ...]]:
        """A recipe, and the mutators that it tries."""
        rng = random.Random(f"{self._rng_seed}/{self.seed.name}/{index}")
        if self.search.uniform:
            return uniform_recipe(self.seed, rng), ()
        if not self.search.mutates or index < self._plain:
            return Recipe(index), ()
        if self._guide is not None and index % GUIDED_ONE_IN == GUIDED_ONE_IN - 1:
            led = self._led(rng)
            if led is not None:
                return led, (led.steps[-1].mutator,)
        if not self.search.learns or rng.random() < fresh_share(index):
            recipe = propose_recipe(self.seed, rng, weights=self.memory.weights())
            return recipe, tuple(step.mutator for step in recipe.steps)
        parent = self.memory.choose(rng)
        recipe = propose_recipe(self.seed, rng, parent, self.memory.choose(rng), self.memory.weights())
        inherited = set() if parent is None else set(parent.steps)
        return recipe, tuple(step.mutator for step in recipe.steps if step not in inherited)

    def _led(self, rng: random.Random) -> Recipe | None:
        """A base input, or one of the corpus, at the boundary of a decision; None where the guide finds none."""
        base = Recipe(rng.randrange(DRAWS)) if rng.random() < FRESH else self.memory.choose(rng)
        assert self._guide is not None
        if base is None:
            return None
        base = replace(base, steps=base.steps[: MOST_STEPS - 1])
        step = self._guide(base, rng.randrange(2**31))
        return None if step is None else replace(base, steps=(*base.steps, step))


def fresh_share(index: int) -> float:
    """The probability with which the `index`-th input starts from a base input."""
    return 1.0 - (1.0 - FRESH) * min(index / EARLY, 1.0)


def plain_inputs(seed: Seed) -> int:
    """How many inputs at the beginning are base inputs: fewer where files give fewer."""
    counts = [len(spec.files) for spec in seed.inputs.values()]
    return min(PLAIN_INPUTS, math.lcm(*counts)) if all(counts) else PLAIN_INPUTS


def uniform_recipe(seed: Seed, rng: random.Random) -> Recipe:
    """Every named dimension of a size, and every element of a value, uniform over what is valid."""
    dims = {name: rng.choice(sizes(seed.dims[name], seed.allow)) for name in resizable(seed)}
    fill = find_mutator("uniform")
    shapes = shapes_after(seed, dims, ())
    steps = [Step(fill.name, fill.pick(seed, name, shapes[name], rng).model_dump(mode="json")) for name in seed.inputs]  # type: ignore[attr-defined]
    return Recipe(0, dims, tuple(steps))


def session_guide(session: Session, seed: Seed) -> Guide:
    """The reference of a session as a guide."""
    names = boundary_names(seed)

    def guide(recipe: Recipe, key: int) -> Step | None:
        changes = session.boundary(apply_recipe(seed, recipe), rng_seed=0, names=names, key=key)
        return Step("boundary", {"changes": changes}) if changes else None

    return guide
