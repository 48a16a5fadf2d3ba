"""The name of a backend: `runtime:device?option=value&...`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from fuzzer.errors import SpecError

_FORM = re.compile(r"(?P<runtime>[a-z][\w-]*):(?P<device>[a-z]+)(\?(?P<options>[^@]*))?")


@dataclass(frozen=True)
class BackendSpec:
    """A parsed backend string; `str()` gives the canonical one, options sorted by name."""

    runtime: str
    device: str
    options: dict[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, text: str) -> BackendSpec:
        """Raises SpecError where `text` does not have the form, or names an option twice."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise SpecError(f"backend {text!r} does not read as runtime:device?option=value, such as inductor:cpu")
        try:
            pairs = parse_qsl(match["options"] or "", keep_blank_values=True, strict_parsing=bool(match["options"]))
        except ValueError as error:
            raise SpecError(f"backend {text!r}: options read option=value, joined by &") from error
        options = dict(pairs)
        if len(options) != len(pairs):
            raise SpecError(f"backend {text!r} names an option twice")
        return cls(match["runtime"], match["device"], options)

    def __str__(self) -> str:
        options = "&".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.base}?{options}" if options else self.base

    @property
    def base(self) -> str:
        """Runtime and device, without options: what a signature keeps."""
        return f"{self.runtime}:{self.device}"
