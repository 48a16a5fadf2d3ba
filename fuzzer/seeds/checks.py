"""What the schema cannot see: names across a whole seed, files on the disk, names of torchvision's models.

Each check takes the parts of a seed that can be read and passes over the rest, so that one wrong key hides no other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from fuzzer.seeds.packages import missing_packages, placed
from fuzzer.seeds.problems import Problem, did_you_mean, shown
from fuzzer.seeds.schema import TASK_KINDS, WeightsKind, name_problems

#: What inputs can be read from.
INPUT_SUFFIXES = (".png", ".jpg", ".jpeg", ".npz", ".npy", ".safetensors")


def check_names(data: dict[str, Any]) -> list[Problem]:
    """Dimensions that nothing declares or that are not where they must be, inputs that the call does not fit."""
    inputs, dims = data.get("inputs"), data.get("dims", {})
    if not isinstance(inputs, dict) or not isinstance(dims, dict):
        return []
    shapes: dict[str, list[int | str]] = {}
    for name, spec in inputs.items():
        shape = spec.get("shape") if isinstance(spec, dict) else None
        shapes[str(name)] = shape if isinstance(shape, list) else []
    readable = all(isinstance(spec, dict) and isinstance(spec.get("shape"), list) for spec in inputs.values())
    independent = _text(data.get("independent")) if readable else None  # else the shape is the fault to mend
    return name_problems(shapes, dims, data.get("call"), independent)


def check_task(data: dict[str, Any]) -> list[Problem]:
    """A kind of task that nothing here knows."""
    task = data.get("task")
    kind = _text(task.get("kind") if isinstance(task, dict) else task)
    if kind is None or kind in TASK_KINDS:
        return []
    hint = did_you_mean(kind, TASK_KINDS)
    text = f"expected one of {', '.join(TASK_KINDS)}, got {shown(kind)}{'; ' + hint if hint else ''}"
    return [(("task", "kind"), text)]


def check_files(data: dict[str, Any], base: Path) -> list[Problem]:
    """Files and modules that a seed names and that are not there, and library models that torchvision does not have."""
    found: list[Problem] = []
    if missing_packages(data):
        return found  # the seed is unavailable, which is no fault of its author's
    model, inputs = data.get("model"), data.get("inputs")
    if isinstance(model, dict):
        found += _model(model, base)
        found += _weights(model.get("weights"), base)
    for name, spec in inputs.items() if isinstance(inputs, dict) else ():
        files = spec.get("files") if isinstance(spec, dict) else None
        for i, file in enumerate(files if isinstance(files, list) else ()):
            if isinstance(file, str):
                found += [(("inputs", name, "files", i), text) for text in _input_file(placed(base, file))]
    return found


def _model(model: dict[str, Any], base: Path) -> Iterator[Problem]:
    source, name, path, builder = (_text(model.get(key)) for key in ("source", "name", "path", "builder"))
    library = _text(model.get("library")) or "torchvision"
    if source == "library" and library != "torchvision" and not _installed(library):
        yield ("model", "library"), f"the package {library} is not installed; pip install xbfuzz[{library}]"
    elif source == "library" and library == "torchvision" and name is not None:
        yield from ((("model", "name"), text) for text in _library_name(name))
    elif source in ("onnx", "exported") and path is not None and not placed(base, path).is_file():
        yield ("model", "path"), f"no such file: {placed(base, path)}"
    elif source == "hub" and path is not None and not (base / path / "hubconf.py").is_file():
        yield ("model", "path"), f"no such file: {base / path / 'hubconf.py'}"
    elif source in ("builder", "repo") and builder is not None:
        yield from _builder(builder, path, base)


def _weights(weights: Any, base: Path) -> Iterator[Problem]:
    kinds = get_args(WeightsKind)
    file = _text(weights.get("file")) if isinstance(weights, dict) else _text(weights)
    if file is None or (isinstance(weights, str) and file in kinds) or placed(base, file).is_file():
        return
    hint = did_you_mean(file, kinds) if isinstance(weights, str) else ""
    yield ("model", "weights"), f"no such file: {placed(base, file)}{'; ' + hint if hint else ''}"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _builder(builder: str, path: str | None, base: Path) -> Iterator[Problem]:
    folder = base if path is None else base / path
    if path is not None and not folder.is_dir():
        yield ("model", "path"), f"no such folder: {folder}"
        return
    module = builder.partition(":")[0]
    file = folder.joinpath(*module.split("."))
    if file.with_name(file.name + ".py").is_file() or (file / "__init__.py").is_file() or _installed(module):
        return
    yield ("model", "builder"), f"no module {module!r}: neither {file}.py nor installed"


def _installed(module: str) -> bool:
    """Whether the top of `module` can be imported; nothing is imported to find out."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _library_name(name: str) -> Iterator[str]:
    try:
        from torchvision import models  # takes a second: only seeds of the library pay for it
    except (ImportError, RuntimeError):
        return  # whoever builds the model says so
    plain = models.list_models()
    known = set(plain)
    for family in ("detection", "segmentation", "video", "optical_flow", "quantization"):
        module = getattr(models, family, None)
        if module is not None:
            known |= {f"{family}.{each}" for each in models.list_models(module=module)}
    if name in known:
        return
    candidates = sorted(known) if "." in name else plain
    hint = did_you_mean(name, candidates)
    yield f"torchvision has no model {name!r}" + (f"; {hint}" if hint else "")


def _input_file(path: Path) -> Iterator[str]:
    if path.suffix.lower() not in INPUT_SUFFIXES:
        yield f"{path.name} is none of {', '.join(INPUT_SUFFIXES)}"
    elif not path.is_file():
        yield f"no such file: {path}"
