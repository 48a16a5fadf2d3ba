"""What pydantic found, in the words of a seed file: key path, what was expected, what stood there instead."""

from __future__ import annotations

import copy
import difflib
import json
import math
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fuzzer.seeds.schema import Seed
from fuzzer.seeds.yaml_file import KeyPath

#: A fault before its line is known.
Problem = tuple[KeyPath, str]

#: How the text of a problem with an unknown key begins.
UNKNOWN_KEY = "unknown key"

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "none_required": "nothing",
}
_BOUNDS = {"greater_than": ("more than", "gt"), "greater_than_equal": ("at least", "ge")}
_PATTERNS = {
    r"^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and `_`",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]*$": "a name of letters, digits, `_`, `.` and `-`",
    r"^[\w.]+:[\w.]+$": "module:callable",
    r"^[\w.-]+/[\w.-]+(:[\w./-]+)?$": "owner/name or owner/name:ref",
}


def explain(error: ValidationError) -> list[Problem]:
    """The problems in `error`, each once, in the order of the file's keys."""
    found: dict[Problem, None] = {}
    for detail in error.errors(include_url=False):
        path = tuple(part for part in detail["loc"] if part != "[key]")
        found[path, _text(dict(detail), path)] = None
    return list(found)


def _text(detail: dict[str, Any], path: KeyPath) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {shown(value)}"
    if kind in _BOUNDS:
        words, bound = _BOUNDS[kind]
        return f"expected {words} {context[bound]:g}, got {shown(value)}"
    if kind == "extra_forbidden":
        known = known_keys(path[:-1])
        return f"{UNKNOWN_KEY}; {did_you_mean(str(path[-1]), known) or 'known are ' + ', '.join(known)}"
    if kind == "missing":
        return "is needed but missing"
    if kind == "string_pattern_mismatch":
        pattern = context["pattern"]
        return f"expected {_PATTERNS.get(pattern, f'text of the form {pattern}')}, got {shown(value)}"
    if kind == "string_too_short":
        return "must not be empty"
    if kind == "literal_error":
        choices = _choices(path)
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        return f"expected one of {', '.join(choices)}, got {shown(value)}{'; ' + hint if hint else ''}"
    if kind == "value_error":
        return str(context["error"])
    return str(detail["msg"])


def shown(value: Any) -> str:
    """`value` as it stands in a file, cut to one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    return json.dumps(value, default=repr)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'shape'?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def known_keys(path: KeyPath) -> list[str]:
    """The keys that may stand in the mapping at `path` of a seed."""
    model = _annotation(path)
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def repaired(data: dict[str, Any], problems: Iterable[Problem]) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
    """A copy of `data` in which unknown keys bear the nearest known name, or are gone.

    So what stands under a misspelt key is checked too. Also returned: the written path of each renamed one.
    """
    fixed, renamed = copy.deepcopy(data), {}
    for path, text in problems:
        if not text.startswith(UNKNOWN_KEY):
            continue
        holder: Any = fixed
        for part in path[:-1]:
            holder = holder[part]
        wrong = path[-1]
        value = holder.pop(wrong)
        near = difflib.get_close_matches(str(wrong), known_keys(path[:-1]), n=1)
        if near and near[0] not in holder:
            holder[near[0]] = value
            renamed[(*path[:-1], near[0])] = path
    return fixed, renamed


def _choices(path: KeyPath) -> list[str]:
    return [str(choice) for choice in get_args(_annotation(path))]


def _annotation(path: KeyPath) -> Any:
    """The type that the schema gives to the value at `path`, without Optional and Annotated."""
    found: Any = Seed
    for part in path:
        found = _bare(found)
        if isinstance(found, type) and issubclass(found, BaseModel):
            info = found.model_fields.get(str(part))
            found = None if info is None else info.annotation
        elif get_origin(found) in (dict, list):
            found = get_args(found)[-1]
        else:
            return None
    return _bare(found)


def _bare(annotation: Any) -> Any:
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            options = [option for option in typing.get_args(annotation) if option is not type(None)]
            if len(options) != 1:
                return annotation
            annotation = options[0]
        else:
            return annotation
