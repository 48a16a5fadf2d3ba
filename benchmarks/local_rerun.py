"""What `fuzzer.crashes.rerun` does, in this process: for modules that cannot kill it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.local import RNG_SEED, Computed, Local
from fuzzer.backends.adapted import Adapted
from fuzzer.backends.base import Backend
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.registry import backend_class, parse
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Bench, Examined, examine


class LocalReruns:
    """Both sides of a finding, prepared here; `make` gives a module with the same weights each time."""

    def __init__(
        self, seed: Seed, reference: str, target: str, make: Callable[[], nn.Module], ordinary: Mapping[str, Tensor]
    ) -> None:
        self._seed = seed
        self._names = {"reference": reference, "target": target}
        self._make = make
        self._ordinary = ordinary
        self._oracle = Local(seed, ORACLE, make(), ordinary)
        self._sides: dict[str, tuple[object, Computed, Backend]] = {}
        self._evidence: Mapping[str, Any] = {}

    @property
    def evidence(self) -> Mapping[str, Any]:
        return self._evidence

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        rng_seed = RNG_SEED if change.rng_seed is None else change.rng_seed
        if change.fresh:
            self._sides.clear()
        try:
            sides = self._prepared(change)
            answers = [side.run(sample, rng_seed=rng_seed) for side in sides]
            bench = Bench(self._seed, *sides, self._oracle)  # type: ignore[arg-type]
            return examine(bench, sample, *answers, rng_seed=rng_seed, vacuity=None, screen=None, always_judge=True)
        finally:
            if change.adaptation.of_process:
                torch.set_flush_denormal(False)
                torch.use_deterministic_algorithms(False)
                self._sides.clear()

    def seconds(self, sample: Mapping[str, Tensor], change: Change, times: int) -> float | None:
        if change.fresh or change.adaptation.of_process:
            return None
        _, target = self._prepared(change)
        found = []
        for number in range(times + 1):
            started = time.perf_counter()
            if target.run(sample, rng_seed=RNG_SEED).leaves is None:
                return None
            if number:
                found.append(time.perf_counter() - started)
        return statistics.median(found)

    def _prepared(self, change: Change) -> tuple[Computed, Computed]:
        alike = change.adaptation if change.both else NOTHING.adaptation
        reference = self._side("reference", self._names["reference"], self._ordinary, alike)
        example = self._ordinary if change.example is None else change.example
        target = self._side("target", change.target or self._names["target"], example, change.adaptation)
        self._evidence = self._sides["target"][2].evidence()
        return reference, target

    def _side(self, which: str, name: str, example: Mapping[str, Tensor], adaptation: Any) -> Computed:
        key = (name, id(example), repr(adaptation))
        if which in self._sides and self._sides[which][0] == key:
            return self._sides[which][1]
        spec = parse(name)

        def make() -> Backend:
            return backend_class(spec.runtime)(spec)

        backend = Adapted(make, adaptation) if adaptation != NOTHING.adaptation else make()
        torch.manual_seed(RNG_SEED)
        try:
            backend.prepare(Model(self._seed, self._make().eval().requires_grad_(False)), dict(example))
        except Unsupported as error:
            raise CannotRerun(f"{name} refuses: {error.reason}"[:500]) from error
        except Exception as error:  # as in a worker: a backend that fails to prepare refuses the model
            raise CannotRerun(f"{name} refuses: {type(error).__name__}: {error}"[:500]) from error
        self._sides[which] = (key, Computed(name, backend.run), backend)
        return self._sides[which][1]
