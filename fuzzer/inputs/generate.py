"""Values for one input of each kind, drawn from a generator.

The same draw must give the same bits on every machine, so everything is built from uniform float64 numbers (random
bits, scaled) with correctly rounded arithmetic alone: torch's sin, exp and normal sampling differ in the last place
between vector units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from fuzzer.errors import InputError
from fuzzer.inputs.dtypes import DTYPES, cast_within, whole_range
from fuzzer.seeds.schema import InputSpec

Shape = Sequence[int]


def generate(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """A tensor of `shape` and the spec's dtype, of the spec's kind. Normalised where `mean` or `std` is given.

    Raises InputError where the range holds no number of the dtype.
    """
    return _KINDS[spec.kind](spec, tuple(shape), generator)


def _uniform(shape: Shape, generator: Generator) -> Tensor:
    """Float64 in [0, 1)."""
    return torch.rand(tuple(shape), dtype=torch.float64, generator=generator)


def _normal(shape: Shape, generator: Generator) -> Tensor:
    """Nearly standard normal, in [-6, 6]: twelve uniform numbers have variance 1 in sum (Irwin-Hall)."""
    total = torch.full(tuple(shape), -6.0, dtype=torch.float64)
    for _ in range(12):
        total = total + _uniform(shape, generator)
    return total


def _floats(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    dtype = DTYPES[spec.dtype_name]
    if dtype.is_complex:
        return torch.complex(*(_real(spec, shape, generator, torch.float32) for _ in range(2)))
    return _real(spec, shape, generator, dtype)


def _real(spec: InputSpec, shape: Shape, generator: Generator, dtype: torch.dtype) -> Tensor:
    if spec.range is None:
        return _normal(shape, generator).to(dtype)
    low, high = spec.range
    return cast_within(_between(_uniform(shape, generator), low, high), dtype, low, high)


def _between(part: Tensor, low: float, high: float) -> Tensor:
    return low * (1 - part) + high * part


def _scores(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """Distinct values: as many even steps over the range as there are elements, each moved by up to a quarter step."""
    low, high = spec.range or (0.0, 1.0)
    count = math.prod(shape)
    order = _uniform((count,), generator).argsort(stable=True)
    steps = torch.arange(count, dtype=torch.float64) + 0.25 + 0.5 * _uniform((count,), generator)
    values = _between((steps / max(count, 1))[order].reshape(tuple(shape)), low, high)
    return cast_within(values, DTYPES[spec.dtype_name], low, high)


def _integers(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    dtype = DTYPES[spec.dtype_name]
    default = (0.0, 1000.0) if spec.kind == "tokens" else (-8.0, 8.0)
    first, end = whole_range(dtype, *(spec.range or default))
    if first >= end:
        raise InputError(f"range {list(spec.range or default)} holds no whole number of dtype {spec.dtype_name}")
    part, span = _uniform(shape, generator), end - first
    if span <= 2**53:
        return ((part * span).floor().to(torch.int64).clamp(max=span - 1) + first).to(dtype)
    # wider than a float64 counts: Python's own whole numbers
    values = [first + min(int(each * span), span - 1) for each in part.flatten().tolist()]
    return torch.tensor(values, dtype=dtype).reshape(part.shape)


def _mask(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """Rows (along the last dimension) of ones then zeros, as padding leaves them; each has at least a half of ones."""
    dtype = DTYPES[spec.dtype_name]
    if not shape:
        return torch.ones((), dtype=dtype)
    length = shape[-1]
    least = (length + 1) // 2
    ones = least + (_uniform((*shape[:-1], 1), generator) * (length - least + 1)).floor()
    return (torch.arange(length, dtype=torch.float64) < ones).to(dtype)


def _boxes(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """(..., n, 4) as x1, y1, x2, y2 with x1 < x2 and y1 < y2, about four boxes a cluster, sides of 5 % to 60 %."""
    low, high = spec.range or (0.0, 320.0)
    extent = spec.extent or (high - low, high - low)
    origin = low if spec.extent is None else 0.0
    lead, count = shape[:-2], shape[-2] if len(shape) > 1 else 1
    clusters = max(1, (count + 3) // 4)
    pick = (_uniform((*lead, count), generator) * clusters).floor().to(torch.int64)
    pick[..., :clusters] = torch.arange(clusters)[:count]  # no cluster is empty
    scales = torch.tensor([1 / 16, 1 / 8, 1 / 4, 1 / 2], dtype=torch.float64)
    scale = scales[(_uniform((*lead, clusters), generator) * 4).floor().to(torch.int64).gather(-1, pick)]
    sides = []
    for length in extent:
        centre = (0.15 + 0.7 * _uniform((*lead, clusters), generator)).gather(-1, pick)
        size = scale * (0.8 + 0.4 * _uniform((*lead, count), generator))
        start = centre + size * (0.5 * _uniform((*lead, count), generator) - 0.75)
        start = torch.minimum(start.clamp(min=0.0), 1.0 - size)
        ends = (origin + start * length, origin + (start + size) * length)
        sides.append([cast_within(end, DTYPES[spec.dtype_name], origin, origin + length) for end in ends])
    (x1, x2), (y1, y2) = sides
    return torch.stack([x1, y1, x2, y2], dim=-1).reshape(tuple(shape))


def _image(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """(..., C, H, W) or (H, W): gentle waves, a few soft discs and fine texture, spread over most of the range."""
    count, channels = math.prod(shape[:-3]), shape[-3] if len(shape) > 2 else 1
    content = _content(count, channels, shape[-2], shape[-1], generator).reshape(tuple(shape))
    return finish_image(spec, content)


def noise(spec: InputSpec, shape: Shape, generator: Generator) -> Tensor:
    """An image of `shape` without structure: uniform over the spec's range, in its dtype, normalised."""
    return finish_image(spec, _uniform(shape, generator))


