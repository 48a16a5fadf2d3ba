"""Importing a user's code from a folder, so that no folder's modules are mistaken for another's."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

#: Folders from which code was imported: their helper modules must not be mistaken for another folder's.
_folders: set[Path] = set()


def import_from(name: str, folder: Path | None, file: Path | None) -> ModuleType:
    """The module `name`: from `file` under a name of its own, else found in `folder` first, else where Python finds it.

    Leaves `folder` at the front of `sys.path`. Raises what the import raises; then nothing from `folder` that it
    loaded stays loaded, so that another attempt starts afresh.
    """
    if folder is None:
        return importlib.import_module(name)
    fresh_names(folder)
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        return importlib.import_module(name) if file is None else _from_file(name, file)
    except BaseException:
        for each in set(sys.modules) - before:
            if _is_in(sys.modules[each], folder):
                del sys.modules[each]
        raise


def fresh_names(folder: Path) -> None:
    """Forget modules of other users' folders that `folder` has under the same name, and note that it is one too."""
    mine = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir() if path.is_dir()}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in mine or _is_in(module, folder):
            continue
        if any(_is_in(module, other) for other in _folders - {folder}):
            del sys.modules[name]
    _folders.add(folder)


def stays_importable(folder: Path) -> None:
    """Put `folder` last on `sys.path`: a repository's code may import more of it when it runs."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _from_file(name: str, file: Path) -> ModuleType:
    # Under a name of its own, so that a `model.py` here is never another folder's; registered, as Dynamo looks it up.
    unique = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    spec.loader.exec_module(module)
    return module


def _is_in(module: ModuleType, folder: Path) -> bool:
    """Whether the module's file, or any folder of a package without one, lies under `folder`."""
    origin = getattr(module, "__file__", None)
    places = [origin] if origin is not None else list(getattr(module, "__path__", []))
    return any(Path(place).is_relative_to(folder) for place in places)
