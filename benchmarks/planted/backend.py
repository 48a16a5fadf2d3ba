"""The backend `planted:cpu?fault=NAME`: eager PyTorch in which one operator is faulty. Importing registers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.planted.fault import Call, Canary, Fault, Mechanism, same
from benchmarks.planted.faults import CONTROLS, FAULTS
from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.compiled import Inductor
from fuzzer.backends.eager import Eager, duplicate
from fuzzer.backends.registry import register
from fuzzer.backends.spec import BackendSpec
from fuzzer.models import Model

_NAMES = {**CONTROLS, **FAULTS}


class FaultyOperator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes every operator rightly and replaces the answers of the fault's own; counts what it did."""

    def __init__(self, fault: Fault, *, dry: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators = fault.operators
        self._effect = None if dry else fault.effect
        self._wrong = fault.build()
        self.canary = Canary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        right = func(*args, **kwargs)
        if func.overloadpacket.__name__ not in self._operators:
            return right
        self.canary.reached += 1
        call = Call(func, args, kwargs, right)
        wrong = self._wrong(call)
        changed = wrong is not None and not same(right, wrong)
        self.canary.triggered += changed or call.acted
        if call.acted and self._effect is not None:
            self._effect()
        return wrong if changed else right


@register
class Planted(Backend):
    """Option `fault`: a name of `FAULTS` or `CONTROLS`; without it there is none. `dry`: what would harm the process is
    counted only.

    `evidence` tells the canary of the last run: `reached` and `triggered`. A fault inside Inductor has no canary.
    """

    runtime = "planted"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"fault": tuple(_NAMES), "dry": ("true",)}

    def __init__(self, spec: BackendSpec) -> None:
        super().__init__(spec)
        self.fault = _NAMES[spec.options.get("fault", "none")]
        self.canary: Canary | None = None
        inside = Inductor if self.fault.mechanism is Mechanism.INDUCTOR else Eager
        self._inside: Eager | Inductor = inside(BackendSpec(inside.runtime, spec.device))

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        fault = _NAMES[spec.options.get("fault", "none")]
        return Inductor.unavailable(spec) if fault.mechanism is Mechanism.INDUCTOR else None

    def prepare(self, model: Model, example: Sample) -> None:
        """Runs the example once where the fault remembers, as a compiler would."""
        if self.fault.injects is not None:
            with torch._inductor.config.patch(dict([self.fault.injects])):
                self._inside.prepare(model, example)
            return
        self._inside.prepare(model, example)
        self._mode = FaultyOperator(self.fault, dry="dry" in self.spec.options)
        if self.fault.mechanism is Mechanism.STATE:
            self.run(duplicate(example))

    def run(self, sample: Sample) -> Any:
        if self.fault.injects is not None:
            with torch._inductor.config.patch(dict([self.fault.injects])):
                return self._inside.run(sample)
        self.canary = self._mode.canary = Canary()
        with self._mode:
            return self._inside.run(sample)

    def evidence(self) -> dict[str, Any]:
        canary = {} if self.canary is None else {"canary": self.canary.to_json()}
        return {**self._inside.evidence(), "fault": self.fault.name, **canary}
