"""A recipe: how a test input is made. With its seed it rebuilds the input bit for bit, in any process."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuzzer.errors import InputError
from fuzzer.mutate.base import find_mutator

#: What a recipe that is read may hold at most; recipes that are proposed stay far below.
MAX_DRAW = 2**63 - 1
MAX_DIM = 2**20
MAX_STEPS = 64

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Step:
    """One mutation: a mutator by name, and its parameters as JSON values."""

    mutator: str
    params: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(_canonical(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        return {"mutator": self.mutator, "params": dict(self.params)}


@dataclass(frozen=True)
class Recipe:
    """The base input `draw`, with the named dimensions `dims` at other sizes than the seed's, then `steps` in order."""

    draw: int
    dims: Mapping[str, int] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """Twelve hex digits of the content."""
        return hashlib.sha256(_canonical(self.to_json()).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        return {"draw": self.draw, "dims": dict(self.dims), "steps": [step.to_json() for step in self.steps]}

    @classmethod
    def from_json(cls, value: object) -> Recipe:
        """The inverse of `to_json`. Raises InputError on anything that is not a recipe, whoever wrote it."""
        found = _mapping(value, "recipe", {"draw", "dims", "steps"})
        draw = _whole(found.get("draw"), "draw", MAX_DRAW)
        dims = found.get("dims", {})
        if not isinstance(dims, Mapping):
            raise InputError(f"recipe: dims must map names to sizes, not {_short(dims)}")
        for name in dims:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise InputError(f"recipe: {_short(name)} is no name of a dimension")
        steps = found.get("steps", [])
        if not isinstance(steps, list) or len(steps) > MAX_STEPS:
            raise InputError(f"recipe: steps must be a list of at most {MAX_STEPS}")
        return cls(
            draw=draw,
            dims={name: _whole(size, f"dims.{name}", MAX_DIM) for name, size in dims.items()},
            steps=tuple(_step(step, f"steps[{i}]") for i, step in enumerate(steps)),
        )


def _step(value: object, path: str) -> Step:
    found = _mapping(value, path, {"mutator", "params"})
    name, params = found.get("mutator"), found.get("params", {})
    if not isinstance(name, str):
        raise InputError(f"recipe: {path}.mutator must be a name, not {_short(name)}")
    if not isinstance(params, Mapping):
        raise InputError(f"recipe: {path}.params must be a mapping, not {_short(params)}")
    try:
        find_mutator(name).read(params)
    except InputError as error:
        raise InputError(f"recipe: {path}: {error}") from error
    return Step(name, dict(params))


def _mapping(value: object, path: str, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{path} must be a mapping, not {_short(value)}")
    unknown = sorted(str(key) for key in value if key not in keys)
    if unknown:
        raise InputError(f"{path} has unknown keys: {', '.join(unknown)[:200]}")
    return value


def _whole(value: object, path: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InputError(f"recipe: {path} must be a whole number from 0 to {most}, not {_short(value)}")
    return value


def _short(value: object) -> str:
    """A value for an error line. Never the whole of a hostile one (the text of a huge integer even raises)."""
    if isinstance(value, str | float | bool | None):
        return repr(value)[:60]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
