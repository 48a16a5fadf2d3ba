"""The configuration format of the cross-backend study (arXiv 2509.06977), read as a seed.

Its keys: `from` (library, repo, builder, hub), `model`, `repo: {path, class}`, `builder`, `hub`, `params`, `inputs` (a
list of images), `means`, `stds`, `options`, `verification: {tol: {atol, rtol}}`. Its runner is started above the
folder of the configurations, so that paths may start there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuzzer.seeds.problems import Problem, shown

SOURCES = ("library", "repo", "builder", "hub")
#: Its runner resizes every image to this.
_PIXELS = 224
_TARGETS = ["inductor:cpu", "onnxruntime:cpu", "eager:cuda", "inductor:cuda"]
_KEYS = frozenset(
    "from model repo builder hub params inputs means stds options verification name about task seed weights".split()
)
_SIZES = ("size", "resize", "image_size", "input_size")

Data = dict[str, Any]


def is_study(data: Mapping[str, Any]) -> bool:
    """Whether `data` is one of the study's configurations: `from` is no key of a seed."""
    return "from" in data and not isinstance(data.get("model"), Mapping)


def from_study(data: Mapping[str, Any], base: Path) -> tuple[Data, list[Problem]]:
    """The seed that the configuration `data` means, and what is wrong with it; relative paths start from `base`.

    What has no counterpart in a seed is named in `about`, so that nothing is dropped without a word.
    """
    problems: list[Problem] = []
    source = data.get("from")
    if source not in SOURCES:
        problems.append((("from",), f"expected one of {', '.join(SOURCES)}, got {shown(source)}"))
        source = "library"
    model = {"library": _library, "repo": _repo, "builder": _builder, "hub": _hub}[source](data, base, problems)
    unused = [str(key) for key in data if key not in _KEYS]
    options, verification = _mapping(data, "options", problems), _mapping(data, "verification", problems)
    height, width = _pixels(options, problems)
    unused += [f"options.{key}" for key in options if key not in (*_SIZES, "resize_multiple", "batch", "batch_size")]
    unused += [f"verification.{key}" for key in verification if key != "tol"]
    files = data.get("inputs")
    image: Data = {"kind": "image", "range": [0, 1]}
    for key, name in (("means", "mean"), ("stds", "std")):
        if data.get(key) is not None:
            image[name] = data[key]
    if isinstance(files, list) and files:
        image["files"] = [_placed(file, base) if isinstance(file, str) else file for file in files]
    elif files is not None and not isinstance(files, list):
        problems.append((("inputs",), f"expected a list of image files, got {shown(files)}"))
    name, detector = str(data.get("model") or ""), _task(data) == "detection"
    # The study stacks its images into one batch; a detector takes them as a list. Here they are taken in turn.
    image["shape"] = [3, height, width] if detector else [1, 3, height, width]
    about = data.get("about") or f"from a configuration of the study: {name or source}"
    seed: Data = {
        "about": about + (f"; not used: {', '.join(unused)}" if unused else ""),
        "model": model,
        "inputs": {"image": image},
        "task": {"kind": _task(data), "outputs": _OUTPUTS[_task(data)]},
        "backends": list(_TARGETS),
    }
    if "name" in data:
        seed["name"] = data["name"]
    if detector:
        seed["call"] = [["image"]]
    if verification.get("tol") is not None:
        seed["tolerance"] = verification["tol"]
    return seed, problems


_OUTPUTS: dict[str, dict[str, str]] = {
    "classification": {"logits": "$"},
    "segmentation": {"logits": ".out"},
    "detection": {"boxes": "[0].boxes", "scores": "[0].scores", "labels": "[0].labels"},
    "tensors": {},
}


def _task(data: Mapping[str, Any]) -> str:
    given = data.get("task")
    if isinstance(given, str) and given in _OUTPUTS:
        return given
    if data.get("from") != "library":
        return "tensors"
    family = str(data.get("model") or "").rpartition(".")[0]
    return {"detection": "detection", "segmentation": "segmentation"}.get(family, "classification")


def _library(data: Mapping[str, Any], base: Path, problems: list[Problem]) -> Data:
    name = data.get("model")
    if not isinstance(name, str):
        problems.append((("model",), f"expected the name of a torchvision model, got {shown(name)}"))
        name = "resnet18"
    return {"source": "library", "name": name, **_common(data, base)}


