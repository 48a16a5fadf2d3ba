"""What a stored crash is expected to do: `diverges`, `agrees`, or `fixed-in: VERSION`, first one and then the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from fuzzer.backends.spec import BackendSpec

DIVERGES, AGREES = "diverges", "agrees"
_FIXED_IN = "fixed-in"


@dataclass(frozen=True)
class Expectation:
    """`word` is `diverges` or `agrees`; with `fixed_in` it diverges before that version of `package`, then agrees.

    `package` is empty where only a version was given: then it is that of the target.
    """

    word: str = DIVERGES
    fixed_in: str = ""
    package: str = ""

    @classmethod
    def parse(cls, value: str | Mapping[str, Any]) -> Expectation:
        """`diverges`, `agrees`, `fixed-in: 2.15`, `fixed-in: onnxruntime 1.33`, or a mapping with that one key.

        Raises ValueError in one line.
        """
        if isinstance(value, Mapping):
            if set(value) != {_FIXED_IN}:
                raise ValueError(f"expect: a mapping has the one key {_FIXED_IN}")
            value = f"{_FIXED_IN}: {value[_FIXED_IN]}"
        if value in (DIVERGES, AGREES):
            return cls(value)
        head, _, rest = value.partition(":")
        package, _, version = rest.strip().rpartition(" ")
        if head.strip() != _FIXED_IN or not version:
            raise ValueError(f"expect: {value[:100]!r} is none of diverges, agrees, fixed-in: VERSION")
        try:
            Version(version)
        except InvalidVersion as error:
            raise ValueError(f"expect: {version[:100]!r} is no version") from error
        return cls(DIVERGES, version, package.strip())

    def under(self, versions: Mapping[str, Any], target: str) -> str:
        """`diverges` or `agrees`, given the versions of the packages that run. A version unknown is an old one."""
        if not self.fixed_in:
            return self.word
        try:
            running = Version(str(versions.get(self.package or package_of(target), "0")))
        except InvalidVersion:
            return DIVERGES
        return AGREES if running >= Version(self.fixed_in) else DIVERGES

    def to_plain(self) -> str | dict[str, str]:
        """What YAML holds: a colon inside plain text would not be text."""
        if not self.fixed_in:
            return self.word
        return {_FIXED_IN: f"{self.package} {self.fixed_in}".strip()}

    def __str__(self) -> str:
        plain = self.to_plain()
        return plain if isinstance(plain, str) else f"{_FIXED_IN}: {plain[_FIXED_IN]}"


def package_of(target: str) -> str:
    """The package whose version a backend's behaviour follows."""
    runtime = BackendSpec.parse(target).runtime
    return runtime if runtime in ("onnxruntime", "openvino") else "torch"