def finish_image(spec: InputSpec, content: Tensor) -> Tensor:
    """`content` (float64 in [0, 1], (..., C, H, W) or (H, W)) in the spec's range and dtype, normalised."""
    dtype = DTYPES[spec.dtype_name]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        low, high = spec.range or (0.0, 255.0)
        low, high = math.ceil(max(low, info.min)), math.floor(min(high, info.max))
        if low > high:
            raise InputError(f"range {list(spec.range or ())} holds no number of dtype {spec.dtype_name}")
        return (_between(content, low, high) + 0.5).floor().clamp(low, high).to(dtype)
    low, high = spec.range or (0.0, 1.0)
    if spec.mean is None and spec.std is None:
        return cast_within(_between(content, low, high), dtype, low, high)
    values = _between(content, low, high)
    trail = (-1, 1, 1) if content.ndim > 2 else (-1, 1)
    mean = torch.tensor(spec.mean or [0.0], dtype=torch.float64).reshape(trail)
    std = torch.tensor(spec.std or [1.0], dtype=torch.float64).reshape(trail)
    channels = content.shape[-3] if content.ndim > 2 else 1
    if not {mean.numel(), std.numel()} <= {1, channels}:
        raise InputError(f"mean and std do not fit an image of shape {list(content.shape)}")
    return ((values - mean) / std).to(dtype)


def _content(count: int, channels: int, height: int, width: int, generator: Generator) -> Tensor:
    """(count, channels, height, width), float64 in [0, 1]."""
    shape = (count, channels, height, width)
    if math.prod(shape) == 0:
        return torch.zeros(shape, dtype=torch.float64)

    def number(low: float, high: float, planes: int = 1) -> Tensor:
        return low + (high - low) * _uniform((count, planes, 1, 1), generator)

    y = ((torch.arange(height, dtype=torch.float64) + 0.5) / height).reshape(1, 1, -1, 1)
    x = ((torch.arange(width, dtype=torch.float64) + 0.5) / width).reshape(1, 1, 1, -1)
    total = torch.zeros(shape, dtype=torch.float64)
    for _ in range(4):
        phase = number(-3, 3) * x + number(-3, 3) * y + number(0, 1)
        total = total + number(-0.5, 0.5, channels) * _wave(phase)
    for _ in range(3):
        dx, dy = x - number(0, 1), y - number(0, 1)
        radius = number(0.1, 0.4)
        bump = (1 - (dx * dx + dy * dy) / (radius * radius)).clamp(min=0.0)
        total = total + number(-1.5, 1.5, channels) * bump * bump
    total = total + 0.1 * (_uniform(shape, generator) - 0.5)
    low, high = total.amin((1, 2, 3), keepdim=True), total.amax((1, 2, 3), keepdim=True)
    spread = torch.where(high > low, high - low, torch.ones_like(high))
    floor = number(0, 0.2)
    return floor + (number(0.8, 1) - floor) * ((total - low) / spread)


def _wave(phase: Tensor) -> Tensor:
    """A sine's parabolic stand-in of period 1, in [-1, 1], smooth to the first derivative."""
    part = phase - phase.floor() - 0.5
    return 8 * part * (2 * part.abs() - 1)


_KINDS: dict[str, Callable[[InputSpec, Shape, Generator], Tensor]] = {
    "image": _image,
    "boxes": _boxes,
    "scores": _scores,
    "tokens": _integers,
    "integers": _integers,
    "mask": _mask,
    "floats": _floats,
}
