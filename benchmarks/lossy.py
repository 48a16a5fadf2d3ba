"""Which operator lost it: every operator of a run beside itself in float64 on the same operands.

A kernel in float32 may lose more than rounding does: it overflows on the way to a result that float32 has, or it adds
up a hundred thousand terms one after the other. `Lossy` measures each result against the exact one, rounded once, in
noise floors of that operator alone: so it says where a whole model's difference comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.harmless import in_place, writes_first
from fuzzer.backends.rounding import RandomRounding, each_tensor, widen
from fuzzer.verify.judge import THRESHOLD
from fuzzer.verify.ulp import ulp

#: Runs under random rounding for the noise floor of one operator.
DRAWS = 4
#: Results closer than this many ulp are not worth a noise floor.
CLOSE_ULP = 4.0


@dataclass(frozen=True)
class Loss:
    """What one operator lost. `floors`: its largest error in its own noise floors; infinite for NaN and infinities, 0
    for a decision."""

    operator: str
    what: str
    floors: float

    def __str__(self) -> str:
        return f"{self.operator} {self.what}"


class Lossy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the losses of the operators that run, in their order. Results stay those of the kernels."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.losses: list[Loss] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or not _floats(args, kwargs) or kwargs.get("dtype") is not None:
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            if not writes_first(func, args):
                return func(*args, **kwargs)
            before = args[0].clone()
            found = func(*args, **kwargs)
            args = (before, *args[1:])
            exact, _ = in_place(func, (before.clone(), *args[1:]), kwargs)
        else:
            found = func(*args, **kwargs)
            exact = func(*each_tensor(widen, args), **each_tensor(widen, kwargs))
        floats = _floats(args, kwargs)
        name = func.overloadpacket.__name__
        for at, (kernel, wide) in enumerate(zip(_tensors(found), _tensors(exact), strict=True)):
            loss = _loss(name, kernel, wide, floats, lambda at=at: _moved(func, args, kwargs, at))  # type: ignore[misc]
            if loss is not None:
                self.losses.append(loss)
        return found


def _floats(*values: Any) -> list[Tensor]:
    return [x for x in tree_leaves(values) if isinstance(x, Tensor) and x.dtype == torch.float32]


def _tensors(value: Any) -> list[Tensor]:
    return [x for x in tree_leaves(value) if isinstance(x, Tensor)]


def _moved(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int) -> list[Tensor]:
    """The operator's results (of several the one at `at`) under random rounding of its operands and inside."""
    found = []
    for draw in range(DRAWS):
        rounding = RandomRounding(1 + draw)
        moved = each_tensor(rounding.move, args), each_tensor(rounding.move, dict(kwargs))
        with rounding:
            found.append(_tensors(func(*moved[0], **moved[1]))[at].double())
    return found


def _loss(
    name: str, kernel: Tensor, wide: Tensor, operands: list[Tensor], draws: Callable[[], list[Tensor]]
) -> Loss | None:
    if not kernel.is_floating_point():
        same = kernel.shape == wide.shape and bool((kernel == wide).all())
        return None if same else Loss(name, "decides otherwise than in float64", 0.0)
    if kernel.dtype != torch.float32 or kernel.shape != wide.shape or kernel.numel() == 0:
        return None
    exact = wide.double()
    once, found = exact.float().double(), kernel.double()
    if bool((once.isfinite() & ~found.isfinite()).any()):
        return Loss(name, "overflows or gives NaN on the way to a finite result", math.inf)
    if bool((~once.isfinite() & found.isfinite()).any()):
        return Loss(name, "gives a number where its result is NaN or infinite", math.inf)
    if bool((once.isnan() != found.isnan()).any()):
        return Loss(name, "gives NaN in place of an infinity, or an infinity for NaN", math.inf)
    error = (found - exact).abs().nan_to_num(0.0, 0.0, 0.0)
    step = ulp(exact.nan_to_num(0.0, 0.0, 0.0), torch.float32)
    if not bool((error > CLOSE_ULP * step).any()):
        return None
    moved = [(draw - found).abs().nan_to_num(0.0, 0.0, 0.0) for draw in draws() if draw.shape == found.shape]
    if not moved:  # a formula has this result in another shape, such as the sums that attention keeps for its gradient
        return None
    floor = torch.stack(moved).amax(0)
    worst = float((error / (floor.clamp(min=float(floor.median())) + step)).max())
    if worst <= THRESHOLD:
        return None
    return Loss(
        name, "overflows on the way and gives a number" if _squares_overflow(operands) else "rounds more", worst
    )


def _squares_overflow(operands: list[Tensor]) -> bool:
    """Whether the sum of an operand's squares is beyond float32."""
    squares = [float(x.double().square().nan_to_num(0.0, 0.0, 0.0).sum()) for x in operands if x.numel()]
    return max(squares, default=0.0) > torch.finfo(torch.float32).max


def lost_by(run: Callable[[Mapping[str, Tensor]], Any], sample: Mapping[str, Tensor]) -> Loss | None:
    """The operator of a run that lost most: the first that gives other NaN or infinities, else the largest loss of
    values, else the first decision."""
    seen = Lossy()
    with seen:
        run(sample)
    odd = [loss for loss in seen.losses if math.isinf(loss.floors)]
    return odd[0] if odd else max(seen.losses, key=lambda loss: loss.floors, default=None)
