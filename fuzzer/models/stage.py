"""A stage: a submodule of a model, or a method of one, as a module of its own, with what it is called with."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.errors import ModelError
from fuzzer.inputs.dtypes import DTYPES
from fuzzer.inputs.sample import resized
from fuzzer.models.contain import contained
from fuzzer.models.model import Model
from fuzzer.seeds import Seed
from fuzzer.seeds.fields import InputKind
from fuzzer.seeds.schema import Dim, InputSpec, ModelSpec, Stage
from fuzzer.seeds.stages import carried, stage_name

_NAMES: dict[torch.dtype, Any] = {dtype: name for name, dtype in DTYPES.items()}
#: Fields of the whole seed that hold for its stages too.
_SHARED = ("backends", "reference", "mutators", "allow", "accept", "signed_zero")
_LIMITS = ("deadline_s", "prepare_deadline_s", "memory_mb")


@dataclass(frozen=True)
class Captured:
    """What a stage was called with: a call template, and a sample for each base input that reached it alike."""

    call: Any
    samples: list[dict[str, Tensor]]


class Method(nn.Module):
    """A method of a module as a module, with the parameters of its owner."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.owner, self.name)(*args, **kwargs)


def stage_module(module: nn.Module, path: str) -> nn.Module:
    """The submodule at the dotted `path`, or the method there as a module. Raises ModelError where there is neither."""
    owner, name = _place(module, path)
    found = getattr(owner, name)
    return found if isinstance(found, nn.Module) else Method(owner, name)


