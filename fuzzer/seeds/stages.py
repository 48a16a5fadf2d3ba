"""Seeds of stages: a part of a seed's model as a seed of its own (`source: stage`), which carries the whole one."""

from __future__ import annotations

from pathlib import Path

from fuzzer.seeds.load import seed_from_json, seed_to_json
from fuzzer.seeds.schema import Seed


def stage_name(seed: Seed, stage: str) -> str:
    """The name of the lane, the corpus and the crashes of a seed's stage."""
    return f"{seed.name}.{stage}"


def carried(seed: Seed) -> dict[str, object]:
    """What a stage's seed keeps of the whole one, from which its model is built."""
    return seed_to_json(seed.model_copy(update={"stages": {}}))


def whole(seed: Seed) -> Seed:
    """The seed that `seed` is a stage of; `seed` itself where it is none. Raises SeedError."""
    return whole(seed_from_json(seed.model.of, seed.base)) if seed.model.source == "stage" else seed


def with_files(seed: Seed, files: list[Path]) -> Seed:
    """A stage's seed whose base inputs are read from `files`, each with an entry for each input."""
    names = [str(file) for file in files]
    inputs = {name: spec.model_copy(update={"files": names, "key": name}) for name, spec in seed.inputs.items()}
    return seed.model_copy(update={"inputs": inputs}).at(seed.base)


def without_files(seed: Seed) -> Seed:
    """A stage's seed as a crash keeps it: captured inputs lie in a cache, which is of this machine. Others stay."""
    if seed.model.source != "stage":
        return seed
    inputs = {name: spec.model_copy(update={"files": [], "key": None}) for name, spec in seed.inputs.items()}
    return seed.model_copy(update={"inputs": inputs}).at(seed.base)


def sentence(seed: Seed) -> str:
    """What a stage's comparison is of, for a reader; empty for a whole model."""
    if seed.model.source != "stage":
        return ""
    name = whole(seed).name
    return (
        f"{seed.model.module} of {name} alone: its inputs are mutations of what it was given when {name} ran in eager "
        "mode; the rest of the model did not run"
    )
