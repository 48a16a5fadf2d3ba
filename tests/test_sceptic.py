"""A sceptic's pairs: other ways to the same answer that the judge must forgive, and subtle faults that it must not.

None of them uses what the judge's own noise is made of (other orders of the same kernels).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.known_cases import Function
from benchmarks.local import verdict_on
from fuzzer.verify.verdict import Outcome

torch.set_num_threads(1)
Compute = Callable[..., Any]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


W33 = normal(8, 4, 3, 3, seed=9) / 6
WIDE = normal(32, 256, seed=9) / 16
WEIGHT = normal(32, 64, seed=8) / 8
GRID = torch.rand(1, 20, 20, 2, generator=torch.Generator().manual_seed(4)) * 2.2 - 1.1
torch.manual_seed(0)
GRU, LSTM = (kind(8, 16, batch_first=True).requires_grad_(False) for kind in (nn.GRU, nn.LSTM))


def by_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with a running softmax, five keys at a time."""
    out, total, most = torch.zeros_like(q), torch.zeros_like(q[..., :1]), torch.full_like(q[..., :1], -math.inf)
    for start in range(0, k.shape[-2], 5):
        scores = (q * 0.25) @ k[..., start : start + 5, :].transpose(-1, -2)
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        weights, shrink = (scores - larger).exp(), (most - larger).exp()
        total, out, most = total * shrink + weights.sum(-1, keepdim=True), out * shrink, larger
        out = out + weights @ v[..., start : start + 5, :]
    return out / total


def welford(x: Tensor) -> Tensor:
    mean, squares = torch.zeros_like(x[..., :1]), torch.zeros_like(x[..., :1])
    for i in range(x.shape[-1]):
        gap = x[..., i : i + 1] - mean
        mean = mean + gap / (i + 1)
        squares = squares + gap * (x[..., i : i + 1] - mean)
    return (x - mean) * torch.rsqrt(squares / x.shape[-1] + 1e-5)


def by_cells(x: Tensor) -> Tensor:
    state, found = torch.zeros(len(x), 16, dtype=x.dtype), []
    for step in x.unbind(1):
        given = F.linear(step, GRU.weight_ih_l0, GRU.bias_ih_l0).chunk(3, 1)
        before = F.linear(state, GRU.weight_hh_l0, GRU.bias_hh_l0).chunk(3, 1)
        reset, update = (torch.sigmoid(given[i] + before[i]) for i in (0, 1))
        state = (1 - update) * torch.tanh(given[2] + reset * before[2]) + update * state
        found.append(state)
    return torch.stack(found, 1)


def in_parts(x: Tensor, weight: Tensor, size: int = 16) -> Tensor:
    total: Tensor = sum(a @ b.t() for a, b in zip(x.split(size, 1), weight.split(size, 1), strict=True))  # type: ignore[assignment]
    return total


def interpolated(x: Tensor) -> Tensor:
    """Bilinear resizing as two products."""
    rows, columns = (
        F.interpolate(torch.eye(n)[None, None], size=(m, n), mode="bilinear") for n, m in ((9, 23), (11, 31))
    )
    return rows[0, 0] @ x @ columns[0, 0].t()


BENIGN: dict[str, tuple[Compute, Compute, tuple[int, ...]]] = {
    "a convolution as unfolding and a product": (
        lambda x: F.conv2d(x, W33, padding=1),
        lambda x: (W33.flatten(1) @ F.unfold(x, 3, padding=1)).view(2, 8, 9, 11),
        (2, 4, 9, 11),
    ),
    "a product in parts of its terms": (lambda x: F.linear(x, WIDE), lambda x: in_parts(x, WIDE, 32), (6, 256)),
    "layer norm by Welford": (lambda x: F.layer_norm(x, (64,)), welford, (5, 64)),
    "softmax by logsumexp": (
        lambda x: x.softmax(-1),
        lambda x: (x - x.logsumexp(-1, keepdim=True)).exp(),
        (5, 64),
    ),
    "attention by blocks": (
        lambda x: F.scaled_dot_product_attention(x, x.flip(2), x.flip(3)),
        lambda x: by_blocks(x, x.flip(2), x.flip(3)),
        (1, 2, 17, 16),
    ),
    "a mean by pairs": (lambda x: x.mean(-1), lambda x: x.view(3, 64, 64).sum(-1).sum(-1) / 4096, (3, 4096)),
    "a running sum by chunks": (
        lambda x: x.cumsum(-1),
        lambda x: (
            x.view(3, 16, 32).cumsum(-1) + F.pad(x.view(3, 16, 32).sum(-1).cumsum(-1)[:, :-1], (1, 0))[..., None]
        ).view(3, 512),
        (3, 512),
    ),
    "a GRU by its cells": (lambda x: GRU(x)[0], by_cells, (2, 12, 8)),
    "bilinear resizing as two products": (
        lambda x: F.interpolate(x, size=(23, 31), mode="bilinear"),
        interpolated,
        (1, 3, 9, 11),
    ),
    "two products in the other order": (
        lambda x: (x @ WEIGHT.t()) @ WEIGHT,
        lambda x: x @ (WEIGHT.t() @ WEIGHT),
        (5, 64),
    ),
    "a saturated sigmoid": (
        lambda x: torch.sigmoid(F.linear(x, WEIGHT) * 5 + 12),
        lambda x: torch.sigmoid(in_parts(x, WEIGHT) * 5 + 12),
        (5, 64),
    ),
    "an almost constant output": (
        lambda x: 3 + 1e-6 * torch.tanh(F.linear(x, WEIGHT)),
        lambda x: 3 + 1e-6 * torch.tanh(in_parts(x, WEIGHT)),
        (5, 64),
    ),
    "mixed scales in one leaf": (
        lambda x: F.linear(x, WEIGHT) * torch.logspace(-20, 5, 32),
        lambda x: in_parts(x, WEIGHT) * torch.logspace(-20, 5, 32),
        (5, 64),
    ),
    "a variance of two passes": (
        lambda x: x.var(-1),
        lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / 63,
        (5, 64),
    ),
    "GELU by erf": (F.gelu, lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), (5, 64)),
}


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1.0, 1e4), (1e-15, 0.0), (1e10, 0.0)])
@pytest.mark.parametrize("name", BENIGN)
def test_another_way_to_the_same_answer_is_forgiven(name: str, scale: float, offset: float) -> None:
    one, other, shape = BENIGN[name]
    x = normal(*shape) * scale + offset
    verdict = verdict_on(Function(one), [x], Function(other)).verdict
    assert verdict.outcome is Outcome.PASS or all(difference.near_tie for difference in verdict.differences)


