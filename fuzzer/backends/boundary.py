"""Follow the gradient of one decision's margin until the decision is a toss-up.

Newton's steps on a few coordinates: x ← x − m·g / |g|², with g the margin's gradient restricted to the coordinates on
which it depends most. What comes back are the new values of those few elements, so that a recipe can hold them and
rebuild the input without the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fuzzer.backends.margins import margin_of, top_gaps
from fuzzer.trees import flatten

#: Elements of the input that are moved.
MOST_MOVED = 16
#: Newton's steps, those included that did not come nearer; a piecewise linear model needs a few.
STEPS = 10
#: Decisions among which one is chosen.
MOST_DECISIONS = 32

#: The model on a sample whose tensors may carry gradients.
Forward = Callable[[dict[str, Tensor]], Any]


@dataclass(frozen=True)
class Moved:
    """New values for some elements (flat indices) of some inputs, and the margin before and after."""

    changes: list[dict[str, Any]]  # each `input`, `at`, `values`
    before: float
    after: float


class _Margins(TorchFunctionMode):
    """Keeps the margins of the decisions that a model takes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "").partition(".")[0]
        if args and len(self.found) < MOST_DECISIONS:
            margin = margin_of(name, args, kwargs or {})
            if margin is not None and margin.requires_grad:
                self.found.append(margin)
        return func(*args, **(kwargs or {}))


def towards_boundary(forward: Forward, sample: Mapping[str, Tensor], names: Sequence[str], key: int) -> Moved | None:
    """Move a few elements of the inputs `names` (floats) to where one decision of the model, chosen by `key`, turns.

    Decisions are those that `margins` knows, and the two largest of each row of a float output. None where there is
    none that depends on the inputs. Raises whatever the model raises.
    """
    now = {name: sample[name].detach().clone() for name in names if sample[name].numel()}
    found = _margins(forward, sample, now)
    usable = [i for i, (margin, _) in enumerate(found) if bool((margin.isfinite() & (margin != 0)).any())]
    if not usable or not now:
        return None
    which = usable[key % len(usable)]
    margin, inputs = found[which]
    distances = torch.where(margin.isfinite() & (margin != 0), margin.detach().abs(), torch.inf)
    nearest = distances.topk(min(4, distances.numel()), largest=False)
    element = int(nearest.indices[(key >> 8) % int(nearest.values.isfinite().sum())])
    before = best = float(margin[element].detach())
    chosen: dict[str, Tensor] = {}
    kept = {name: tensor.clone() for name, tensor in now.items()}
    slopes: dict[str, Tensor] = {}
    share = 1.0  # of Newton's step: behind a kink a shorter one may do
    for _ in range(STEPS):
        if not slopes:
            slopes = _slopes(margin[element], inputs)
            chosen = chosen or _steepest(slopes)
        size = sum(float((slopes[name][at] ** 2).sum()) for name, at in chosen.items() if name in slopes)
        if size == 0.0:
            break
        now = {name: tensor.clone() for name, tensor in kept.items()}
        for name, at in chosen.items():
            flat = now[name].reshape(-1)
            flat[at] = (flat[at].double() - share * best * slopes[name][at] / size).to(flat.dtype)
        found = _margins(forward, sample, now)
        known = which < len(found) and element < found[which][0].numel()
        if known and abs(float(found[which][0][element].detach())) < abs(best):
            margin, inputs = found[which]
            best, kept, slopes, share = float(margin[element].detach()), now, {}, 1.0
        else:
            share /= 4
    changes = [_change(name, kept[name], at) for name, at in chosen.items()]
    return Moved(changes, before, best) if abs(best) < abs(before) else None


def _margins(
    forward: Forward, sample: Mapping[str, Tensor], now: Mapping[str, Tensor]
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Every margin of one run, with the leaves that it may be differentiated by."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in now.items()}
    given = {name: leaves[name].clone() if name in leaves else tensor.clone() for name, tensor in sample.items()}
    with torch.enable_grad(), _Margins() as mode:
        output = forward(given)
    margins = list(mode.found)
    for leaf in flatten(output).values():
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.is_floating_point():
            gaps = top_gaps(leaf)
            margins += [] if gaps is None else [gaps]
    return [(margin, leaves) for margin in margins]


def _slopes(margin: Tensor, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The margin's gradient by input, flat, float64; what is not finite counts as zero."""
    gradients = torch.autograd.grad(margin, list(inputs.values()), allow_unused=True)
    known = {name: g.reshape(-1) for name, g in zip(inputs, gradients, strict=True) if g is not None}
    return {name: torch.nan_to_num(g.double(), 0.0, 0.0, 0.0) for name, g in known.items()}


def _steepest(slopes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The few coordinates, over all inputs, with the largest slopes."""
    sizes = [(float(value), name, index) for name, g in slopes.items() for value, index in _largest(g)]
    sizes.sort(key=lambda each: (-each[0], each[1], each[2]))
    chosen: dict[str, list[int]] = {}
    for _, name, index in sizes[:MOST_MOVED]:
        chosen.setdefault(name, []).append(index)
    return {name: torch.tensor(sorted(at)) for name, at in chosen.items()}


def _largest(slopes: Tensor) -> list[tuple[float, int]]:
    top = slopes.abs().topk(min(MOST_MOVED, slopes.numel()))
    return [(v, i) for v, i in zip(top.values.tolist(), top.indices.tolist(), strict=True) if v > 0]


def _change(name: str, tensor: Tensor, at: Tensor) -> dict[str, Any]:
    return {"input": name, "at": at.tolist(), "values": tensor.reshape(-1)[at].double().tolist()}
