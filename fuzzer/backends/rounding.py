"""A model under random rounding, and in float64: how sensitive it is, and what it should have answered.

Two dispatch modes see every ATen operator that a module runs.

`RandomRounding` is Monte Carlo arithmetic (Parker, 1997; as in Verificarlo): each float result that an operator
had to round moves to a neighbouring float at random. Where a result is exact (views, max, gather, relu, casts; a sum or
product that float64 shows to be exact) nothing moves. The terms of reductions and contractions move too, and are taken
in another order, because moving the result alone does not model the rounding inside. `gelu` and its kin are run by
their formulas, so that the cancellation inside them is seen; so is resizing, whose places round (`resizing`).

`Float64` runs every operator in float64 whatever float32 tensors the model makes on the way. An explicit cast to half
or bfloat16 is part of what the model says: it rounds, and the arithmetic after it is float64 again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzer.backends.operators import EXACT, MANY_ROUNDINGS, ONE_ROUNDING, RANDOM
from fuzzer.backends.resizing import PLACED
from fuzzer.backends.steps import LARGE, Steps

aten = torch.ops.aten

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_NARROW = (torch.float16, torch.bfloat16)
#: The bits of +∞, above which lie only NaN.
_INFINITY = {dtype: int(torch.tensor(float("inf"), dtype=dtype).view(bits).item()) for dtype, bits in _BITS.items()}
_MAGNITUDE = {dtype: torch.iinfo(bits).max for dtype, bits in _BITS.items()}
_SIGN = {dtype: torch.iinfo(bits).min for dtype, bits in _BITS.items()}


class RandomRounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves what operators round, by up to `amplitude` units in the last place, drawn from `seed`.

    `move_zeros`: exact zeros among the operands of a decision also move, by a few of the smallest subnormals. Used to
    ask whether a decision hangs on a tie, never for float answers (the sign of 1/0 would follow).
    """

    def __init__(self, seed: int, amplitude: int = 1, *, move_zeros: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = torch.Generator().manual_seed(seed)
        self._amplitude = amplitude
        self._move_zeros = move_zeros
        self.narrow = False  # whether anything was seen in float16 or bfloat16
        self.by_formula = False  # whether a formula ran in place of a kernel
        self._formulas = formulas()
        self._steps: Steps | None = None

    def move(self, value: Any) -> Any:
        """`value` with every finite non-zero float element moved at random by up to `amplitude` places."""
        if not isinstance(value, Tensor) or value.numel() == 0 or value.layout != torch.strided:
            return value
        if value.is_complex():
            return torch.view_as_complex(self.move(torch.view_as_real(value.resolve_conj()).contiguous()))
        bits_dtype = _BITS.get(value.dtype)
        if bits_dtype is None:
            return value
        self.narrow |= value.dtype in _NARROW
        if value.numel() >= LARGE and value.device.type == "cpu":
            return self._moved_in_pieces(value, bits_dtype)
        a = self._amplitude
        bits = value.contiguous().view(bits_dtype)
        steps = torch.int8 if a <= torch.iinfo(torch.int8).max else torch.int16  # the narrower, the faster to draw
        step = torch.randint(-a, a + 1, value.shape, generator=self._generator, dtype=steps).to(value.device)
        magnitude = bits & _MAGNITUDE[value.dtype]
        fixed = (magnitude <= a) | (magnitude >= _INFINITY[value.dtype] - a)
        moved = bits + step.masked_fill(fixed, 0)
        if self._move_zeros:
            wide = step.to(bits_dtype)
            from_zero = torch.where(wide < 0, (-wide) | _SIGN[value.dtype], wide)
            moved = torch.where(magnitude == 0, from_zero, moved)
        return moved.view(value.dtype)

    def _moved_in_pieces(self, value: Tensor, bits: torch.dtype) -> Tensor:
        moved = value.clone()  # dense, in the order in which the elements lie in memory
        self._move_dense(moved, bits)
        return moved

    def _move_dense(self, value: Tensor, bits: torch.dtype) -> None:
        if self._steps is None:
            self._steps = Steps(self._amplitude, self._generator, move_zeros=self._move_zeros)
        row = value.as_strided((value.numel(),), (1,)).view(bits)
        self._steps.move(row, _MAGNITUDE[value.dtype], _INFINITY[value.dtype])

    def move_in_place(self, value: Tensor) -> None:
        """`value.copy_(move(value))`, without a copy where the tensor is large."""
        bits = _BITS.get(value.dtype)
        if bits is not None and value.numel() >= LARGE and value.device.type == "cpu" and value.is_contiguous():
            self.narrow |= value.dtype in _NARROW
            self._move_dense(value, bits)
        else:
            value.copy_(self.move(value))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        formula = self._formulas.get(func)
        if formula is not None:
            self.by_formula = True
            with self:
                return formula(*args, **kwargs)
        if func.is_view or name in EXACT or not _has_float(args):
            self.narrow |= kwargs.get("dtype") in _NARROW
            return func(*args, **kwargs)
        if name in MANY_ROUNDINGS:
            args, kwargs = self._moved_operands(func, args, kwargs)
            args = _reordered(name, args, self._generator)
        placed = PLACED.get(func)
        result = func(*args, **kwargs) if placed is None else placed(self.move, *args, **kwargs)
        in_place = func._schema.is_mutable
        if in_place:
            if isinstance(result, Tensor) and _is_float(result):
                result.copy_(self._rounded(name, args, kwargs, func, result))
            return result
        return each_tensor(lambda x: self._rounded(name, args, kwargs, func, x) if _is_float(x) else x, result)

    def _moved_operands(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The operands moved, but for those that the operator writes to: they must stay the caller's own."""
        if not func._schema.is_mutable:
            return each_tensor(self.move, args), each_tensor(self.move, kwargs)
        written = {at for at, argument in enumerate(func._schema.arguments) if argument.is_write}
        names = {func._schema.arguments[at].name for at in written}
        moved = tuple(x if at in written else each_tensor(self.move, x) for at, x in enumerate(args))
        return moved, {name: x if name in names else each_tensor(self.move, x) for name, x in kwargs.items()}

    def _rounded(self, name: str, args: Any, kwargs: Any, func: Any, result: Tensor) -> Tensor:
        moved: Tensor = self.move(result)
        if name in ONE_ROUNDING and not func._schema.is_mutable and result.dtype != torch.float64:
            exact = _in_float64(func, args, kwargs)
            if exact is not None and exact.shape == result.shape:
                return torch.where(exact == result.double(), result, moved)
        return moved


#: What a drawing operator's dtype is where the module named none; float64 is the default inside the mode.
_DEFAULTS = (None, torch.float32, torch.float64)


class Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs every operator on float64 in place of float32."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (aten._to_copy.default, aten.to.dtype):
            return _cast_in_float64(func, args, kwargs)
        if func.overloadpacket.__name__ in RANDOM:
            return _drawn_in_float32(func, args, kwargs)
        if kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        return func(*each_tensor(widen, args), **each_tensor(widen, kwargs))


def each_tensor(change: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with its tensors changed: what operators take and give has lists, tuples and keywords, nothing deeper."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([each_tensor(change, item) for item in value])
    if isinstance(value, dict):
        return {key: each_tensor(change, item) for key, item in value.items()}
    return value


def widen(value: Any) -> Any:
    """A float tensor narrower than float64 as float64, a complex64 one as complex128; anything else as it is."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64:
        return value.to(torch.float64)
    if isinstance(value, Tensor) and value.dtype == torch.complex64:
        return value.to(torch.complex128)
    return value


def _cast_in_float64(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    dtype = kwargs.get("dtype", args[1] if func is aten.to.dtype and len(args) > 1 else None)
    if dtype == torch.float32:
        kwargs["dtype"] = torch.float64
        return aten._to_copy.default(args[0], **_only(kwargs, "dtype", "memory_format"))
    if dtype in (torch.float16, torch.bfloat16):
        return args[0].to(dtype).to(torch.float64)
    return func(*args, **kwargs)


def _drawn_in_float32(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The random numbers that the module draws: a generator gives other ones in float64."""
    if "dtype" in {argument.name for argument in func._schema.arguments} and kwargs.get("dtype") in _DEFAULTS:
        kwargs["dtype"] = torch.float32
    args = each_tensor(lambda x: x.float() if x.dtype == torch.float64 else x, args)
    return each_tensor(widen, func(*args, **kwargs))


def _only(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: kwargs[name] for name in names if name in kwargs}


@functools.cache
def formulas() -> dict[Any, Callable[..., Any]]:
    """Activations, attention and distances by elementary operators, so that what cancels inside them is seen."""
    from torch._decomp import get_decompositions

    wanted = [aten.gelu, aten.silu, aten.mish, aten.hardswish, aten.hardsigmoid, aten.log_sigmoid_forward, aten.glu]
    wanted.append(aten._scaled_dot_product_flash_attention_for_cpu)  # the scores round before their exponentials
    found: dict[Any, Callable[..., Any]] = get_decompositions(wanted)
    usable = {op: found[op] for op in found if "backward" not in str(op) and not op._schema.is_mutable}
    return usable | {aten._euclidean_dist.default: _euclidean}


def _euclidean(x: Tensor, y: Tensor) -> Tensor:
    """√(|x|² − 2·xy + |y|²) as one product, as ATen computes it: near points cancel."""
    left = torch.cat([-2 * x, x.square().sum(-1, keepdim=True), torch.ones_like(x[..., :1])], -1)
    right = torch.cat([y, torch.ones_like(y[..., :1]), y.square().sum(-1, keepdim=True)], -1)
    return (left @ right.transpose(-1, -2)).clamp(min=0).sqrt()


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _has_float(args: Any) -> bool:
    return any(_is_float(x) or (isinstance(x, list | tuple) and _has_float(x)) for x in args)


def _in_float64(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The operator's result in float64 from the same operands; None where it has none."""
    try:
        result = func(*each_tensor(widen, args), **each_tensor(widen, kwargs))
    except (RuntimeError, TypeError):
        return None
    return result if isinstance(result, Tensor) else None


def _reordered(name: str, args: tuple[Any, ...], generator: torch.Generator) -> tuple[Any, ...]:
    """The same contraction with its terms in another order: equal in exact arithmetic."""
    positions = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "mv": (0, 1), "addmv": (1, 2)}
    if name in positions:
        left, right = positions[name]
        a, b = args[left], args[right]
        order = torch.randperm(a.shape[-1], generator=generator).to(a.device)
        new = list(args)
        new[left] = a.index_select(a.dim() - 1, order)
        if b.dim() == 2 and b.t().is_contiguous():  # a linear layer's weight: rows as they lie in memory, much faster
            new[right] = b.t().index_select(1, order).t()
        else:
            new[right] = b.index_select(max(b.dim() - 2, 0), order)
        return tuple(new)
    if name == "convolution" and args[8] == 1 and not args[6]:  # one group, not transposed
        order = torch.randperm(args[0].shape[1], generator=generator).to(args[0].device)
        return (args[0].index_select(1, order), args[1].index_select(1, order), *args[2:])
    if name in ("sum", "mean") and isinstance(args[0], Tensor) and args[0].dim() > 0:
        value = args[0]
        dims = args[1] if len(args) > 1 and args[1] else list(range(value.dim()))
        for dim in dims:
            order = torch.randperm(value.shape[dim], generator=generator).to(value.device)
            value = value.index_select(dim, order)
        return (value, *args[1:])
    return args