def _place(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    head, _, name = path.rpartition(".")
    known = [each for each, _ in module.named_modules() if each]
    close = difflib.get_close_matches(path, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    try:
        owner = module.get_submodule(head)
    except AttributeError as error:
        raise ModelError(f"the model has no submodule {path!r}{hint}") from error
    found = getattr(owner, name, None)
    if not isinstance(found, nn.Module) and not inspect.ismethod(found):
        raise ModelError(f"the model has no submodule and no method {path!r}{hint}")
    return owner, name


def captured(model: Model, path: str, samples: Sequence[Mapping[str, Tensor]]) -> Captured:
    """What the stage at `path` is called with when `model` runs on `samples`: its first call in each run.

    Runs in which it was not called, was given an empty tensor, or other plain values or another structure than in the
    first one are left out. Raises ModelError where it is never called, or with what no call template can hold.
    """
    assert model.module is not None
    module, seed = model.module, model.seed
    owner, name = _place(module, path)
    target = getattr(owner, name)
    signature = inspect.signature(target.forward if isinstance(target, nn.Module) else target)
    first: Any = None
    found: list[dict[str, Tensor]] = []
    for sample in samples:
        seen: list[tuple[Any, Any]] = []
        args, kwargs = model.call({key: value.clone() for key, value in sample.items()})
        with contained(f"{seed.name}: the model fails on its own base inputs"), torch.no_grad():
            torch.manual_seed(0)
            with _watched(owner, name, lambda a, k, seen=seen: seen.append((a, k))):  # type: ignore[misc]
                module(*args, **kwargs)
        if not seen:
            continue
        call, tensors = _template(signature, *seen[0])
        if first is None:
            first = call, {key: (value.dim(), value.dtype) for key, value in tensors.items()}
        alike = first == (call, {key: (value.dim(), value.dtype) for key, value in tensors.items()})
        if alike and all(value.numel() for value in tensors.values()):
            found.append(tensors)
    if not found:
        why = "it is not called" if first is None else "it is given empty tensors"
        raise ModelError(f"{path} cannot be a stage: {why} on base inputs")
    return Captured(first[0], found)


@contextlib.contextmanager
def _watched(owner: nn.Module, name: str, seen: Callable[[Any, Any], None]) -> Iterator[None]:
    """`seen` gets copies of the arguments of each call of the attribute `name` of `owner`."""
    target = getattr(owner, name)
    if isinstance(target, nn.Module):
        handle = target.register_forward_pre_hook(lambda _, args, kwargs: seen(args, kwargs), with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
        return

    def recorder(*args: Any, **kwargs: Any) -> Any:
        seen(args, kwargs)
        return target(*args, **kwargs)

    owner.__dict__[name] = recorder
    try:
        yield
    finally:
        del owner.__dict__[name]


def _template(signature: inspect.Signature, args: Any, kwargs: Any) -> tuple[Any, dict[str, Tensor]]:
    """The call as a template of names, and the tensors by name: `x`, `features_0`, `outputs_scores`."""
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            if value.dtype not in _NAMES or value.layout != torch.strided:
                raise ModelError(f"it cannot be a stage: its argument {name} is a tensor of {value.dtype}")
            key = re.sub(r"\W", "_", name)
            while key in tensors:
                key += "_"
            tensors[key] = value.detach().clone().contiguous()
            return key
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: walk(item, f"{name}_{key}") for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [walk(item, f"{name}_{i}") for i, item in enumerate(value)]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise ModelError(f"it cannot be a stage: its argument {name} is a {type(value).__qualname__}, no plain value")

    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [places[i].name if i < len(places) else f"x{i}" for i in range(len(args))]
    given = [walk(value, name) for value, name in zip(args, names, strict=True)]
    named = {key: walk(value, key) for key, value in kwargs.items()}
    if not tensors:
        raise ModelError("it cannot be a stage: it is given no tensor")
    return ({"args": given, "kwargs": named} if named else given), tensors


def stage_seed(seed: Seed, name: str, found: Captured) -> tuple[Seed, list[dict[str, Tensor]]]:
    """The seed of the stage `name` of `seed`, and its base samples.

    Sizes in which the captured samples differ become named dimensions; each sample is repeated or cut to the first
    one's. Raises ModelError where the stage's `kinds` names no input.
    """
    stage: Stage = seed.stages[name]
    unknown = sorted(set(stage.kinds) - set(found.samples[0]))
    if unknown:
        known = ", ".join(found.samples[0])
        raise ModelError(f"stages.{name}.kinds: {unknown[0]!r} is no input of {stage.module}; it has {known}")
    dims: dict[str, Dim] = {}
    named: dict[tuple[int, ...], str] = {}
    inputs: dict[str, InputSpec] = {}
    for key, value in found.samples[0].items():
        shape: list[int | str] = []
        for axis in range(value.dim()):
            sizes = tuple(sample[key].shape[axis] for sample in found.samples)
            if len(set(sizes)) == 1:
                shape.append(sizes[0])
                continue
            shape.append(named.setdefault(sizes, f"n{len(named)}"))
            dims[named[sizes]] = Dim(size=sizes[0], max=2 * max(sizes))
        values = [sample[key] for sample in found.samples]
        inputs[key] = _spec(values, shape, stage.kinds.get(key))
    made = Seed(
        name=stage_name(seed, name),
        about=f"{stage.module} of {seed.name}, on inputs captured from it",
        model=ModelSpec(source="stage", of=carried(seed), module=stage.module),
        inputs=inputs,
        dims=dims,
        call=found.call,
        task=stage.task,
        **{field: getattr(seed, field) for field in (*_SHARED, *_LIMITS)},
    ).at(seed.base)
    usual = {key: list(value.shape) for key, value in found.samples[0].items()}
    samples = [{key: resized(value, usual[key]).contiguous() for key, value in s.items()} for s in found.samples]
    return made, samples


def _spec(values: Sequence[Tensor], shape: list[int | str], kind: InputKind | None) -> InputSpec:
    """The spec of an input: the kind that its dtype has, unless told, and the range of finite captured values."""
    dtype = values[0].dtype
    plain: InputKind = "floats" if dtype.is_floating_point or dtype.is_complex else "integers"
    plain = kind or ("mask" if dtype == torch.bool else plain)
    if dtype == torch.bool or dtype.is_complex:
        return InputSpec(kind=plain, shape=shape, dtype=_NAMES[dtype])
    flat = torch.cat([value.flatten().double() for value in values])
    flat = flat[flat.isfinite()]
    low, high = (float(flat.min()), float(flat.max())) if flat.numel() else (0.0, 1.0)
    if not dtype.is_floating_point or low == high:
        high += 1.0
    if plain == "boxes":
        low, high = min(low, 0.0), max(high, 1.0)
    return InputSpec(kind=plain, shape=shape, dtype=_NAMES[dtype], range=(low, high))
