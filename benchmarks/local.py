"""Sessions without worker processes, for modules that cannot kill one: the same answers, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.backends.boundary import towards_boundary
from fuzzer.backends.oracle import Oracle
from fuzzer.backends.protocol import ORACLE, Failure
from fuzzer.backends.registry import backend_class, parse
from fuzzer.backends.session import Answer, State
from fuzzer.backends.spec import BackendSpec
from fuzzer.backends.watch import Watch
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.seeds import Dim, InputSpec, ModelSpec, Seed, Tolerance
from fuzzer.trees import flatten, map_tensors
from fuzzer.verify.examine import Bench, Examined, examine

#: Torch's generator is seeded with this before every call.
RNG_SEED = 7


def seed_for(
    inputs: Sequence[Tensor],
    *,
    dynamic: bool = False,
    tolerance: Tolerance | None = None,
    signed_zero: bool = False,
    exact: Sequence[str] = (),
) -> Seed:
    """A seed whose inputs `a`, `b`, … have the shapes and dtypes of `inputs`; `dynamic` frees the first size of `a`."""
    specs: dict[str, InputSpec] = {}
    for name, tensor in named(inputs).items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        kind = "mask" if tensor.dtype == torch.bool else "floats" if _is_float(tensor) else "integers"
        shape: list[int | str] = list(tensor.shape)
        if dynamic and name == "a":
            shape[0] = "n"
        specs[name] = InputSpec(kind=kind, dtype=dtype, shape=shape, exact=name in exact)  # type: ignore[arg-type]
    return Seed(
        name="tiny",
        model=ModelSpec(source="builder", builder="tiny:Tiny"),
        inputs=specs,
        dims={"n": Dim(size=2, min=0, max=8)} if dynamic else {},
        tolerance=tolerance,
        signed_zero=signed_zero,
    )


def named(inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    return {chr(ord("a") + i): tensor for i, tensor in enumerate(inputs)}


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class Computed:
    """A side that is a function from a sample to an output, with the face of `fuzzer.backends.session.Session`."""

    def __init__(self, name: str, function: Callable[[Mapping[str, Tensor]], Any]) -> None:
        self.backend = name
        self.state = State.READY
        self.reason = ""
        self.compute = function

    def run(self, sample: Mapping[str, Tensor], *, rng_seed: int, check: bool = False, **variant: Any) -> Answer:
        return answered(self.compute, sample, rng_seed)


def answered(function: Callable[[dict[str, Tensor]], Any], sample: Mapping[str, Tensor], rng_seed: int) -> Answer:
    """What a worker would answer: a copy of the leaves, or the exception that `function` raised."""
    torch.manual_seed(rng_seed)
    try:
        output = function({name: tensor.clone() for name, tensor in sample.items()})
        return Answer(flatten(map_tensors(output, lambda tensor: tensor.detach().clone())))
    except Exception as error:  # as in a worker: an answer like any other
        kind = "unsupported" if isinstance(error, Unsupported) else "exception"
        return Answer(failure=Failure(kind, type(error).__name__, str(error), "", traceback.format_exc()))


class Local(Computed):
    """What `fuzzer.backends.session.Session` is to its callers, with the backend in this process."""

    def __init__(
        self, seed: Seed, backend: str, module: nn.Module, example: Sequence[Tensor] | Mapping[str, Tensor]
    ) -> None:
        self.calls: list[dict[str, Any]] = []
        if backend == ORACLE:
            self._backend: Any = Oracle(BackendSpec.parse(ORACLE))
        else:
            self._backend = backend_class(parse(backend).runtime)(parse(backend))
        super().__init__(backend, self._backend.run)
        torch.manual_seed(RNG_SEED)
        first = example if isinstance(example, Mapping) else named(example)
        try:
            self._backend.prepare(Model(seed, module.eval().requires_grad_(False)), first)
        except Unsupported as error:
            self.state, self.reason = State.REFUSED, error.reason
        except Exception as error:  # as in a worker: a backend that fails to prepare refuses the model
            self.state, self.reason = State.REFUSED, f"{type(error).__name__}: {error}"

    def run(
        self, sample: Mapping[str, Tensor], *, rng_seed: int, check: bool = False, inside: bool = False, **variant: Any
    ) -> Answer:
        self.calls.append(variant)
        if inside:
            with Watch() as watch:
                return replace(super().run(sample, rng_seed=rng_seed), inside=watch.words)
        if not variant:
            return super().run(sample, rng_seed=rng_seed)
        return answered(
            lambda inputs: self._backend.run_variant(inputs, variant | {"rng_seed": rng_seed}), sample, rng_seed
        )

    def boundary(self, sample: Mapping[str, Tensor], *, rng_seed: int, names: list[str], key: int) -> Any:
        """As a session's: changes that take a decision to its boundary; None where the module has no gradient."""
        torch.manual_seed(rng_seed)
        try:
            moved = towards_boundary(self._backend.forward, sample, names, key)
        except Exception:  # as in a worker: the module's own refusal of the sample or of gradients
            return None
        return None if moved is None else moved.changes


class Remembering(Local):
    """An oracle that several targets ask about the same sample, one after the other: it answers once."""

    def __init__(self, seed: Seed, module: nn.Module, example: Mapping[str, Tensor]) -> None:
        super().__init__(seed, ORACLE, module, example)
        self._sample: Mapping[str, Tensor] | None = None
        self._answers: dict[str, Answer] = {}

    def run(self, sample: Mapping[str, Tensor], *, rng_seed: int, check: bool = False, **variant: Any) -> Answer:
        if sample is not self._sample:
            self._sample, self._answers = sample, {}
            self.calls.clear()
        key = repr((rng_seed, sorted(variant.items())))
        if key not in self._answers:
            self._answers[key] = super().run(sample, rng_seed=rng_seed, **variant)
        return self._answers[key]


def verdict_on(
    module: nn.Module,
    inputs: Sequence[Tensor],
    target: str | nn.Module,
    *,
    example: Sequence[Tensor] | None = None,
    seed: Seed | None = None,
    reference: str = "eager:cpu",
) -> Examined:
    """Tier 1 of `module` on eager against `target`: a backend, or another module that should do the same.

    Raises Unsupported where the target refuses the module.
    """
    of = seed or seed_for(inputs)
    example = example or inputs
    sides = [Local(of, reference, module, example)]
    other, spec = (module, target) if isinstance(target, str) else (target, reference)
    sides.append(Local(of, spec, other, example))
    if sides[1].state is not State.READY:
        raise Unsupported(sides[1].reason, stage="prepare")
    return between(of, sides[0], sides[1], Local(of, ORACLE, module, example), inputs)


def between(of: Seed, reference: Local, target: Local, oracle: Local | None, inputs: Sequence[Tensor]) -> Examined:
    """Tier 1 of one prepared side against another."""
    sample = named(inputs)
    answers = [side.run(sample, rng_seed=RNG_SEED) for side in (reference, target)]
    bench = Bench(of, reference, target, oracle)  # type: ignore[arg-type]
    return examine(bench, sample, *answers, rng_seed=RNG_SEED, vacuity=None, screen=None)
