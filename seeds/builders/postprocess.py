"""What a one-stage detector does after its heads: decode boxes, score, suppress, keep the best.

The formulas are those of SSD and RetinaNet (torchvision's `BoxCoder` with weights 10, 10, 5, 5).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms

#: exp() of a size delta is held below this ratio, as in torchvision.
LARGEST = math.log(1000 / 16)


class Postprocess(nn.Module):
    """anchors (n, 4) xyxy, deltas (n, 4), logits (n, classes) → boxes (k, 4), scores (k,), labels (k,), best first."""

    def __init__(
        self, width: float = 320, height: float = 320, threshold: float = 0.3, iou: float = 0.5, keep: int = 50
    ) -> None:
        super().__init__()
        self.threshold, self.iou, self.keep = threshold, iou, keep
        self.register_buffer("limit", torch.tensor([width, height, width, height]))
        self.register_buffer("scale", torch.tensor([10.0, 10.0, 5.0, 5.0]))

    def forward(self, anchors: Tensor, deltas: Tensor, logits: Tensor) -> dict[str, Tensor]:
        boxes = self.decode(anchors, deltas)
        scores, labels = torch.sigmoid(logits).max(dim=1)
        kept = batched_nms(boxes, scores, labels, self.iou)
        kept = kept[scores[kept] > self.threshold][: self.keep]
        return {"boxes": boxes[kept], "scores": scores[kept], "labels": labels[kept]}

    def decode(self, anchors: Tensor, deltas: Tensor) -> Tensor:
        """Centre moved by delta times anchor size, size multiplied by exp(delta); clipped to the image."""
        deltas = deltas / self.scale
        size = anchors[:, 2:] - anchors[:, :2]
        centre = anchors[:, :2] + size / 2 + deltas[:, :2] * size
        half = torch.exp(deltas[:, 2:].clamp(max=LARGEST)) * size / 2
        boxes = torch.cat([centre - half, centre + half], dim=1)
        return torch.minimum(boxes.clamp(min=0), self.limit)
