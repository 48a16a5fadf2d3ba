"""Small modules that magnify rounding: cancellation, wide softmaxes, near-singular systems, variance of huge numbers,
places between cancelling neighbours, saturation, recurrences with a gain, mixed scales.

They are right as they are; a judge that takes their noise for a fault cries wolf. `seeds` has one seed for each.
(Group norm with an offset is not: in channels-last layout its kernel takes the mean of squares minus the square of the
mean, and is wrong by 0.2 of a deviation at an offset of a thousand.)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fuzzer.seeds import Seed


class IllConditioned(nn.Module):
    """The function of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name][0]
        hilbert = torch.tensor([[1 / (i + j + 1) for j in range(6)] for i in range(6)])
        self.register_buffer("hilbert", hilbert)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def _cancelling_sum(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([x * 1e6, x, -1e6 * x], -1).sum(-1)


def _softmax(module: nn.Module, x: Tensor) -> Tensor:
    return (x * 10).softmax(-1)


def _solve(module: nn.Module, x: Tensor) -> Tensor:
    hilbert = module.get_buffer("hilbert")
    solution: Tensor = torch.linalg.solve(hilbert, x)
    return solution


def _huge_variance(module: nn.Module, x: Tensor) -> Tensor:
    return (x + 1e5).var(-1)


def _naive_variance(module: nn.Module, x: Tensor) -> Tensor:
    wide = x + 1e3
    return (wide * wide).mean(-1) - wide.mean(-1) ** 2


def _layer_norm(module: nn.Module, x: Tensor) -> Tensor:
    return F.layer_norm(x * 1e-2 + 1e3, (x.shape[-1],))


def _sharp_attention(module: nn.Module, x: Tensor) -> Tensor:
    heads = x.reshape(1, 2, -1, 16)
    return F.scaled_dot_product_attention(heads * 30, heads.flip(2) * 30, heads)


def _near_points(module: nn.Module, x: Tensor) -> Tensor:
    return torch.cdist(x + 100, x + 100, compute_mode="use_mm_for_euclid_dist")


def _gelu_tail(module: nn.Module, x: Tensor) -> Tensor:
    return F.gelu(x - 4) * 1e6


def _resized(module: nn.Module, x: Tensor) -> Tensor:
    """Neighbours cancel, so that the places between them matter."""
    signs = torch.ones_like(x).cumsum(-1) % 2 * 2 - 1
    return F.interpolate(x * 1e6 * signs, scale_factor=1.7, mode="bilinear", align_corners=False)


def _sampled(module: nn.Module, x: Tensor) -> Tensor:
    grid = F.affine_grid(torch.tensor([[[0.9, 0.1, 0.01], [-0.1, 0.9, 0.02]]]), [1, 1, 12, 12], align_corners=False)
    return F.grid_sample(x * 1e6, grid, align_corners=False)


def _histogram(module: nn.Module, x: Tensor) -> Tensor:
    """Adds up in place at indices that repeat."""
    sums = torch.zeros(8)
    sums.index_add_(0, torch.arange(x.numel()) % 8, x.flatten() * 1e4)
    return sums + x.flatten()[:8]


def _mixed_scales(module: nn.Module, x: Tensor) -> Tensor:
    """Columns of 1e-20 to 1e5 in one leaf, each a cancelling product."""
    return (x @ x.t()) * torch.logspace(-20, 5, x.shape[0])


def _saturated(module: nn.Module, x: Tensor) -> Tensor:
    return torch.sigmoid(x @ x.t() + 12)


def _nearly_constant(module: nn.Module, x: Tensor) -> Tensor:
    return 3 + 1e-6 * torch.tanh(x @ x.t() / 8)


def _sharp_recurrence(module: nn.Module, x: Tensor) -> Tensor:
    """Tanh with a gain of 3, twenty times over: rounding doubles in each step."""
    state = x
    weight = torch.sin(torch.arange(256.0).view(16, 16) * 1.7) * 0.35
    for _ in range(20):
        state = torch.tanh(3 * state @ weight)
    return state


#: By name: the function, and the shape of its input.
FUNCTIONS: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], list[int]]] = {
    "cancelling-sum": (_cancelling_sum, [4, 200]),
    "softmax-1e5": (_softmax, [1, 100_000]),
    "near-singular": (_solve, [6, 2]),
    "huge-variance": (_huge_variance, [4, 64]),
    "naive-variance": (_naive_variance, [4, 64]),
    "offset-layer-norm": (_layer_norm, [4, 64]),
    "sharp-attention": (_sharp_attention, [17, 32]),
    "near-points": (_near_points, [30, 8]),
    "gelu-tail": (_gelu_tail, [40]),
    "resized": (_resized, [1, 2, 9, 13]),
    "sampled": (_sampled, [1, 1, 12, 16]),
    "histogram": (_histogram, [4, 64]),
    "mixed-scales": (_mixed_scales, [16, 64]),
    "saturated": (_saturated, [8, 32]),
    "nearly-constant": (_nearly_constant, [8, 32]),
    "sharp-recurrence": (_sharp_recurrence, [4, 16]),
}


def seeds(base: Path) -> list[Seed]:
    """One seed for each function; `base` is the folder from which `benchmarks` can be imported."""
    return [
        Seed.model_validate(
            {
                "name": name,
                "model": {
                    "source": "builder",
                    "builder": "benchmarks.ill_conditioned:IllConditioned",
                    "path": ".",
                    "args": {"name": name},
                },
                "inputs": {"x": {"kind": "floats", "shape": shape}},
            }
        ).at(base)
        for name, (_, shape) in FUNCTIONS.items()
    ]
