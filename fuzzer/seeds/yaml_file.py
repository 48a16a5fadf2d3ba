"""Strict YAML: plain data, with the line of every key, and nothing that runs or surprises.

The scalars are those of YAML 1.2's core schema: `1e-5` is a number and `no` is text (PyYAML follows YAML 1.1, where the
first is text and the second is false). Duplicate keys, keys that are not text, tags beyond the plain ones, anchors that
contain themselves, and files whose aliases expand without end are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from fuzzer.errors import XbfuzzError

#: Where a value stands: keys and list positions from the root.
KeyPath = tuple[str | int, ...]

_MAX_NODES = 100_000  # after aliases are expanded; a long seed has a few hundred
_MAX_DEPTH = 64

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_NULL = re.compile(r"~|null|Null|NULL|")


class Fault(NamedTuple):
    """One thing wrong: the line (from 1; None where it is not known), the key path, and what to say."""

    line: int | None
    path: KeyPath
    text: str

    def __str__(self) -> str:
        where = key_path(self.path)
        line = "" if self.line is None else f"{self.line}: "
        return f"{line}{where}: {self.text}" if where else f"{line}{self.text}"


class YamlError(XbfuzzError):
    """A YAML text that cannot be read; `faults` lists what is wrong with it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = list(faults)
        super().__init__("\n".join(f"line {fault}" if fault.line else str(fault) for fault in faults))


@dataclass(frozen=True)
class Document:
    """Plain data (None, bool, int, float, str, list, dict with text keys), and where each key stood in the text."""

    data: Any
    lines: dict[KeyPath, int]
    faults: list[Fault] = field(default_factory=list)

    def line(self, path: KeyPath) -> int:
        """The line of the key at `path`, or of the nearest thing around it."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1


def key_path(path: KeyPath) -> str:
    """`path` as a reader would write it: `inputs.image.shape[2]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(text: str) -> Document:
    """The data in `text`. Raises YamlError, with every fault found."""
    document = scan_yaml(text)
    if document.faults:
        raise YamlError(document.faults)
    return document


def scan_yaml(text: str) -> Document:
    """Like `read_yaml`, but faults that leave the rest readable (a key given twice) are listed in the document.

    Of two equal keys the first counts. Raises YamlError where nothing can be read.
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError([Fault(None if mark is None else mark.line + 1, (), said)]) from error
    except yaml.YAMLError as error:
        raise YamlError([Fault(None, (), " ".join(str(error).split()))]) from error
    if root is None:
        return Document(None, {(): 1})
    reader = _Reader()
    data = reader.value(root, ())
    return Document(data, reader.lines, reader.faults)


def dump_yaml(data: Any) -> str:
    """Plain data as YAML in block style, keys in their order; `read_yaml` gives the same data back.

    Text that YAML 1.1 or 1.2 would take for something else is quoted, so that other readers agree.
    """
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with YAML 1.2's idea of a scalar and a limit on depth; used to compose only."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested more than {_MAX_DEPTH} deep", problem_mark=self.get_mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which also quotes what YAML 1.2 would not read as text, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)  # lists inside mappings are indented, as people write them


def _represent_list(dumper: _Dumper, data: list[Any]) -> yaml.Node:
    """Lists of scalars in one line, others one item a line."""
    short = all(item is None or isinstance(item, bool | int | float | str) for item in data)
    return dumper.represent_sequence(f"{_TAG}seq", data, flow_style=short)


def _represent_text(dumper: _Dumper, data: str) -> yaml.Node:
    """Unusual line breaks are escaped: PyYAML folds them in its other styles, and other text comes back."""
    style = '"' if any(mark in data for mark in "\r\x85\u2028\u2029") else None
    return dumper.represent_scalar(f"{_TAG}str", data, style=style)


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(f"{_TAG}bool", re.compile(f"^(?:{_BOOL.pattern})$"), list("tTfF"))
    _kind.add_implicit_resolver(f"{_TAG}int", re.compile(f"^(?:{_INT.pattern})$"), list("-+0123456789"))
    _kind.add_implicit_resolver(f"{_TAG}float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
    _kind.add_implicit_resolver(f"{_TAG}null", re.compile(f"^(?:{_NULL.pattern})$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile("^<<$"), ["<"])
_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)


class _Reader:
    """Turns composed nodes into data, noting lines and faults."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.faults: list[Fault] = []
        self._count = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_NODES:
            raise YamlError([Fault(_line(node), path, f"more than {_MAX_NODES} values, aliases counted")])
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            raise YamlError([Fault(_line(node), path, "an anchor contains itself")])
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.value(item, (*path, i)) for i, item in enumerate(node.value)]
            if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, path)
        finally:
            self._open.discard(id(node))
        return self._refuse_tag(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged.append(value_node)
                continue
            if key_node.tag != f"{_TAG}str":
                said = f"{key_node.value!r}" if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
                self.faults.append(Fault(_line(key_node), path, f"a key must be text, got {said}; quote it"))
                continue
            key = key_node.value
            inner = (*path, key)
            if key in found:
                first = self.lines[inner]
                self.faults.append(Fault(_line(key_node), inner, f"given twice, first in line {first}"))
                continue
            self.lines[inner] = _line(key_node)
            found[key] = self.value(value_node, inner)
        for key, item in (pair for other in merged for pair in self._merge(other, path)):
            found.setdefault(key, item)  # a mapping's own keys outrank merged ones, earlier merged ones later ones
        return found

    def _merge(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, Any]]:
        for other in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.value(other, path)
            if isinstance(value, dict):
                yield from value.items()
            else:
                self.faults.append(Fault(_line(other), path, "`<<` takes a mapping"))

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null" if _NULL.fullmatch(text):
                return None
            case "bool" if _BOOL.fullmatch(text):
                return text[0] in "tT"
            case "int" if _INT.fullmatch(text):
                base = {"0x": 16, "0o": 8}.get(text[:2], 10)
                if len(text) <= 4000:  # Python refuses longer ones
                    return int(text, base)
                self.faults.append(Fault(_line(node), path, "a whole number of more than 4000 digits"))
                return None
            case "float" if _FLOAT.fullmatch(text):
                special = text.lower().lstrip("-+") in (".inf", ".nan")
                return float(text.replace(".", "", 1) if special else text)
        return self._refuse_tag(node, path)

    def _refuse_tag(self, node: yaml.Node, path: KeyPath) -> None:
        tag = node.tag.replace(_TAG, "!!")
        self.faults.append(Fault(_line(node), path, f"the tag {tag} is not allowed here"))


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
