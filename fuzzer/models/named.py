"""Seeds by what a user types: paths of seeds and folders, and names of models, for which a seed is sketched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuzzer.errors import SeedError
from fuzzer.models.offer import ask_builder
from fuzzer.seeds import Seed, load_seeds, sketch
from fuzzer.seeds.given import FORM
from fuzzer.seeds.problems import did_you_mean
from fuzzer.seeds.sketch import FORMS, names_a_model


def seeds_named(
    texts: Sequence[str], inputs: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[list[Seed], list[str]]:
    """The seeds that `texts` stand for, and those of the texts that name a model. Paths start from the current folder.

    Paths come first, in the order of `load_seeds`. A builder's code runs, in a process of its own, to learn what its
    inputs are. `inputs` are those of the models named (`fuzzer.seeds.given.parse_inputs`).
    Raises SeedError with every problem of all texts, and ModelError where a builder fails.
    """
    models = list(dict.fromkeys(text for text in texts if names_a_model(text)))
    paths = [text for text in texts if text not in models]
    problems = [_nothing(text) for text in paths if not Path(text).exists()]
    if inputs and not models:
        problems.append(f"--input {FORM} goes with the name of a model; a seed's inputs stand in its file")
    if problems:
        raise SeedError(problems)
    seeds = load_seeds([Path(text) for text in paths]) if paths else []
    for text in models:
        seeds.append(sketch(text, Path.cwd(), inputs, ask_builder))
    return _apart(seeds), models


def _nothing(text: str) -> str:
    near = did_you_mean(text, map(str, Path(text).parent.glob("*")))
    if not near and text in _models():
        near = f"did you mean 'torchvision:{text}'?"
    return f"{text}: there is no such file or folder; {near or f'a model is named {FORMS}'}"


def _models() -> list[str]:
    from torchvision import models  # takes a second: only where there is something to say

    return models.list_models()  # type: ignore[no-any-return]


def _apart(seeds: Sequence[Seed]) -> list[Seed]:
    """The seeds; those whose name another has already get a number. Files are refused before they come here."""
    taken: set[str] = set()
    found = []
    for seed in seeds:
        name, number = seed.name, 1
        while name in taken:
            number += 1
            name = f"{seed.name}-{number}"
        taken.add(name)
        found.append(seed if name == seed.name else seed.model_copy(update={"name": name}).at(seed.base))
    return found
