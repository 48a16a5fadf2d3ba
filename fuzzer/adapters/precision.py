"""Full precision where a model asks for less: its 16-bit casts stay float32, its modules run in float32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_SHORT = (torch.float16, torch.bfloat16)


class Float32(TorchFunctionMode):
    """Within it, a cast to float16 or bfloat16 gives float32, and 16-bit tensors that come in are widened.

    It holds in eager mode, and for what `torch.compile` and both ONNX exporters trace while it is on.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.half, Tensor.bfloat16):
            return args[0].float()
        if func is Tensor.dtype.__get__ or getattr(func, "__name__", "") == "__get__":  # type: ignore[attr-defined]
            return func(*args, **kwargs)
        return func(*_wide(args), **_wide(kwargs))


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _SHORT else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in _SHORT else value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([_wide(item) for item in value])
    if isinstance(value, dict):
        return {key: _wide(item) for key, item in value.items()}
    return value


def in_float32(module: nn.Module, names: Iterable[str]) -> nn.Module:
    """`module` with the submodules called `names` in float32, whatever autocast or their own dtype says; in place.

    Their inputs are widened. Raises AttributeError where there is no such submodule.
    """
    for name in names:
        parent, _, last = name.rpartition(".")
        holder = module.get_submodule(parent)
        setattr(holder, last, _InFloat32(module.get_submodule(name).float()))
    return module


class _InFloat32(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type="cuda", enabled=False), torch.autocast(device_type="cpu", enabled=False):
            return self.module(*_wide(args), **_wide(kwargs))


@contextmanager
def without_tf32() -> Iterator[None]:
    """No TF32 in matrix products and convolutions on CUDA within it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def emulated_casts() -> Iterator[None]:
    """What is compiled by Inductor within it rounds to float16 and bfloat16 wherever eager mode would."""
    import torch._inductor.config as config

    with config.patch(emulate_precision_casts=True):
        yield
