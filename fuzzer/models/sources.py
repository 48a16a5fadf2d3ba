"""Where other modules come from: a user's builder function, a repository, an exported program, an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fuzzer.errors import ModelError
from fuzzer.models.contain import contained
from fuzzer.models.imports import import_from, stays_importable
from fuzzer.seeds import Seed


def builder_module(seed: Seed) -> nn.Module:
    """What the user's `module:callable` returns for `args`; import and call both run contained.

    A repository's code (`source: repo`) runs in its own folder, because it may read files from there, and what it
    imports later is found. Raises ModelError where the code cannot be imported, raises, exits, or returns something
    else than an nn.Module.
    """
    spec = seed.model
    assert spec.builder is not None
    module_name, _, attribute = spec.builder.partition(":")
    folder = seed.path(spec.path) if spec.path is not None else None
    file = builder_file(seed)
    shown = f"{seed.name}: {spec.source} {spec.builder}" + (f" ({file or folder})" if file or folder else "")
    if folder is not None and not folder.is_dir():
        raise ModelError(f"{seed.name}: there is no folder {folder}")
    with contained(shown, near=folder):
        torch.manual_seed(spec.weights.seed)
        if spec.source == "repo" and folder is not None:
            os.chdir(folder)
        # A repository's modules import one another, so each must be found under its own name.
        target: Any = import_from(module_name, folder, None if spec.source == "repo" else file)
        for part in attribute.split("."):
            target = getattr(target, part)
        # Seeded again: what the import drew depends on what was imported before.
        torch.manual_seed(spec.weights.seed)
        built = target if isinstance(target, nn.Module) and not spec.args else _call(target, spec.args)
    if not isinstance(built, nn.Module):
        raise ModelError(f"{shown}: returned {type(built).__name__}, not a torch.nn.Module")
    if spec.source == "repo" and folder is not None:
        stays_importable(folder)
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


def exported_module(seed: Seed) -> nn.Module:
    """The module of a `.pt2` file. Reading one can run code that is in it: whoever calls this has trusted it.

    Raises ModelError where the file is missing or cannot be read, or where other weights are asked for than a file's.
    """
    assert seed.model.path is not None
    path = seed.path(seed.model.path)
    if not path.is_file():
        raise ModelError(f"{seed.name}: there is no file {path}")
    if seed.model.weights.kind not in ("default", "file"):
        raise ModelError(f"{seed.name}: an exported program brings its own weights; leave out `weights`")
    with contained(f"{seed.name}: {path} is no exported program"):
        module: nn.Module = torch.export.load(path).module()
    return module


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
