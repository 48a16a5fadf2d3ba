"""What the search has learnt: which inputs had which features, how rare those are, and which mutators found new ones.

Pure bookkeeping: the same facts in the same order give the same state, so a journal can restore it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from fuzzer.mutate.recipe import Recipe

#: A mutator is chosen at most so many times as often as one that never found anything.
MOST_FAVOUR = 2.0
#: Tries after which a mutator's share of successes begins to tell.
PATIENCE = 8.0
#: Inputs after which the energies are worked out again although the corpus is the same.
STALE = 64


@dataclass(frozen=True)
class Kept:
    """An input of the corpus, with its features."""

    recipe: Recipe
    features: frozenset[str]


@dataclass
class Memory:
    """Features by how many inputs had them, the corpus, and each mutator's tries and finds."""

    counts: Counter[str] = field(default_factory=Counter)
    corpus: list[Kept] = field(default_factory=list)
    tries: Counter[str] = field(default_factory=Counter)
    finds: Counter[str] = field(default_factory=Counter)
    _entered: int = 0
    _weighed: int = 0
    _energies: list[float] = field(default_factory=list)  # running sums, as of `_weighed`

    def enter(self, recipe: Recipe, found: Iterable[str], tried: Collection[str]) -> frozenset[str]:
        """Take in an input, its features, and the mutators that were tried for it. Gives the features that are new."""
        found = frozenset(found)
        new = frozenset(feature for feature in found if feature not in self.counts)
        self.counts.update(found)
        self._entered += 1
        if new:
            self.corpus.append(Kept(recipe, found))
        for name in set(tried):
            self.tries[name] += 1
            self.finds[name] += bool(new)
        return new

    def choose(self, rng: random.Random) -> Recipe | None:
        """A recipe of the corpus; those with rare features and those that are short are chosen more often."""
        if not self.corpus:
            return None
        if len(self._energies) != len(self.corpus) or self._entered - self._weighed >= STALE:
            self._energies = list(accumulate(self._energy(kept) for kept in self.corpus))
            self._weighed = self._entered
        return rng.choices(self.corpus, cum_weights=self._energies)[0].recipe

    def _energy(self, kept: Kept) -> float:
        rarest = min((self.counts[feature] for feature in kept.features), default=1)
        return float(max(rarest, 1) ** -0.5 / (1 + len(kept.recipe.steps)))

    def weights(self) -> dict[str, float]:
        """For each mutator that was tried, from 1 to MOST_FAVOUR: its share of finds beside the best one's."""
        shares = {name: self.finds[name] / (tries + PATIENCE) for name, tries in self.tries.items()}
        best = max(shares.values(), default=0.0)
        if best <= 0.0:
            return {}
        return {name: 1.0 + (MOST_FAVOUR - 1.0) * share / best for name, share in shares.items()}
