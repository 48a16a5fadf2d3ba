"""A module as an ONNX file, with the names of a sample's inputs and the structure of the module's output kept.

The exporters see a module that takes one tensor for each input of the seed and returns the tensors of the output, flat
and in order; what they would make of nested arguments and results is thereby out of play. The operators in between are
the module's own.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit._trace import TracerWarning
from torch.utils import _pytree

from fuzzer.backends.base import Sample
from fuzzer.backends.compiled import dynamic_axes
from fuzzer.backends.eager import duplicate
from fuzzer.backends.refusals import first_line, one_line
from fuzzer.errors import Unsupported
from fuzzer.models import Model

#: Protocol buffers end at two gigabytes.
_LARGEST = 2**31 - 1
_SHOWN = 5


@dataclass(frozen=True)
class Structure:
    """The output of a module as a tree in which the places of tensors are known and all else is constant."""

    spec: Any
    leaves: tuple[Any, ...]
    tensors: tuple[int, ...]

    @classmethod
    def of(cls, output: Any) -> Structure:
        """Raises Unsupported where the output holds an object that PyTorch's trees do not know."""
        leaves, spec = _pytree.tree_flatten(output)
        for leaf in leaves:
            if not (isinstance(leaf, Tensor | bool | int | float | str) or leaf is None):
                raise Unsupported(f"the output holds a {type(leaf).__qualname__}, no tree of tensors", stage="export")
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        constants = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(spec, constants, places)

    def rebuild(self, tensors: Sequence[Tensor]) -> Any:
        """The nested output with `tensors` in their places. Raises ValueError on another number of tensors."""
        if len(tensors) != len(self.tensors):
            raise ValueError(f"{len(tensors)} tensors for the {len(self.tensors)} of the module's output")
        leaves = list(self.leaves)
        for place, tensor in zip(self.tensors, tensors, strict=True):
            leaves[place] = tensor
        return _pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True)
class Exported:
    """An ONNX file and how it came to be.

    `dynamic`: the seed's named dimensions may vary. `refusals`: one line for each attempt that failed before.
    `frozen`: what tracing said it froze to the example's value.
    """

    data: bytes
    exporter: str
    dynamic: bool
    structure: Structure
    refusals: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)


class Flat(nn.Module):
    """`model` as a module of tensors only: `forward(*tensors)`, in the order of the seed's inputs, gives a tuple."""

    def __init__(self, model: Model, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._model = model
        self.training = module.training  # not by train(), which an exported program refuses

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = self._model.call(dict(zip(self._model.seed.inputs, tensors, strict=True)))
        leaves = _pytree.tree_leaves(self.module(*args, **kwargs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


def export(model: Model, example: Sample, exporters: Sequence[str], accept: Callable[[bytes, int], None]) -> Exported:
    """The first export that `accept` takes: each of `exporters` with dynamic sizes, then with the example's.

    `exporters`: "dynamo", "torchscript". `accept` gets the file and the number of outputs it must have, and raises
    where it will not have them. Raises Unsupported, with the reason of the first exporter, where no attempt works.
    """
    if model.module is None:
        raise Unsupported("an ONNX file has no PyTorch module", stage="export")
    structure = _learn_structure(model, model.module, example)
    flat = Flat(model, model.module)
    axes = dynamic_axes(model.seed)
    refusals: list[str] = []
    for exporter in exporters:
        for dynamic in (True, False) if axes else (False,):
            tensors = tuple(duplicate(example)[name] for name in model.seed.inputs)
            try:
                data, frozen = _attempt(exporter, flat, tensors, list(model.seed.inputs), axes if dynamic else {})
                accept(data, len(structure.tensors))
            except Exception as error:  # an exporter may raise anything; each refusal is kept and told
                sizes = "dynamic" if dynamic else "static"
                refusals.append(f"{exporter}, {sizes} sizes: {one_line(error)}")
                continue
            return Exported(data, exporter, dynamic, structure, refusals, frozen)
    raise Unsupported(" | ".join(refusals), stage="export")


def _learn_structure(model: Model, module: nn.Module, example: Sample) -> Structure:
    args, kwargs = model.call(duplicate(example))
    with torch.no_grad():
        structure = Structure.of(module(*args, **kwargs))
    if not structure.tensors:
        raise Unsupported("the output holds no tensor", stage="export")
    return structure


def _attempt(
    exporter: str, flat: Flat, tensors: tuple[Tensor, ...], names: list[str], axes: Mapping[str, Sequence[int]]
) -> tuple[bytes, list[str]]:
    run = {"dynamo": _with_dynamo, "torchscript": _with_torchscript}[exporter]
    with _quiet() as told, torch.no_grad():
        data = run(flat, tensors, names, axes)
    if len(data) > _LARGEST:
        raise ValueError("the ONNX file is larger than 2 GB")
    traced = [first_line(str(item.message)) for item in told if issubclass(item.category, TracerWarning)]
    return data, list(dict.fromkeys(traced))[:_SHOWN]


def _with_dynamo(flat: Flat, tensors: tuple[Tensor, ...], names: list[str], axes: Mapping[str, Sequence[int]]) -> bytes:
    vary = torch.export.Dim.DYNAMIC  # refuses to fix a size, where AUTO would fix it without a word
    shapes = tuple(dict.fromkeys(axes.get(name, ()), vary) or None for name in names) if axes else None
    program = torch.onnx.export(
        flat,
        tensors,
        dynamo=True,
        verbose=False,
        input_names=names,
        dynamic_shapes=None if shapes is None else {"tensors": shapes},
    )
    if program is None:
        raise ValueError("the exporter returned nothing")
    data: bytes = program.model_proto.SerializeToString()
    return data


def _with_torchscript(
    flat: Flat, tensors: tuple[Tensor, ...], names: list[str], axes: Mapping[str, Sequence[int]]
) -> bytes:
    buffer = io.BytesIO()
    torch.onnx.export(
        flat,
        tensors,
        buffer,  # type: ignore[arg-type]  # this exporter takes a stream too
        dynamo=False,
        verbose=False,
        input_names=names,
        dynamic_axes={name: {axis: f"{name}_{axis}" for axis in found} for name, found in axes.items()} or None,
    )
    return buffer.getvalue()


@contextlib.contextmanager
def _quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Nothing printed, logged or warned; the warnings are handed over. What fails says so by raising.

    The TorchScript exporter prints from C++, so the descriptors of standard output and error are turned away too.
    """
    disabled = logging.root.manager.disable
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    logging.disable(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as silent, warnings.catch_warnings(record=True) as told:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
            warnings.simplefilter("always")
            with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
                yield told
    finally:
        logging.disable(disabled)
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
