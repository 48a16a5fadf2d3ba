"""Files of installed packages as seeds name them, `package:rapidocr/models/x.onnx`, found without an import."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MARK = "package:"


def placed(base: Path, text: str) -> Path:
    """Where the path `text` of a seed leads: from the folder `base`, or inside an installed package.

    A package that is not installed gives a path at which there is nothing.
    """
    name, inside = _parts(text)
    if name is None:
        return base / text
    folder = _folder(name)
    return (folder / inside) if folder is not None else Path(text)


def in_package(text: str) -> bool:
    """Whether a path is one inside a package, wherever the seed lies."""
    return text.startswith(_MARK)


def missing_packages(data: Any) -> list[str]:
    """The packages that paths anywhere in `data` name and that are not installed."""
    named = dict.fromkeys(name for text in _texts(data) if (name := _parts(text)[0]) is not None)
    return [name for name in named if _folder(name) is None]


def _parts(text: str) -> tuple[str | None, str]:
    if not text.startswith(_MARK):
        return None, text
    name, _, inside = text.removeprefix(_MARK).partition("/")
    return name, inside


def _folder(name: str) -> Path | None:
    """The folder of a top-level package, which alone is found without importing anything."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
