"""Small modules that magnify rounding: cancellation, wide softmaxes, near-singular systems, variance of huge numbers.

They are right as they are; a judge that takes their noise for a fault cries wolf. `SEEDS` has one seed for each.
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
