"""Constants in a converted ONNX graph that should be numbers: shapes, split sizes, axes, scales.

onnx2torch leaves them as tensors, from which `forward` reads values; no compiler or exporter takes that. Each module
that does so is replaced by its own trace, in which they are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree

#: Modules whose floating constants are numbers too.
_TAKES_NUMBERS = ("OnnxResize", "OnnxResizeV10", "OnnxUpsample", "OnnxPadDynamic")


def with_numbers(module: fx.GraphModule, tensors: Sequence[Tensor], *, fixed: bool) -> None:
    """Trace, in place, each node's module that takes constants which should be numbers.

    With the sizes of `tensors` where they are `fixed`, else with sizes that may vary.
    """
    with torch.no_grad():
        run = _Specialise(module, fixed=fixed)
        run.run(*tensors)
    for node, traced, variable in run.traced:
        assert isinstance(node.target, str)
        setattr(module, node.target, traced)
        node.args, node.kwargs = tuple(variable), {}
    module.graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()


class _Specialise(fx.Interpreter):
    """Runs the graph once and traces the modules in question on the values that reach them."""

    def __init__(self, module: fx.GraphModule, *, fixed: bool) -> None:
        super().__init__(module)
        self.traced: list[tuple[fx.Node, fx.GraphModule, list[fx.Node]]] = []
        self._fixed = fixed
        self._constant: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        needs = n.all_input_nodes
        if n.op == "get_attr" or (n.op == "call_function" and all(each in self._constant for each in needs)):
            self._constant.add(n)
        elif n.op == "call_module":
            assert isinstance(n.target, str)
            kind = type(self.fetch_attr(n.target)).__name__
            if all(each in self._constant for each in needs) or (self._fixed and kind in ("OnnxShape", "OnnxSize")):
                self._constant.add(n)
            elif any(each in self._constant and _is_number(kind, self.env[each]) for each in needs):
                self._trace(n)
        return value

    def _trace(self, n: fx.Node) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        module = self.fetch_attr(str(n.target))
        if next(module.parameters(), None) is not None:
            return  # weights stay parameters
        variable = [each for each in n.all_input_nodes if each not in self._constant]
        numbers = {each: _number(self.env[each]) for each in n.all_input_nodes if each in self._constant}

        def call(*values: Tensor) -> Any:
            given: dict[fx.Node, Any] = {**numbers, **dict(zip(variable, values, strict=True))}
            return module(*fx.node.map_arg(n.args, given.__getitem__), **fx.node.map_arg(n.kwargs, given.__getitem__))

        mode: Literal["real", "symbolic"] = "real" if self._fixed else "symbolic"
        trace: Callable[..., fx.GraphModule] = make_fx(call, tracing_mode=mode, _allow_non_fake_inputs=True)
        traced = trace(*(self.env[each] for each in variable))
        for node in traced.graph.nodes:
            if node.target in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
                node.target = torch.ops.aten.reshape.default  # which takes any strides, as the node itself does
        traced.recompile()
        self.traced.append((n, traced, variable))


def _is_number(kind: str, value: Any) -> bool:
    return isinstance(value, Tensor) and (not value.is_floating_point() or kind in _TAKES_NUMBERS)


class _Number(Tensor):
    """A constant during tracing: what is computed from such alone is computed at once and leaves no trace."""

    plain: Tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

        leaves = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        given = (args, kwargs or {})
        args, kwargs = _pytree.tree_map(lambda leaf: leaf.plain if isinstance(leaf, _Number) else leaf, given)
        if not all(isinstance(leaf, _Number) for leaf in leaves):
            return func(*args, **kwargs)
        with disable_proxy_modes_tracing(), unset_fake_temporarily():
            return _pytree.tree_map(_number, func(*args, **kwargs))


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, _Number):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        found = value.detach().as_subclass(_Number)
    found.plain = value
    return found
