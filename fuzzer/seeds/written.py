"""A seed as a person would write it: what is not usual, with comments that say what else there is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fuzzer.seeds.load import seed_to_json
from fuzzer.seeds.packages import in_package
from fuzzer.seeds.schema import Seed
from fuzzer.seeds.yaml_file import dump_yaml

_NOTES = {
    "model": "weights: calibrated (random, made to answer sensibly), random, default (the source's own), or a file",
    "inputs": "range is that of base inputs; a size may be the name of a dimension under `dims`, which then varies",
    "dims": "how far each named dimension may vary",
    "independent": "samples along this dimension do not meet, so that they may be screened in batches",
    "call": "how forward is called with them",
    "task": "what the outputs mean",
    "backends": "what is compared; `xbfuzz backends` tells what can run here",
    "reference": "and with what",
    "tolerance": "your own limit; without it a difference is judged against the model's rounding noise",
    "mutators": "which ones run",
    "allow": "what mutators may do",
    "accept": "behaviour that you know",
}
_IDEAS = """
# More, with what it does:
# dims: {batch: {size: 1, min: 1, max: 8}}    # with shape: [batch, ...] above
# tolerance: {atol: 1e-5, rtol: 1e-4}         # decides in place of the judge
# allow: {nonfinite: false}                   # no NaN and no infinities in inputs
# mutators: {skip: [dtype_extremes, scale]}   # inputs stay moderate
# accept: [{label: "order/*", why: the order of equal scores does not matter}]
"""


def commented(seed: Seed, title: str, folder: Path) -> str:
    """YAML that loads as `seed` from a file in `folder`, with comments; what is as usual is left out, but `backends`.

    Relative paths are written as they are from `folder`. The last line break is there.
    """
    data = _moved(seed, folder.resolve())
    needed = {key: data[key] for key in ("name", "model", "inputs", "dims")}
    called = {"call": data["call"]} if "call" in data else {}
    usual = seed_to_json(Seed.model_validate(needed | called))
    lines = [f"# {title}\n"]
    for key, value in data.items():
        kept = key in (*needed, *called, "backends")
        if (value == usual.get(key) and not kept) or (key in ("about", "dims") and not value):
            continue
        if key in _NOTES:
            lines.append(f"# {_NOTES[key]}\n")
        lines.append(dump_yaml({key: _without_usual(value) if key in ("model", "inputs") else value}))
    return "".join(lines) + _IDEAS


def _moved(seed: Seed, folder: Path) -> dict[str, Any]:
    data = seed_to_json(seed)

    def moved(path: str) -> str:
        stays = Path(path).is_absolute() or in_package(path)
        return path if stays else os.path.relpath(seed.path(path), folder)

    model = data["model"]
    if model.get("path") is not None:
        model["path"] = moved(model["path"])
    if model["weights"].get("file") is not None:
        model["weights"]["file"] = moved(model["weights"]["file"])
    for spec in data["inputs"].values():
        spec["files"] = [moved(file) for file in spec["files"]]
    return data


def _without_usual(value: dict[str, Any]) -> dict[str, Any]:
    """A model or the inputs without empty fields and defaults; weights as one word where that says it all."""
    found = {}
    for key, item in value.items():
        if isinstance(item, dict) and key not in ("args", "graph"):
            item = _without_usual(item)
        if key == "weights":
            if item == {"kind": "default"} or not item:
                continue
            if set(item) == {"kind"}:
                item = item["kind"]
        if key in ("range", "extent") and isinstance(item, list):
            item = [int(number) if number == int(number) else number for number in item]
        empty = item in ([], {}, None) and key != "shape"  # a lone number's is []
        if empty or (key in ("seed", "exact") and item in (0, False)):
            continue
        found[key] = item
    return found
