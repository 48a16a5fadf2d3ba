"""The modules that planted faults sit in: each as small as it can be, so that an execution costs its checks alone."""

from __future__ import annotations

import torch
import torchvision
from torch import Tensor, nn


class TopK(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(64)
        return values, indices


class Sort(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.sort()
        return values, indices


class ArgMax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Pool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2, return_indices=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = self.pool(x)
        return values, indices


class Nms(nn.Module):
    def forward(self, boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        kept = torchvision.ops.nms(boxes, scores, 0.5)
        return kept, scores[kept]


class Rescale(nn.Module):
    """Through numbers near the smallest normal one and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1e-32 * 1e32


class LargestRoot(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt().amax(-1)


class ClampedLog(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log().clamp(-5.0, 5.0)


class Trunc(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.trunc()


class RowSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(-1)


class Round(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.round()


class Linear(nn.Module):
    """A product with a fixed matrix of numbers between -1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        steps = torch.arange(64, dtype=torch.float32) * 37 % 64
        self.weight = nn.Parameter((steps / 31.5 - 1).reshape(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


class Tanh(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.tanh()


class Log1pRatio(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log1p() / x


class Log1p(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log1p()


class Quotient(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.div(a, b, rounding_mode="trunc")


class Shift(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return torch.bitwise_left_shift(x, by)


class ToInt32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.int32)


class Histogram(nn.Module):
    """Weights added up by index."""

    def forward(self, index: Tensor, weight: Tensor) -> Tensor:
        return torch.zeros(256).index_add(0, index, weight)


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.prod(0)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


class RunningSum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(-1)


class ColumnSums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.t().cumsum(-1)


class Softmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Relu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu()


class Sqrt(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Fmod(nn.Module):
    """Divisors that are often small, and now and then very small."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.fmod(x, y.square().square())


class Count(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.bincount(x, minlength=1000)
