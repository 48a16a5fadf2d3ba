"""The ONNX reference evaluator as a backend: each operator as the ONNX standard's own Python code computes it.

It is slow and says nothing about a product; as a third opinion it tells a fault of the exporter, which it shares with
every other ONNX runtime, from a fault of one runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fuzzer.backends.onnx_target import OnnxTarget
from fuzzer.backends.registry import register

#: Short floats are numpy arrays of a type that torch does not know: name there → (integers of that size, torch's type).
_SHORT = {
    "bfloat16": (torch.int16, torch.bfloat16),
    "float8_e4m3fn": (torch.int8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (torch.int8, torch.float8_e4m3fnuz),
    "float8_e5m2": (torch.int8, torch.float8_e5m2),
    "float8_e5m2fnuz": (torch.int8, torch.float8_e5m2fnuz),
}


@register
class OnnxReference(OnnxTarget):
    """`onnxref:cpu`. Option exporter, as every OnnxTarget."""

    runtime = "onnxref"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = OnnxTarget.options

    def open_file(self, source: str | bytes) -> Any:
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(source)

    def names(self, session: Any) -> tuple[list[str], list[str]]:
        return list(session.input_names), list(session.output_names)

    def answers(self, session: Any, fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = session.run(None, {name: to_numpy(tensor) for name, tensor in fed.items()})
        return {name: to_torch(value) for name, value in zip(session.output_names, found, strict=True)}

    def about(self) -> dict[str, Any]:
        import onnx

        nodes = Counter(node.op_type for node in self.session.proto_.graph.node)
        return {"onnx": onnx.__version__, "nodes": dict(sorted(nodes.items()))}


def to_numpy(tensor: Tensor) -> Any:
    """A copy of `tensor` as a numpy array; the short floats in the types of the package ml_dtypes."""
    held = tensor.detach().to("cpu").contiguous().clone()
    for name, (integers, dtype) in _SHORT.items():
        if held.dtype == dtype:
            import ml_dtypes

            return held.view(integers).numpy().view(getattr(ml_dtypes, name))
    return held.numpy()


def to_torch(value: Any) -> Tensor:
    """A copy of a numpy array or number as a tensor. Raises TypeError on what is no array."""
    import numpy as np

    array = np.array(value, order="C")
    if array.dtype.name in _SHORT:
        integers, dtype = _SHORT[array.dtype.name]
        return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).to(integers).view(dtype)
    return torch.from_numpy(array)
