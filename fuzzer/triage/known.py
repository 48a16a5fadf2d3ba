"""`known.yaml`: upstream issues that the keepers of a crash folder know, so that a duplicate is named as one.

A list of entries, each with a `pattern`, a `url` and a `note` (either of the two may be left out):

    - pattern: "*max_pool*NaN*"
      url: https://github.com/microsoft/onnxruntime/issues/1
      note: MaxPool drops NaN
    - pattern: {label: numeric/nonfinite*, target: onnxruntime:*, leaf: "[0]"}
      note: ours, fixed in the next release

A pattern is shell-style. Lone text is looked for in any one line that a reader sees of the crash; a mapping names
fields, all of which must match.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from fuzzer.crashes.crash import Crash
from fuzzer.errors import XbfuzzError
from fuzzer.seeds.yaml_file import YamlError, read_yaml

#: The file's name in a crash folder.
KNOWN = "known.yaml"
#: The fields that a pattern may name.
FIELDS = ("id", "label", "target", "reference", "seed", "leaf", "kind", "stage", "blame", "severity")
_Text = Annotated[str, Field(min_length=1, max_length=2000)]


class KnownIssue(BaseModel):
    """One entry. Raises pydantic's ValidationError on what it cannot be."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    pattern: _Text | dict[str, _Text]
    url: Annotated[str, Field(pattern=r"^(https?://\S+)?$", max_length=2000)] = ""
    note: Annotated[str, Field(max_length=2000)] = ""

    @model_validator(mode="after")
    def _holds_together(self) -> KnownIssue:
        if not self.url and not self.note:
            raise ValueError("an entry needs a url or a note")
        if isinstance(self.pattern, dict):
            unknown = sorted(set(self.pattern) - set(FIELDS))
            if unknown or not self.pattern:
                raise ValueError(f"a pattern names {', '.join(FIELDS)}, not {', '.join(unknown) or 'nothing'}")
        return self

    @property
    def sentence(self) -> str:
        return ": ".join(part for part in (self.note, self.url) if part)


@dataclass(frozen=True)
class KnownIssues:
    """The entries in their order; the first that matches names a crash."""

    entries: Sequence[KnownIssue] = ()

    def match(self, crash: Crash) -> KnownIssue | None:
        """The issue of which `crash` is a duplicate, as far as the patterns say."""
        return next((entry for entry in self.entries if _matches(entry.pattern, crash)), None)


def load_known(path: Path) -> KnownIssues:
    """The issues in a file; none where there is no such file. Raises XbfuzzError, one line, on one that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return KnownIssues()
    except (OSError, UnicodeDecodeError) as error:
        raise XbfuzzError(f"{path}: cannot be read: {error}") from error
    try:
        data: Any = read_yaml(text).data
        return KnownIssues(TypeAdapter(list[KnownIssue]).validate_python(data or []))
    except YamlError as error:
        raise XbfuzzError(f"{path}: {error.faults[0]}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise XbfuzzError(f"{path}: entry {place}: {first['msg']}") from error


def _matches(pattern: str | Mapping[str, str], crash: Crash) -> bool:
    if isinstance(pattern, str):
        return any(fnmatch.fnmatchcase(line, pattern) for line in _lines(crash))
    fields = _fields(crash)
    return all(fnmatch.fnmatchcase(fields[name], wanted) for name, wanted in pattern.items())


def _fields(crash: Crash) -> dict[str, str]:
    """The values of FIELDS; a suspected label is matched without its mark, so that confirming it changes nothing."""
    return {
        "id": crash.id,
        "label": crash.label.name,
        "target": crash.target,
        "reference": crash.reference,
        "seed": crash.signature.seed,
        "leaf": crash.leaf,
        "kind": crash.kind,
        "stage": crash.stage or "",
        "blame": crash.blame,
        "severity": crash.severity,
    }


def _lines(crash: Crash) -> Iterator[str]:
    yield from _fields(crash).values()
    yield from crash.evidence
    for difference in crash.verdict["differences"]:
        yield from (str(difference[key]) for key in ("message", "reference", "target"))
