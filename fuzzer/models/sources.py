"""Where modules come from: torchvision, a user's builder function, an ONNX file."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import torch
from torch import nn

from fuzzer.errors import ModelError
from fuzzer.models.contain import contained, one_line
from fuzzer.seeds import Seed

#: Folders from which builders were imported: their helper modules must not be mistaken for another folder's.
_folders: set[Path] = set()


def library_module(seed: Seed) -> nn.Module:
    """A torchvision model, its random initialisation seeded by `weights.seed`; pretrained for `kind: default`.

    The name may carry the submodule's name in front (`detection.`, `segmentation.`, `video.`).
    Raises ModelError for an unknown name, arguments that do not fit, or a download that fails.
    """
    import torchvision  # a second to import: only for seeds that need it

    spec = seed.model
    assert spec.name is not None
    name = spec.name.rsplit(".", 1)[-1]
    known = torchvision.models.list_models()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ModelError(f"{seed.name}: torchvision has no model {spec.name!r}{hint}")
    arguments: dict[str, Any] = {"weights": None}
    if spec.weights.kind == "default":
        arguments["weights"] = "DEFAULT"
    elif "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
        arguments["weights_backbone"] = None
    with contained(f"{seed.name}: torchvision {name}"):
        torch.manual_seed(spec.weights.seed)
        try:
            module: nn.Module = torchvision.models.get_model(name, **arguments, **spec.args)
        except (URLError, TimeoutError, ConnectionError) as error:
            raise ModelError(
                f"{seed.name}: cannot download the weights of {name} ({one_line(error)}); "
                "give `weights: {kind: calibrated}` or a file"
            ) from error
        return module


def builder_module(seed: Seed) -> nn.Module:
    """What the user's `module:callable` returns for `args`; import and call both run contained.

    Raises ModelError where the code cannot be imported, raises, exits, or returns something else than an nn.Module.
    """
    spec = seed.model
    assert spec.builder is not None
    module_name, _, attribute = spec.builder.partition(":")
    folder = seed.path(spec.path) if spec.path is not None else None
    file = builder_file(seed)
    shown = f"{seed.name}: builder {spec.builder} ({file})" if file else f"{seed.name}: builder {spec.builder}"
    with contained(shown, near=folder):
        torch.manual_seed(spec.weights.seed)
        target: Any = _import(module_name, folder, file)
        for part in attribute.split("."):
            target = getattr(target, part)
        # Seeded again: what the import drew depends on what was imported before.
        torch.manual_seed(spec.weights.seed)
        built = target if isinstance(target, nn.Module) and not spec.args else _call(target, spec.args)
    if not isinstance(built, nn.Module):
        raise ModelError(f"{shown}: returned {type(built).__name__}, not a torch.nn.Module")
    return built


def _call(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return target(**arguments)


def builder_file(seed: Seed) -> Path | None:
    """The file of a builder that is a single `module.py` in its folder; None for packages and installed modules."""
    spec = seed.model
    if spec.builder is None or spec.path is None:
        return None
    file = seed.path(spec.path) / f"{spec.builder.partition(':')[0]}.py"
    return file if file.is_file() else None


def _import(name: str, folder: Path | None, file: Path | None) -> ModuleType:
    if folder is None:
        return importlib.import_module(name)
    _forget_others(folder)
    _folders.add(folder)
    sys.path.insert(0, str(folder))
    if file is None:
        return importlib.import_module(name)
    # Under a name of its own, so that a `model.py` here is never another folder's; registered, as Dynamo looks it up.
    unique = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _forget_others(folder: Path) -> None:
    """Drop modules of other builders' folders that this folder has under the same name."""
    mine = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name.partition(".")[0] not in mine or origin is None or Path(origin).is_relative_to(folder):
            continue
        if any(Path(origin).is_relative_to(other) for other in _folders - {folder}):
            del sys.modules[name]


def onnx_file(seed: Seed) -> Path:
    """The seed's ONNX file, checked. Raises ModelError where it is missing or not valid ONNX."""
    import onnx

    assert seed.model.path is not None
    path = seed.path(seed.model.path)
    if not path.is_file():
        raise ModelError(f"{seed.name}: there is no file {path}")
    if seed.model.weights.kind != "default":
        raise ModelError(f"{seed.name}: an ONNX file brings its own weights; leave out `weights`")
    with contained(f"{seed.name}: {path} is not valid ONNX"):
        onnx.checker.check_model(str(path))  # by path, because models over 2 GB keep their tensors outside
    return path
