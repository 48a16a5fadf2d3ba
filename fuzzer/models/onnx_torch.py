"""An ONNX file as a torch module, so that eager PyTorch, compilers and the float64 oracle can run it.

onnx2torch makes a module for each node. What it leaves as tensors and should be plain numbers (shapes, split sizes,
axes, scales) would keep the module from being compiled or exported. Where the seed fixes all sizes, ONNX Runtime first
folds what follows from them alone, and then each module that still takes such a constant is replaced by its own trace,
in which the constant is a number. The result is believed only where it answers as ONNX Runtime does without
optimisation, on base inputs of the least, the usual and the largest sizes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from fuzzer.errors import ModelError
from fuzzer.inputs import base_sample
from fuzzer.inputs.sample import sample_with_dims
from fuzzer.models.contain import contained, one_line
from fuzzer.models.onnx_file import answers, explicit, folded, input_names
from fuzzer.models.onnx_numbers import with_numbers
from fuzzer.seeds import Seed

if TYPE_CHECKING:
    import onnx

#: ‖t − r‖∞ / ‖r‖∞ up to which the module's answer is taken for the file's: far above rounding, far below a mistake.
ALIKE = 1e-3
#: Outputs with no value larger than this are compared as if they had one: in a sigmoid's tail, runtimes approximate.
SMALL = 1e-3


class NotConverted(ModelError):
    """Why an ONNX file has no torch module, in one line."""


class OnnxModule(nn.Module):
    """The nodes of an ONNX file as modules, named after the values they make (`module_name`).

    Gives the file's outputs by name, as the backends give them that run the file itself.
    """

    def __init__(
        self, nodes: fx.GraphModule, order: Sequence[int], outputs: Mapping[str, tuple[int, int | None]]
    ) -> None:
        super().__init__()
        self.onnx = nodes
        self._order = tuple(order)
        self._outputs = dict(outputs)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """`tensors` come in the order of the seed's inputs."""
        made = self.onnx(*(tensors[i] for i in self._order))
        found = made if isinstance(made, list | tuple) else (made,)
        return {
            name: found[place] if part is None else found[place][part] for name, (place, part) in self._outputs.items()
        }


def onnx_module(seed: Seed, path: Path) -> nn.Module:
    """The module of the seed's ONNX file `path`, in eval mode. Raises NotConverted."""
    if importlib.util.find_spec("onnx2torch") is None:
        raise NotConverted("the package onnx2torch is not installed; pip install xbfuzz[onnx2torch]")
    with contained(f"{seed.name}: {path}"), _quiet():
        return _first_that_fits(seed, path)


def _first_that_fits(seed: Seed, path: Path) -> nn.Module:
    import onnx

    try:
        proto = onnx.load(str(path))
        names = input_names(proto)
        order = _order(names, list(seed.inputs))
        samples = list(_samples(seed))
        feeds = [{name: sample[i] for name, i in zip(names, order, strict=True)} for sample in samples]
        truths = answers(path, feeds)
    except Exception as error:  # onnx, onnxruntime and protobuf share no base class but Exception; the reason is kept
        raise NotConverted(one_line(error)) from error
    reasons: list[str] = []
    fixed = not _dynamic(seed)
    for simplify, numbers in ((True, True), (False, True), (False, False)):
        if simplify and not fixed:
            continue
        try:
            shapes = {name: value.shape for name, value in feeds[0].items()}
            simpler = folded(proto, shapes) if simplify else explicit(proto)
            module = _converted(simpler, order, [item.name for item in proto.graph.output]).eval()
            if numbers:
                with_numbers(module.onnx, list(feeds[-1].values()), fixed=fixed)
            _check(module, samples, truths)
            return module
        except Exception as error:  # as above: the reasons of all attempts are told
            reasons.append(str(error) if isinstance(error, NotConverted) else one_line(error))
    raise NotConverted(" | ".join(dict.fromkeys(reasons)))


def _order(names: Sequence[str], inputs: Sequence[str]) -> list[int]:
    """For each input of the file, the place of the seed's input that feeds it: by name, else by position."""
    if set(names) <= set(inputs):
        return [inputs.index(name) for name in names]
    if len(names) == len(inputs):
        return list(range(len(names)))
    raise NotConverted(f"the ONNX file takes {', '.join(names)}; the seed has {', '.join(inputs)}")


