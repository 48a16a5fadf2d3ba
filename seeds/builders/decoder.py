"""The end of a segmenter: class scores on a coarse grid, made as large as the picture."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Decoder(nn.Module):
    """features (batch, width, h, w) float → logits (batch, classes, scale·h, scale·w)."""

    def __init__(self, width: int = 8, classes: int = 3, scale: int = 4) -> None:
        super().__init__()
        self.scale = scale
        self.mix = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.score = nn.Conv2d(width, classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        coarse = self.score(F.relu(self.mix(features)))
        size = [self.scale * side for side in coarse.shape[-2:]]
        return F.interpolate(coarse, size=size, mode="bilinear", align_corners=True)
