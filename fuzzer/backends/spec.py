"""The name of a backend: `runtime:device?option=value&...`, and `@PATH/python` where another interpreter runs it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl

from fuzzer.errors import SpecError

_FORM = re.compile(r"(?P<runtime>[a-z][\w-]*):(?P<device>[a-z]+)(\?(?P<options>[^@]*))?(@(?P<python>.+))?")


@dataclass(frozen=True)
class BackendSpec:
    """A parsed backend string; `str()` gives the canonical one, options sorted by name.

    `python` is the interpreter whose packages run the backend, as it was written; empty for this process's own.
    """

    runtime: str
    device: str
    options: dict[str, str] = field(default_factory=dict, hash=False)
    python: str = ""

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
        return cls(match["runtime"], match["device"], options, match["python"] or "")

    def __str__(self) -> str:
        options = "&".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return self.base + (f"?{options}" if options else "") + (f"@{self.python}" if self.python else "")

    def under(self, python: str) -> BackendSpec:
        """The same backend run by another interpreter; by this process's own where `python` is empty."""
        return replace(self, python=python)

    @property
    def base(self) -> str:
        """Runtime and device, without options and interpreter: what a signature keeps."""
        return f"{self.runtime}:{self.device}"
