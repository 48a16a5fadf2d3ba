"""An ONNX file as a module that the oracle can run in float64 and under random rounding, by ONNX's own evaluator.

For files that do not convert to PyTorch. `onnx.reference` runs node by node in numpy, so that a float64 copy of the
graph computes in float64, and each node's operands and results can be moved. It is slow, and its float32 kernels are
numpy's: what it answers is the truth and the noise, never a side of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fuzzer.backends.onnx_target import feeds
from fuzzer.models.onnx_file import input_names

if TYPE_CHECKING:
    import onnx

Move = Callable[[Tensor], Tensor]
_FLOATS = (np.float16, np.float32, np.float64)
#: These choose, copy or count values: their float results carry no rounding.
_EXACT = frozenset(
    """Abs ArgMax ArgMin Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand
    EyeLike Flatten Floor Gather GatherElements GatherND Identity Max MaxPool MaxUnpool Min Neg NonMaxSuppression
    NonZero OneHot Pad Range ReduceMax ReduceMin Relu Reshape Round ScatterElements ScatterND Shape Sign Size Slice
    SpaceToDepth Split Squeeze Tile TopK Transpose Trilu Unique Unsqueeze Where SequenceAt SequenceConstruct
    SplitToSequence ConcatFromSequence""".split()
)


class OnnxNodes(nn.Module):
    """Runs the file at `path`; `inputs` are the names of what `forward` is given, `double` runs it in float64.

    `forward` gives a mapping from the names of the outputs to tensors. Raises what onnx raises for a bad file.
    """

    def __init__(self, path: Path, inputs: Sequence[str], *, double: bool = False) -> None:
        super().__init__()
        import onnx
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load(str(path))
        self._evaluator = ReferenceEvaluator(widened(proto) if double else proto)
        self._fed = feeds(input_names(proto), list(inputs), by_position=True)
        self._inputs = list(inputs)
        self._move: Move | None = None
        self._whole = _whole_constants(proto.graph)
        self._fixed = self._whole
        self._evaluator.rt_nodes_ = [_Moving(node, self._moved) for node in self._evaluator.rt_nodes_]

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        given = dict(zip(self._inputs, inputs, strict=True))
        found = self._evaluator.run(None, {name: given[source].detach().numpy() for name, source in self._fed.items()})
        return {
            name: torch.from_numpy(np.array(value, order="C"))
            for name, value in zip(self._evaluator.output_names, found, strict=True)
        }

    @contextmanager
    def moving(self, move: Move, exact: Collection[str] = ()) -> Iterator[None]:
        """Within, the float operands and results of each node that rounds are moved.

        But for the inputs in `exact`, and for constants of whole numbers: an exponent of 2 is no measured value.
        """
        self._move = move
        self._fixed = self._whole | {name for name, source in self._fed.items() if source in exact}
        try:
            yield
        finally:
            self._move = None

    def _moved(self, names: Sequence[str], values: Sequence[Any]) -> tuple[Any, ...]:
        move = self._move
        if move is None:
            return tuple(values)
        return tuple(
            move(torch.from_numpy(np.array(value, order="C"))).numpy()
            if isinstance(value, np.ndarray) and value.dtype in _FLOATS and name not in self._fixed
            else value
            for name, value in zip(names, values, strict=True)
        )


class _Moving:
    """A node of the evaluator that hands its operands and results through `moved`, unless it is exact."""

    def __init__(self, node: Any, moved: Callable[[Sequence[str], Sequence[Any]], tuple[Any, ...]]) -> None:
        self._node = node
        self._moved = moved

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if self._node.op_type in _EXACT:
            found: tuple[Any, ...] = self._node.run(*args, **kwargs)
            return found
        found = self._node.run(*self._moved(self._node.input, args), **kwargs)
        return self._moved(list(self._node.output)[: len(found)], found)


def _whole_constants(graph: onnx.GraphProto) -> frozenset[str]:
    """The names of the graph's constants and initializers that hold whole numbers alone."""
    from onnx import numpy_helper

    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            tensors |= {node.output[0]: at.t for at in node.attribute if at.name == "value"}  # noqa: B035
    values = {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
    return frozenset(name for name, x in values.items() if x.dtype in _FLOATS and bool(np.all(x == np.round(x))))


def widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the file with float64 in place of float32: weights, constants, casts, types, subgraphs, functions.

    Casts to float16 and bfloat16 still round.
    """
    import onnx

    wide = onnx.ModelProto()
    wide.CopyFrom(proto)
    _widen_graph(wide.graph)
    for function in wide.functions:
        for node in function.node:
            _widen_node(node)
    return wide


def _widen_graph(graph: onnx.GraphProto) -> None:
    import onnx

    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: onnx.NodeProto) -> None:
    import onnx

    for attribute in node.attribute:
        if attribute.name in ("to", "dtype") and attribute.i == onnx.TensorProto.FLOAT:
            attribute.i = onnx.TensorProto.DOUBLE
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            _widen_graph(graph)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    import onnx
    from onnx import numpy_helper

    if tensor.data_type == onnx.TensorProto.FLOAT:
        wide = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)
        tensor.CopyFrom(wide)
