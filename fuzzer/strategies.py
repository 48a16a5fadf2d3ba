"""Hypothesis strategies of a seed's inputs, for users' own `@given` tests.

```python
from hypothesis import given
from fuzzer.strategies import inputs

@given(inputs("seeds/digits.yaml"))
def test_my_export(sample):           # dict of tensors, one an input of the seed
    fuzzer.assert_agree(...)
```

An example shrinks towards fewer mutations of an early base input. Needs the package `hypothesis`.
"""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import strategies as st
from torch import Tensor

from fuzzer.inputs import base_sample
from fuzzer.mutate.base import mutators_for
from fuzzer.mutate.havoc import DRAWS, MOST_STEPS, apply_recipe, shapes_after
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seed

#: What a mutator is seeded by: a small number, so that Hypothesis can make it smaller.
_ENTROPY = 2**20


def inputs(seed: Seed | str | Path) -> st.SearchStrategy[dict[str, Tensor]]:
    """Base inputs of a seed (or of the seed in a file), mutated zero to eight times: what a campaign would run.

    Each example is a sample: a dict with one contiguous CPU tensor for each input. Raises SeedError on a bad file.
    """
    of = _seed(seed)
    return recipes(of).map(lambda recipe: apply_recipe(of, recipe))


def samples(seed: Seed | str | Path) -> st.SearchStrategy[dict[str, Tensor]]:
    """Base inputs of a seed alone: ordinary values, no mutations."""
    of = _seed(seed)
    return st.integers(0, DRAWS - 1).map(lambda draw: base_sample(of, draw))


@st.composite
def recipes(draw: st.DrawFn, seed: Seed) -> Recipe:
    """Recipes of a seed; `fuzzer.mutate.apply_recipe` makes the samples, and `to_json` a line to keep."""
    mutators = mutators_for(seed)
    base = draw(st.integers(0, DRAWS - 1))
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, MOST_STEPS)) if mutators else 0):
        mutator = draw(st.sampled_from(mutators))
        rng = random.Random(draw(st.integers(0, _ENTROPY)))
        steps.append(Step(mutator.name, mutator.propose(seed, shapes_after(seed, {}, steps), rng)))
    return Recipe(base, {}, tuple(steps))


def _seed(seed: Seed | str | Path) -> Seed:
    return seed if isinstance(seed, Seed) else load_seed(Path(seed))