def tf32(x: Tensor) -> Tensor:
    return (x.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


def two_newton_steps(v: Tensor) -> Tensor:
    y = (0x5F3759DF - (v.view(torch.int32) >> 1)).view(torch.float32)
    for _ in range(2):
        y = y * (1.5 - 0.5 * v * y * y)
    return y


def in_eighths(x: Tensor) -> Tensor:
    """Bilinear resizing whose weights have eight bits, as those of a texture unit have."""
    sizes = ((9, 20), (11, 22))
    rows, columns = (F.interpolate(torch.eye(n)[None, None], size=(m, n), mode="bilinear") for n, m in sizes)
    return (rows[0, 0] * 256).round() / 256 @ x @ ((columns[0, 0] * 256).round() / 256).t()


def cells_in_half(x: Tensor) -> Tensor:
    state, cell, found = torch.zeros(len(x), 16), torch.zeros(len(x), 16), []
    for step in x.unbind(1):
        gates = F.linear(step, LSTM.weight_ih_l0, LSTM.bias_ih_l0) + F.linear(state, LSTM.weight_hh_l0, LSTM.bias_hh_l0)
        i, f, g, o = gates.chunk(4, 1)
        cell = (torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)).half().float()
        state = torch.sigmoid(o) * torch.tanh(cell)
        found.append(state)
    return torch.stack(found, 1)


def summed_at(x: Tensor, places: Tensor) -> Tensor:
    sums = torch.zeros(8)
    sums.index_add_(0, places, x.flatten())
    return sums


FAULTS: dict[str, tuple[Compute, Compute, tuple[int, ...]]] = {
    "GELU by tanh": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), (5, 64)),
    "another epsilon": (lambda x: F.layer_norm(x, (64,)), lambda x: F.layer_norm(x, (64,), eps=1e-6), (5, 64)),
    "a mean that drops one of 4096": (lambda x: x.mean(-1), lambda x: x[:, :-1].sum(-1) / 4096, (3, 4096)),
    "a product in TF32": (lambda x: F.linear(x, WIDE), lambda x: F.linear(tf32(x), tf32(WIDE)), (6, 256)),
    "a bias in float16": (
        lambda x: F.linear(x, WIDE, WIDE[:, 0]),
        lambda x: F.linear(x, WIDE, WIDE[:, 0].half().float()),
        (6, 256),
    ),
    "resizing weights of eight bits": (
        lambda x: F.interpolate(x, size=(20, 22), mode="bilinear"),
        in_eighths,
        (1, 4, 9, 11),
    ),
    "a grid that counts corners": (
        lambda x: F.grid_sample(x, GRID, align_corners=False),
        lambda x: F.grid_sample(x, GRID, align_corners=True),
        (1, 4, 9, 11),
    ),
    "probabilities in float16": (
        lambda x: F.scaled_dot_product_attention(x, x.flip(2), x.flip(3)),
        lambda x: ((x @ x.flip(2).transpose(-1, -2)) / 4).softmax(-1).half().float() @ x.flip(3),
        (1, 2, 17, 16),
    ),
    "a cell state in float16": (lambda x: LSTM(x)[0], cells_in_half, (2, 12, 8)),
    "a root by two Newton steps": (
        lambda x: F.layer_norm(x, (64,)),
        lambda x: (x - x.mean(-1, keepdim=True)) * two_newton_steps(x.var(-1, correction=0, keepdim=True) + 1e-5),
        (5, 64),
    ),
    "a last chunk that starts late": (
        lambda x: x.cumsum(-1),
        lambda x: torch.cat([x.cumsum(-1)[:, :-1], x.cumsum(-1)[:, -2:-1]], -1),
        (3, 512),
    ),
    "bfloat16 under an offset": (
        lambda x: F.linear(x, WEIGHT) + 1e3,
        lambda x: F.linear(x.bfloat16(), WEIGHT.bfloat16()).float() + 1e3,
        (5, 64),
    ),
    "an output that stands still": (lambda x: 3 + 1e-4 * torch.tanh(x), lambda x: 3 + 0 * x, (5, 64)),
    "an index that is one off in index_add_": (
        lambda x: summed_at(x, torch.arange(64) % 8),
        lambda x: summed_at(x, (torch.arange(64) % 8).clamp(max=6)),
        (4, 16),
    ),
    "channels in another order": (
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_shuffle(x[:, [0, 2, 1, 3]], 2),
        (2, 4, 9, 11),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_subtle_fault_is_flagged(name: str) -> None:
    right, wrong, shape = FAULTS[name]
    verdict = verdict_on(Function(right), [normal(*shape)], Function(wrong)).verdict
    assert verdict.outcome is Outcome.MISMATCH
    assert not all(difference.near_tie for difference in verdict.differences)
