"""What a mutator is, and the register of all of them.

A mutator proposes parameters (JSON values, so that a recipe can be written down) and applies them to a sample. All
chance is in the proposal; applying is a function of the sample and the parameters alone.
"""

from __future__ import annotations

import difflib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field, ValidationError
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.mutate.where import Where
from fuzzer.seeds.fields import Name
from fuzzer.seeds.schema import InputSpec, Seed, Strict

#: One tensor for each input that the seed names.
Sample = dict[str, Tensor]
#: The shape of each input, dimensions resolved.
Shapes = Mapping[str, tuple[int, ...]]

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]

FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "complex64"})
INTEGER_DTYPES = frozenset({"int64", "int32", "int16", "int8", "uint8"})
#: Kinds whose values may be moved about freely; tokens and masks are changed only by the mutators meant for them.
FREE_KINDS = frozenset({"image", "boxes", "scores", "floats", "integers"})

P = TypeVar("P", bound=Strict)


class Mutator(ABC, Generic[P]):
    """One kind of change. `params_type` validates what a recipe carries for it."""

    name: ClassVar[str]
    params_type: type[P]
    #: How often it is chosen beside the others, before anything has been learnt.
    weight: ClassVar[float] = 1.0

    @abstractmethod
    def fits(self, seed: Seed) -> bool:
        """Whether there is something in this seed's inputs that this mutator may change."""

    @abstractmethod
    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> P:
        """Random parameters for a sample of these shapes. Only called where `fits`."""

    @abstractmethod
    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: P) -> Sample:
        """The changed tensors alone, new and contiguous. The sample's own are left as they are.

        Keeps dtype, and shape too unless `resized` says otherwise. Raises InputError where the parameters name
        something that the seed does not have.
        """

    def resized(self, params: P) -> dict[str, int]:
        """The named dimensions that these parameters set, with their new sizes."""
        return {}

    def replaces(self, params: P) -> str | None:
        """The input of whose values these parameters leave nothing, if there is one."""
        return None

    def propose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> dict[str, Any]:
        """Random parameters as JSON values."""
        return self.choose(seed, shapes, rng).model_dump(mode="json")

    def apply(self, seed: Seed, sample: Mapping[str, Tensor], params: Mapping[str, Any]) -> Sample:
        """A new sample. Raises InputError on parameters that this mutator does not take."""
        return {**sample, **self.change(seed, sample, self.read(params))}

    def read(self, params: Mapping[str, Any]) -> P:
        """Raises InputError, with the first faults on one line, on parameters that this mutator does not take."""
        try:
            return self.params_type.model_validate(dict(params))
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'params'}: {fault['msg']}" for fault in error.errors()[:4]
            )
            raise InputError(f"mutator {self.name}: {faults}") from error


class OnInput(Strict):
    """Parameters of a change to one input."""

    input: Name


class AtPlaces(OnInput):
    """Parameters of a change to some elements of one input."""

    where: Where


def whole(params: OnInput) -> str | None:
    """The input, where the change is to each of its elements: what `replaces` says of a mutator that keeps no value."""
    return params.input if isinstance(params, AtPlaces) and params.where.place == "all" else None


Q = TypeVar("Q", bound=OnInput)


class InputMutator(Mutator[Q]):
    """A mutator that changes one input at a time."""

    @abstractmethod
    def suits(self, spec: InputSpec) -> bool:
        """Whether inputs like this one may be changed."""

    @abstractmethod
    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> Q:
        """Random parameters for input `name`."""

    @abstractmethod
    def alter(self, spec: InputSpec, tensor: Tensor, params: Q) -> Tensor:
        """The changed tensor, new and contiguous, of the same dtype and shape."""

    def targets(self, seed: Seed) -> list[str]:
        return [name for name, spec in seed.inputs.items() if self.suits(spec)]

    def fits(self, seed: Seed) -> bool:
        return bool(self.targets(seed))

    def choose(self, seed: Seed, shapes: Shapes, rng: random.Random) -> Q:
        name = rng.choice(self.targets(seed))
        return self.pick(seed, name, shapes[name], rng)

    def change(self, seed: Seed, sample: Mapping[str, Tensor], params: Q) -> Sample:
        self.require(seed, params.input)
        return {params.input: self.alter(seed.inputs[params.input], sample[params.input], params)}

    def require(self, seed: Seed, name: str) -> None:
        if name not in self.targets(seed):
            fitting = ", ".join(self.targets(seed)) or "none"
            raise InputError(f"mutator {self.name} does not change input {name!r} of seed {seed.name} (but: {fitting})")


def free(spec: InputSpec) -> bool:
    """Whether values may be moved about within the tensor."""
    return spec.kind in FREE_KINDS and not spec.exact


def free_float(spec: InputSpec) -> bool:
    """Whether values may be any float."""
    return free(spec) and spec.kind != "integers" and spec.dtype_name in FLOAT_DTYPES


_REGISTER: dict[str, Mutator[Any]] = {}

M = TypeVar("M", bound=type[Mutator[Any]])


def register(cls: M) -> M:
    """Class decorator: makes the mutator known under its name. Raises ValueError where the name is taken."""
    if cls.name in _REGISTER:
        raise ValueError(f"there is already a mutator named {cls.name!r}")
    _REGISTER[cls.name] = cls()
    return cls


def mutator_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_REGISTER)


def find_mutator(name: str) -> Mutator[Any]:
    """Raises InputError, with the nearest known name, where there is no such mutator."""
    if name not in _REGISTER:
        near = difflib.get_close_matches(name, _REGISTER, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(mutator_names())}"
        raise InputError(f"no mutator is named {name!r}; {hint}")
    return _REGISTER[name]


def mutators_for(seed: Seed) -> list[Mutator[Any]]:
    """The mutators that may run on this seed, by name: those that fit, as its `mutators` and `allow` say.

    Raises InputError where `mutators` names one that does not exist.
    """
    only = _known(seed.mutators.only) or set(_REGISTER)
    skip = _known(seed.mutators.skip)
    return [_REGISTER[name] for name in mutator_names() if name in only - skip and _REGISTER[name].fits(seed)]


def _known(names: Iterable[str]) -> set[str]:
    return {find_mutator(name).name for name in names}
