"""Functions of `fuzzer.crashes.standalone` as text for a script: those it uses, in their order, without annotations."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection

from fuzzer.crashes import standalone

#: Imports that a script may need, by the name by which it uses them.
IMPORTS = {
    "contextlib": "import contextlib",
    "importlib": "import importlib.util",
    "io": "import io",
    "json": "import json",
    "os": "import os",
    "subprocess": "import subprocess",
    "sys": "import sys",
    "torch": "import torch",
    "torch.utils.dlpack": "import torch.utils.dlpack",
    "torchvision": "import torchvision",
    "pytree": "from torch.utils import _pytree as pytree",
}
_STANDARD = ("contextlib", "importlib", "io", "json", "os", "subprocess", "sys")


def names() -> frozenset[str]:
    """All names that a script may have from there."""
    return frozenset(name for name in vars(standalone) if not name.startswith("__"))


def helpers(text: str, also: Collection[str]) -> str:
    """The functions and classes that `text` calls or catches, those named in `also`, and those that these use."""
    there = {k: v for k, v in vars(standalone).items() if getattr(v, "__module__", "") == standalone.__name__}
    sources = {name: plain(inspect.getsource(item)) for name, item in there.items()}
    needed = set(also)
    waiting = [text, *(sources[name] for name in also)]
    while waiting:
        code = waiting.pop()
        found = {name for name in sources if re.search(rf"(?<![\w.]){name}\(|except {name}\b", code)} - needed
        needed |= found
        waiting += [sources[name] for name in found]
    return "\n\n".join(source for name, source in sources.items() if name in needed)


def uses(text: str, name: str) -> bool:
    """Whether the code `text` has `name`, not as a part of a longer name or of another object."""
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def imports(text: str) -> str:
    """The import statements that `text` needs, the standard library first."""
    needed = [name for name in IMPORTS if re.search(rf"((?<![\w.])|torch\.ops\.){re.escape(name)}\.", text)]
    groups = [[name for name in needed if (name.partition(".")[0] in _STANDARD) is first] for first in (True, False)]
    return "\n\n".join("\n".join(IMPORTS[name] for name in group) for group in groups if group)


def plain(source: str) -> str:
    """The source of a function or class without annotations and without comments to linters."""
    source = re.sub(r"  # (type: ignore|noqa).*", "", source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    data = source.encode()
    cuts: list[tuple[int, int, bytes]] = []

    def end(node: ast.expr | ast.arg) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.end_lineno - 1] + node.end_col_offset

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation is not None:
            first = starts[node.lineno - 1] + node.col_offset + len(node.arg.encode())
            cuts.append((first, end(node.annotation), b""))
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            first = data.rindex(b")", 0, starts[node.returns.lineno - 1] + node.returns.col_offset) + 1
            cuts.append((first, end(node.returns), b""))
        elif isinstance(node, ast.AnnAssign):
            cuts.append((end(node.target), end(node.annotation), b""))
    for first, last, text in sorted(cuts, reverse=True):
        data = data[:first] + text + data[last:]
    return re.sub(r"(\w) = (0|1)(?=[,)])", r"\1=\2", data.decode())
