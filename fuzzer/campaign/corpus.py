"""The corpus on disk: inputs worth mutating further, one safetensors and one JSON file each, named by content.

A corpus is a set: same content, same name, so that corpora from many machines join by copying.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer import tensors
from fuzzer.campaign.minimize import CAMPAIGN
from fuzzer.errors import InputError
from fuzzer.files import to_json, write_atomically
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed


def keep(
    folder: Path,
    seed: Seed,
    recipe: Recipe,
    sample: Mapping[str, Tensor],
    features: Iterable[str],
    parent: str | None,
) -> Path:
    """Store one input under `folder/<seed>/`, unless its content is there already; gives the JSON file's path."""
    home = folder / seed.name
    name = tensors.content_hash(sample)
    path = home / f"{name}.json"
    if path.exists():
        return path
    about: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "features": sorted(features),
        "parent": parent,
        "seed": seed.name,
    }
    about["kept_by"] = CAMPAIGN
    write_atomically(home / f"{name}.safetensors", tensors.encode(sample))
    write_atomically(path, to_json(about) + "\n")
    return path


def read(folder: Path, seed: Seed) -> list[Recipe]:
    """The recipes kept for `seed`, in the order of their names.

    Raises InputError on a file that holds none, or one that does not belong to the seed.
    """
    found = []
    for path in sorted((folder / seed.name).glob("*.json")):
        try:
            recipe = Recipe.from_json(json.loads(path.read_text(encoding="utf-8"))["recipe"])
            apply_recipe(seed, recipe)
            found.append(recipe)
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise InputError(f"{path}: no corpus entry: {error}") from error
    return found