def _dynamic(seed: Seed) -> bool:
    return any(isinstance(size, str) for spec in seed.inputs.values() for size in spec.shape)


def _samples(seed: Seed) -> Iterator[list[Tensor]]:
    """Base inputs in the seed's order: the usual sizes twice, and each end of what the dimensions may be."""
    yield list(base_sample(seed, 0).values())
    yield list(base_sample(seed, 1).values())
    if _dynamic(seed):
        for sizes in ({n: max(d.min, 1) for n, d in seed.dims.items()}, {n: d.most for n, d in seed.dims.items()}):
            yield list(sample_with_dims(seed, 2, sizes).values())


def _converted(proto: onnx.ModelProto, order: Sequence[int], outputs: Sequence[str]) -> OnnxModule:
    import onnx2torch

    _add_converters()
    makers = {value: node for node in proto.graph.node for value in node.output if value}
    for node in proto.graph.node:
        node.name = next((value for value in node.output if value), node.name)  # onnx2torch names modules after it
    places: dict[str, int] = {}  # as onnx2torch does it: one result for each node that makes an output, in their order
    for name in outputs:
        if name not in makers:
            raise NotConverted(f"the output {name} is no node's result")
        places.setdefault(makers[name].name, len(places))
    found: dict[str, tuple[int, int | None]] = {}
    for name in outputs:
        node = makers[name]
        made = [value for value in node.output if value]
        found[name] = (places[node.name], made.index(name) if len(made) > 1 else None)
    used = {name for node in proto.graph.node for name in node.input}
    kept = [item for item in proto.graph.input if item.name in used]
    if len(kept) < len(order):
        raise NotConverted("the ONNX file does not use all of its inputs")
    return OnnxModule(onnx2torch.convert(proto), order, found)


def _add_converters() -> None:
    """Operators that onnx2torch lacks."""
    from onnx2torch.node_converters.registry import add_converter
    from onnx2torch.utils.common import OperationConverterResult, onnx_mapping_from_node

    def pool(node: Any, graph: Any) -> Any:
        return OperationConverterResult(torch_module=GlobalMaxPool(), onnx_mapping=onnx_mapping_from_node(node))

    with contextlib.suppress(ValueError):  # added before
        add_converter(operation_type="GlobalMaxPool", version=1)(pool)


class GlobalMaxPool(nn.Module):
    """The largest value of each channel of (N, C, ...), all other dimensions kept with size 1."""

    def forward(self, x: Tensor) -> Tensor:
        return x.amax(dim=tuple(range(2, x.dim())), keepdim=True)


def _check(module: nn.Module, samples: Sequence[Sequence[Tensor]], truths: Sequence[Mapping[str, Tensor]]) -> None:
    """Raises NotConverted where the module does not answer as the file does."""
    for sample, truth in zip(samples, truths, strict=True):
        with torch.no_grad():
            answer = module(*(tensor.clone() for tensor in sample))
        gaps = {name: _gap(answer[name], wanted) for name, wanted in truth.items()}
        worst = max(gaps, key=lambda name: gaps[name])
        if gaps[worst] <= ALIKE:
            continue
        shape = "x".join(str(size) for size in sample[0].shape)
        raise NotConverted(
            f"as a torch module it answers otherwise than ONNX Runtime does ({worst}, input of {shape}: "
            f"{gaps[worst]:.2g} of the largest value)"
        )


def _gap(value: Any, wanted: Tensor) -> float:
    """‖value − wanted‖∞ / max(‖wanted‖∞, SMALL); infinite where shape, dtype or the places of NaN and Inf differ."""
    if not isinstance(value, Tensor) or value.shape != wanted.shape or value.dtype != wanted.dtype:
        return math.inf
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(value, wanted) else math.inf
    v, w = value.double(), wanted.double()
    finite = torch.isfinite(w)
    if not torch.equal(torch.isfinite(v), finite):
        return math.inf
    worst = float((v - w)[finite].abs().max()) if bool(finite.any()) else 0.0
    return worst / max(float(w[finite].abs().max()), SMALL) if worst else 0.0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings and no log lines of the converter: what matters is checked afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
