"""What a backend is: a class with a name that says whether it can run here, prepares a model, and runs samples.

The built-in backends use this interface and nothing more. Each instance lives in a worker process of its own.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from fuzzer.backends.observe import Observation
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import SpecError, Unsupported
from fuzzer.models import Model

#: A sample: one tensor for each input that the seed names.
Sample = Mapping[str, Tensor]


#: The values of an option that takes any name of letters, digits, `_`, `.` and `-`.
ANY_NAME = ("*",)


class Backend(ABC):
    """One way to run a model. Subclasses name their runtime, their devices and their options."""

    runtime: ClassVar[str]
    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    #: whether it runs modules: false where an ONNX file of the user's runs as it is, and needs not be made into one
    needs_module: ClassVar[bool] = True
    #: option → the values it takes; an empty tuple means any whole number, ANY_NAME any name
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        """Raises SpecError where `spec` asks for a device or an option that this runtime does not have."""
        if spec.device not in cls.devices:
            raise SpecError(f"{spec}: {cls.runtime} runs on {', '.join(cls.devices)}, not on {spec.device}")
        for option, value in spec.options.items():
            if option not in cls.options:
                known = ", ".join(cls.options) or "none"
                raise SpecError(f"{spec}: {cls.runtime} has no option {option!r} (it has: {known})")
            allowed = cls.options[option]
            if not _takes(allowed, value):
                words = "a name" if allowed == ANY_NAME else " or ".join(allowed) or "a whole number"
                raise SpecError(f"{spec}: {option} takes {words}, not {value!r}")

    @classmethod
    @abstractmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        """Why this backend cannot run on this machine, or None where it can. Quick; compiles nothing."""

    @abstractmethod
    def prepare(self, model: Model, example: Sample) -> None:
        """Compile, export or load `model`, with `example` as the example input where one is needed.

        Raises fuzzer.errors.Unsupported where the backend refuses the model.
        """

    @abstractmethod
    def run(self, sample: Sample) -> Any:
        """The model's output on `sample`: the same nested value that the module itself returns. May raise."""

    def observe(self, sample: Sample) -> Observation:
        """Run `sample` once more and keep what passes on the way, by the names of `fuzzer.backends.observe`.

        Leaves the prepared model as it was. Raises Unsupported where this backend cannot look inside.
        """
        raise Unsupported(f"{self.runtime} does not tell intermediate values", stage="observe")

    def evidence(self) -> dict[str, Any]:
        """What is known of what really ran: graphs, breaks, recompiles, exporter, node placement. JSON values only."""
        return {}


def _takes(allowed: tuple[str, ...], value: str) -> bool:
    if allowed == ANY_NAME:
        return re.fullmatch(r"[\w.-]+", value) is not None
    return value in allowed if allowed else value.isdecimal()
