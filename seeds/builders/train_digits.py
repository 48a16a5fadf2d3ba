"""Trains the digits network on digits that it renders, and writes its weights and ten sample images.

    python seeds/builders/train_digits.py

Takes under a minute on one core and prints the accuracy on digits it was not trained on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from digits import DigitsNet
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torchvision.io import write_png

#: Seven rows of five pixels each, top to bottom; `#` is ink.
GLYPHS = """
.###. ..#.. .###. ####. ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ....# ..##. #.... .#... ....# #...# #...#
#...# ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#...# ..#.. ..##. .###. #..#. ....# ####. ...#. .###. .####
#...# ..#.. .#... ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. #.... ....# ...#. #...# #...# ..#.. #...# ...#.
.###. .###. ##### ####. ...#. .###. .###. ..#.. .###. .##..
"""
PIXELS = 28
HERE = Path(__file__).parent
WEIGHTS = HERE.parent / "weights" / "digits.safetensors"
SAMPLES = HERE.parent / "samples"


def glyphs() -> Tensor:
    """(10, 1, 28, 28), ink 1 on 0, centred, three pixels a dot."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    dots = torch.tensor([[[float(dot == "#") for dot in row[digit]] for row in rows] for digit in range(10)])
    drawn = dots.repeat_interleave(3, 1).repeat_interleave(3, 2)[:, None]
    height, width = drawn.shape[-2:]
    left, top = (PIXELS - width) // 2, (PIXELS - height) // 2
    return F.pad(drawn, (left, PIXELS - width - left, top, PIXELS - height - top))


def render(labels: Tensor, generator: Generator) -> Tensor:
    """(n, 1, 28, 28) in [0, 1]: each label's glyph turned, sheared, stretched and moved at random, with noise."""
    n = len(labels)

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    angle, shear, wide, high = between(-0.35, 0.35), between(-0.25, 0.25), between(0.8, 1.25), between(0.8, 1.25)
    rows = [
        torch.stack([wide * angle.cos(), shear - angle.sin(), between(-0.2, 0.2)], 1),
        torch.stack([angle.sin(), high * angle.cos(), between(-0.2, 0.2)], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), [n, 1, PIXELS, PIXELS], align_corners=False)
    image = F.grid_sample(glyphs()[labels], grid, align_corners=False)
    image = F.avg_pool2d(image, 3, stride=1, padding=1) * between(0.6, 1.0).view(-1, 1, 1, 1)
    return (image + 0.1 * torch.randn(image.shape, generator=generator)).clamp(0, 1)


def draw(n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    labels = torch.randint(10, (n,), generator=generator)
    return render(labels, generator), labels


def train(steps: int = 250, batch: int = 64, seed: int = 0) -> DigitsNet:
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
    for _ in range(steps):
        images, labels = draw(batch, generator)
        loss = nn.functional.cross_entropy(net(images), labels, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return net.eval()


@torch.no_grad()
def accuracy(net: nn.Module, n: int = 2000, seed: int = 1) -> float:
    """On digits rendered from another seed than training's."""
    images, labels = draw(n, Generator().manual_seed(seed))
    return (net(images).argmax(1) == labels).double().mean().item()


def main() -> None:
    torch.set_num_threads(1)
    net = train()
    reached = accuracy(net)
    print(f"accuracy on 2000 unseen digits: {reached:.4f}")
    if reached < 0.95:
        sys.exit("not good enough to ship: nothing written")
    WEIGHTS.parent.mkdir(exist_ok=True)
    SAMPLES.mkdir(exist_ok=True)
    save_file(net.state_dict(), WEIGHTS)
    WEIGHTS.chmod(0o644)
    images = render(torch.arange(10), Generator().manual_seed(2))
    for digit, image in enumerate(images):
        write_png((image * 255).round().to(torch.uint8), str(SAMPLES / f"digit_{digit}.png"))


if __name__ == "__main__":
    main()
