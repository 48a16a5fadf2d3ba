"""A small convolutional network for digits of 28 × 28 pixels."""

from __future__ import annotations

from torch import Tensor, nn


class DigitsNet(nn.Module):
    """images (batch, 1, 28, 28) float in [0, 1] → logits (batch, 10)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _stage(1, width),  # 28 → 14
            _stage(width, 2 * width),  # 14 → 7
            nn.Conv2d(2 * width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.classify = nn.Linear(2 * width * 49, 10)

    def forward(self, image: Tensor) -> Tensor:
        return self.classify(self.features(image).flatten(1))


def _stage(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
    )
