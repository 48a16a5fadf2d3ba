"""Nested inputs and outputs as flat, ordered maps from a path to a leaf.

A path is what a reader would type after the value: `[0].boxes`, `.logits`, `[2]`; the root itself is `$`.
Everything that compares, stores or reports speaks in these paths, so that a leaf has one name everywhere.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

ROOT = "$"

#: A leaf as it travels: a tensor, or a plain Python value that a model returned beside its tensors.
Leaf = Tensor | int | float | bool | str | None
#: Leaves by path, in the order in which the model returned them.
Leaves = dict[str, Leaf]


def flatten(value: Any) -> Leaves:
    """Leaves of `value` by path.

    Lists, tuples (named ones and torch's return types too), mappings, and dataclasses are walked; an empty container
    has no leaves. Anything that is neither is kept as the text of its type, so that it is at least compared as such.
    """
    return {path or ROOT: leaf for path, leaf in _walk(value, "")}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, Tensor) or value is None or isinstance(value, bool | int | float | str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, path + _key(key))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _walk(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), path + _key(field.name))
    else:
        yield path, f"<{type(value).__module__}.{type(value).__qualname__}>"


def _key(key: Any) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def fill(template: Any, values: Mapping[str, Any]) -> Any:
    """`template` with every string in it replaced by the value of that name.

    Raises KeyError where a name has no value.
    """
    if isinstance(template, str):
        return values[template]
    if isinstance(template, Mapping):
        return {key: fill(item, values) for key, item in template.items()}
    if isinstance(template, list | tuple):
        return [fill(item, values) for item in template]
    return template


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of `value` in which `change` was applied to each tensor that `flatten` finds; containers keep their type.

    A mapping that torch's own registry does not know becomes a dict.
    """
    if isinstance(value, Tensor):
        return change(value)
    from torch.utils import _pytree  # the only registry that knows torch's own return types

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if isinstance(leaf, Mapping):
            return {key: map_tensors(item, change) for key, item in leaf.items()}
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            mapped = copy.copy(leaf)
            for field in dataclasses.fields(leaf):  # past `__setattr__`, because the class may be frozen
                object.__setattr__(mapped, field.name, map_tensors(getattr(leaf, field.name), change))
            return mapped
        return leaf

    return _pytree.tree_map(one, value)
