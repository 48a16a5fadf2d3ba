"""An ONNX file before it is converted: its inputs, what ONNX Runtime says of it, and simpler forms of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import onnx

#: They fold weights together, so that parameters would no longer be the file's.
_KEPT_APART = ["ConvBNFusion", "ConvMulFusion", "ConvAddFusion", "MatMulBNFusion", "PadFusion"]
_ERRORS_ONLY = 3


def module_name(value: str) -> str:
    """The path of the module that makes `value` in an `OnnxModule`; no dot may be in the name of a module."""
    return f"onnx.{value.replace('.', '/')}"


def input_names(proto: onnx.ModelProto) -> list[str]:
    """The file's inputs, without the weights that older files list among them."""
    weights = {item.name for item in proto.graph.initializer}
    return [item.name for item in proto.graph.input if item.name not in weights]


def answers(path: Path, feeds: Sequence[Mapping[str, Tensor]]) -> list[dict[str, Tensor]]:
    """What ONNX Runtime says without optimisation, by the names of the outputs. Raises what it raises."""
    session = _session(str(path), optimise=None)
    outputs = [item.name for item in session.get_outputs()]
    return [
        {
            name: torch.as_tensor(value)
            for name, value in zip(outputs, session.run(outputs, {k: v.numpy() for k, v in feed.items()}), strict=True)
        }
        for feed in feeds
    ]


def folded(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The file with its inputs' `shapes` written into it, and all folded that follows from them alone.

    By ONNX Runtime's basic optimisation, without what merges weights. Raises what onnxruntime raises.
    """
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    for item in fixed.graph.input:
        if item.name in shapes:
            held = item.type.tensor_type.shape
            del held.dim[:]
            held.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in shapes[item.name])
    for item in fixed.graph.output:
        item.type.tensor_type.ClearField("shape")
    with TemporaryDirectory() as folder:
        written = Path(folder) / "simpler.onnx"
        _session(fixed.SerializeToString(), optimise=written)
        return explicit(onnx.load(str(written)))


def explicit(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which constants are initializers, and padding that is said by a word is said in numbers, if it can be.

    `SAME_UPPER` and `SAME_LOWER` follow from the input's size, which must be known: pad = max((⌈n/s⌉ − 1)·s + d·(k − 1)
    + 1 − n, 0), the odd one at the end for `SAME_UPPER` (the ONNX operator specification).
    """
    import onnx

    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    constants = [n for n in changed.graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    for node in constants:
        tensor = changed.graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
        changed.graph.node.remove(node)
    inferred = onnx.shape_inference.infer_shapes(changed)
    known = {item.name: item.type.tensor_type.shape for item in (*inferred.graph.value_info, *inferred.graph.input)}
    kernels = {item.name: list(item.dims[2:]) for item in changed.graph.initializer}
    for node in changed.graph.node:
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        how = attributes.get("auto_pad", b"NOTSET").decode() if node.op_type in _PADDED else "NOTSET"
        if not how.startswith("SAME") or node.input[0] not in known:
            continue
        sizes = [dim.dim_value for dim in known[node.input[0]].dim[2:]]
        kernel = attributes.get("kernel_shape") or (kernels.get(node.input[1]) if len(node.input) > 1 else None)
        if not sizes or not all(sizes) or not kernel:
            continue
        strides = attributes.get("strides") or [1] * len(sizes)
        dilations = attributes.get("dilations") or [1] * len(sizes)
        pads = [
            max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
        ]
        less, more = [pad // 2 for pad in pads], [pad - pad // 2 for pad in pads]
        for item in [item for item in node.attribute if item.name in ("auto_pad", "pads")]:
            node.attribute.remove(item)
        explicit_pads = [*less, *more] if how == "SAME_UPPER" else [*more, *less]
        node.attribute.append(onnx.helper.make_attribute("pads", explicit_pads))
    return changed


_PADDED = ("Conv", "MaxPool", "AveragePool")


def _session(source: str | bytes, optimise: Path | None) -> Any:
    """A session on `source`; with `optimise`, the graph after basic optimisation is written there."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_DISABLE_ALL if optimise is None else level.ORT_ENABLE_BASIC
    if optimise is not None:
        options.optimized_model_filepath = str(optimise)
    disabled = None if optimise is None else _KEPT_APART
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(source, options, providers=providers, disabled_optimizers=disabled)
