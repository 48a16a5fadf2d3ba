"""Other ways to compute the same answer, each of which a judge must forgive: the controls.

A control takes a module and gives a function from a sample to the module's output, computed in another order, layout,
precision or by other kernels. It works on the module that it is given, so hand it a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fuzzer.backends.rounding import Float64, each_tensor, widen
from fuzzer.models import Model
from fuzzer.seeds import Seed
from fuzzer.trees import map_tensors

Sample = Mapping[str, Tensor]
Run = Callable[[Sample], Any]
#: The dimension along which samples do not know of each other, by the name that seeds give it.
BATCH = "batch"


@dataclass(frozen=True)
class Control:
    """`build` gives None where the control does not apply to a model."""

    name: str
    about: str
    build: Callable[[Model], Run | None]


def call(model: Model, sample: Sample) -> Any:
    """The module's answer to copies of the sample."""
    assert model.module is not None
    args, kwargs = model.call({name: tensor.clone() for name, tensor in sample.items()})
    with torch.no_grad():
        return model.module(*args, **kwargs)


def itself(model: Model) -> Run:
    return lambda sample: call(model, sample)


def other_strides(model: Model) -> Run:
    """Channels last, and matrices stored by columns."""
    assert model.module is not None
    module = model.module.to(memory_format=torch.channels_last)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()

    def run(sample: Sample) -> Any:
        args, kwargs = model.call({name: _turned(tensor) for name, tensor in sample.items()})
        with torch.no_grad():
            return module(*args, **kwargs)

    return run


def _turned(tensor: Tensor) -> Tensor:
    if tensor.dim() == 4:
        return tensor.clone(memory_format=torch.channels_last)
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() > 1 else tensor.clone()


def two_threads(model: Model) -> Run:
    def run(sample: Sample) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            return call(model, sample)
        finally:
            torch.set_num_threads(before)

    return run


def in_float64(model: Model) -> Run:
    """Float64 on the way, rounded to float32 at the end.

    With float32's range all the same: where float32 overflows on the way, float64 truly answers something else.
    """
    assert model.module is not None
    wide = Model(model.seed, model.module.double())

    def run(sample: Sample) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Float64InRange():  # type: ignore[no-untyped-call]
                found = call(wide, {name: widen(tensor) for name, tensor in sample.items()})
        finally:
            torch.set_default_dtype(before)
        return map_tensors(found, lambda leaf: leaf.float() if leaf.dtype == torch.float64 else leaf)

    return run


class _Float64InRange(Float64):  # type: ignore[no-untyped-call]
    """Each result that float32 has as 0 or an infinity becomes that."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = super().__torch_dispatch__(func, types, args, kwargs)
        return found if func.is_view or func._schema.is_mutable else each_tensor(_in_range, found)


def _in_range(value: Tensor) -> Tensor:
    if value.dtype != torch.float64:
        return value
    narrow = value.float().double()
    return torch.where((narrow == 0) | narrow.isinf(), narrow, value)


class RoundedOnce(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operator in float64 on float32 operands, its result rounded once: float32 as well as it can be done."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        floats = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.dtype == torch.float32]
        if func.is_view or not floats or kwargs.get("dtype") is not None:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return in_place(func, args, kwargs)[1] if writes_first(func, args) else func(*args, **kwargs)
        found = func(*each_tensor(widen, args), **each_tensor(widen, kwargs))
        return each_tensor(lambda x: x.float() if x.dtype == torch.float64 else x, found)


def writes_first(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator writes its float32 result over its first operand, as `sigmoid_` does, and nothing else."""
    written = [argument.is_write for argument in func._schema.arguments]
    return written[0] and not any(written[1:]) and isinstance(args[0], Tensor) and args[0].dtype == torch.float32


def in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Such an operator's result in float64, and its first operand, into which that was written, rounded once."""
    exact = args[0].double()
    func(exact, *each_tensor(widen, args[1:]), **each_tensor(widen, kwargs))
    return exact, args[0].copy_(exact)


def rounding_once(compute: Run) -> Run:
    """No control but a yardstick: what a run would answer without faults inside its float32 kernels."""

    def run(sample: Sample) -> Any:
        with RoundedOnce():  # type: ignore[no-untyped-call]
            return compute(sample)

    return run