def _repo(data: Mapping[str, Any], base: Path, problems: list[Problem]) -> Data:
    given = _mapping(data, "repo", problems)
    path, dotted = given.get("path"), given.get("class") or given.get("builder")
    for key, value in (("path", path), ("class", dotted)):
        if not isinstance(value, str):
            problems.append((("repo", key), f"expected text, got {shown(value)}"))
    found = {"source": "repo", "path": _placed(str(path), base), "builder": _callable(str(dotted))}
    return {**found, **_common(data, base, given)}


def _builder(data: Mapping[str, Any], base: Path, problems: list[Problem]) -> Data:
    given = data.get("builder")
    held = given if isinstance(given, Mapping) else {"target": given}
    module = held.get("module")
    name = next((held[key] for key in ("target", "callable", "function", "class", "name") if held.get(key)), None)
    dotted = f"{module}:{name}" if isinstance(module, str) and name else name
    if not isinstance(dotted, str):
        problems.append((("builder",), f"expected module:callable, got {shown(given)}"))
    found: Data = {
        "source": "builder",
        "builder": _callable(str(dotted)),
        "path": _placed(str(held.get("path", ".")), base),
    }
    return {**found, **_common(data, base, held)}


def _hub(data: Mapping[str, Any], base: Path, problems: list[Problem]) -> Data:
    given = data.get("hub")
    held = given if isinstance(given, Mapping) else {"repo": given}
    name = held.get("model") or held.get("entry") or held.get("name") or data.get("model")
    where = held.get("repo") or held.get("path")
    for key, value in (("repo", where), ("model", name)):
        if not isinstance(value, str):
            problems.append((("hub", key), f"expected text, got {shown(value)}"))
    local = isinstance(where, str) and (held.get("repo") is None or Path(_placed(where, base, lone=True)).is_absolute())
    place = {"path": _placed(str(where), base)} if local else {"repo": where}
    return {"source": "hub", "name": name, **place, **_common(data, base, held)}


def _common(data: Mapping[str, Any], base: Path, held: Mapping[str, Any] | None = None) -> Data:
    """Arguments and weights: at the top, or beside what names the model."""
    found: Data = {}
    held = held or {}
    arguments = next((m[k] for m in (held, data) for k in ("params", "args", "kwargs") if m.get(k) is not None), None)
    if arguments is not None:
        found["args"] = arguments
    weights = next((m[k] for m in (held, data) for k in ("weights", "checkpoint") if m.get(k) is not None), None)
    if weights is not None:
        kinds = ("default", "random", "calibrated")
        named = isinstance(weights, str) and weights not in kinds
        found["weights"] = _placed(weights, base) if named else weights
    return found


def _callable(dotted: str) -> str:
    """`pkg.module.Class` as `pkg.module:Class`."""
    module, _, attribute = dotted.rpartition(".")
    return dotted if ":" in dotted or not module else f"{module}:{attribute}"


def _placed(path: str, base: Path, *, lone: bool = False) -> str:
    """`path` from the configuration's folder, or from the one above where it is there only.

    With `lone` the absolute path where there is something, else `path` as it is.
    """
    found = next((place for place in (base / path, base.parent / path) if place.exists()), None)
    if lone:
        return str(found.resolve()) if found is not None else path
    return f"../{path}" if found == base.parent / path and not Path(path).is_absolute() else path


def _pixels(options: Mapping[str, Any], problems: list[Problem]) -> tuple[int, int]:
    """Height and width: 224, or what `options` say, each rounded up to `resize_multiple`."""
    given = next((options[key] for key in _SIZES if options.get(key) is not None), _PIXELS)
    sides = list(given) if isinstance(given, list | tuple) else [given, given]
    multiple = options.get("resize_multiple", 1)
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in (*sides, multiple)):
        problems.append((("options",), f"expected whole numbers of pixels, got {shown(given)}, {shown(multiple)}"))
        return _PIXELS, _PIXELS
    height, width = (-(-side // multiple) * multiple for side in sides)
    return height, width


def _mapping(data: Mapping[str, Any], key: str, problems: list[Problem]) -> Mapping[str, Any]:
    value = data.get(key)
    if value is None or isinstance(value, Mapping):
        return value or {}
    problems.append(((key,), f"expected a mapping of keys to values, got {shown(value)}"))
    return {}
