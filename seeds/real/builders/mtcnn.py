"""MTCNN's first network (MIT): where a face may be, with the names that the weights of facenet-pytorch have."""

from __future__ import annotations

from torch import Tensor, nn


class PNet(nn.Module):
    """images (n, 3, H, W), (value − 127.5) / 128 → scores (n, 2, h, w), no face and face, and boxes (n, 4, h, w).

    A cell looks at 12 pixels, and cells are 2 apart. Boxes are offsets of x1, y1, x2, y2 in units of those 12 pixels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        x = self.pool1(self.prelu1(self.conv1(image)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return {"scores": self.conv4_1(x).softmax(1), "boxes": self.conv4_2(x)}