def other_kernels(model: Model) -> Run:
    """Without oneDNN, and attention as two products and a softmax."""

    def run(sample: Sample) -> Any:
        with ExitStack() as stack:
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            return call(model, sample)

    return run


def batch_axes(seed: Seed) -> dict[str, int]:
    """By input, the dimension along which samples do not know of each other."""
    return {name: spec.shape.index(BATCH) for name, spec in seed.inputs.items() if BATCH in spec.shape}


def other_batch(model: Model) -> Run | None:
    """A lone sample twice over, of which the first answer counts; more than one each by itself."""
    axes = batch_axes(model.seed)
    if not axes:
        return None

    def run(sample: Sample) -> Any:
        size = min(sample[name].shape[axis] for name, axis in axes.items())
        if size == 1:
            twice = {n: torch.cat([t, t], axes[n]) if n in axes else t for n, t in sample.items()}
            return map_tensors(call(model, twice), lambda leaf: leaf[:1])
        parts = [
            call(model, {n: t.narrow(axes[n], i, 1) if n in axes else t for n, t in sample.items()})
            for i in range(size)
        ]
        return parts[0] if not isinstance(parts[0], Tensor) else torch.cat(parts)

    return run


def reversed_sums(model: Model) -> Run:
    def run(sample: Sample) -> Any:
        with Reversed():  # type: ignore[no-untyped-call]
            return call(model, sample)

    return run


class Reversed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes the terms of products, sums, softmaxes and normalisations from the last to the first."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        turn = _TURNS.get(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {})) if turn is None else turn(func, args, kwargs or {})


def _product(left: int, right: int) -> Callable[..., Any]:
    def turn(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        new = list(args)
        new[left] = args[left].flip(-1)
        new[right] = args[right].flip(-2 if args[right].dim() > 1 else -1)
        return func(*new, **kwargs)

    return turn


def _convolution(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args[6] or args[8] != 1:  # transposed, or in groups
        return func(*args, **kwargs)
    return func(args[0].flip(1), args[1].flip(1), *args[2:], **kwargs)


def _sum(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    dims = args[1] if len(args) > 1 and args[1] else list(range(value.dim()))
    return func(value.flip(dims), *args[1:], **kwargs)


def _softmax(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, dim = args[0], args[1]
    return func(value.flip(dim), *args[1:], **kwargs).flip(dim) if value.dim() else func(*args, **kwargs)


def _layer_norm(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, shape, *affine, eps = args
    dims = list(range(value.dim() - len(shape), value.dim()))
    turned = [None if part is None else part.flip(list(range(len(shape)))) for part in affine]
    out, mean, deviation = func(value.flip(dims), shape, *turned, eps, **kwargs)
    return out.flip(dims), mean, deviation


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The features of queries and keys, and the keys themselves."""
    query, key, value, *rest = args
    if len(rest) > 1 and rest[1]:  # causal: the order of the keys has a meaning
        return func(*args, **kwargs)
    kwargs = dict(kwargs)
    if isinstance(kwargs.get("attn_mask"), Tensor):
        kwargs["attn_mask"] = kwargs["attn_mask"].flip(-1)
    return func(query.flip(-1), key.flip(-1, -2), value.flip(-2), *rest, **kwargs)


_TURNS: dict[str, Callable[..., Any]] = {
    "mm": _product(0, 1),
    "bmm": _product(0, 1),
    "mv": _product(0, 1),
    "dot": _product(0, 1),
    "addmm": _product(1, 2),
    "baddbmm": _product(1, 2),
    "convolution": _convolution,
    "sum": _sum,
    "mean": _sum,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "native_layer_norm": _layer_norm,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
}

CONTROLS = (
    Control("itself", "the same module again", itself),
    Control("strides", "channels last, matrices by columns", other_strides),
    Control("threads", "two threads", two_threads),
    Control("float64", "float64 within float32's range, rounded to float32", in_float64),
    Control("reversed", "sums from the last term to the first", reversed_sums),
    Control("kernels", "without oneDNN and fused attention", other_kernels),
    Control("batch", "batch 2 for 1, and 1 for more", other_batch),
)


def controls_of(seed: Seed) -> int:
    """How many of them apply to a seed, known before its model is built."""
    return len(CONTROLS) - int(not batch_axes(seed))
