"""Mutators that give a whole mask or image a pattern."""

from __future__ import annotations

import math
import random
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fuzzer.mutate.base import FLOAT_DTYPES, FiniteFloat, InputMutator, OnInput, register
from fuzzer.mutate.floats import copy_of, saturated
from fuzzer.mutate.randomness import draws, new_key
from fuzzer.mutate.where import Key
from fuzzer.seeds.schema import InputSpec, Seed

MaskPattern = Literal["all", "none", "row_off", "row_only", "prefix", "one", "causal", "checkerboard"]
MASK_PATTERNS: tuple[MaskPattern, ...] = (
    *("all", "none", "row_off", "row_only", "prefix", "one", "causal", "checkerboard"),
)
#: What "keep" and "drop" are in numbers: 1 and 0; or for masks that are added to scores, 0 and −∞ or the lowest number.
MaskStyle = Literal["binary", "additive", "additive_finite"]


class MaskParams(OnInput):
    pattern: MaskPattern
    style: MaskStyle
    key: Key


@register
class MaskPatterns(InputMutator[MaskParams]):
    """All true, all false, one row false or alone true, a prefix, one element, causal, a checkerboard."""

    name = "mask_patterns"
    params_type = MaskParams

    def suits(self, spec: InputSpec) -> bool:
        return spec.kind == "mask" and spec.dtype_name != "complex64"

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> MaskParams:
        styles: list[MaskStyle] = ["binary"]
        if seed.inputs[name].dtype_name in FLOAT_DTYPES:
            styles += ["additive", "additive"] if seed.allow.nonfinite else ["additive_finite"]
        return MaskParams(input=name, pattern=rng.choice(MASK_PATTERNS), style=rng.choice(styles), key=new_key(rng))

    def alter(self, spec: InputSpec, tensor: Tensor, params: MaskParams) -> Tensor:
        keep = kept(params.pattern, tuple(tensor.shape), params.key)
        if not tensor.is_floating_point() or params.style == "binary":
            return keep.to(tensor.dtype)
        drop = -math.inf if params.style == "additive" else torch.finfo(tensor.dtype).min
        return torch.zeros(tensor.shape, dtype=tensor.dtype).masked_fill(~keep, drop)


def kept(pattern: MaskPattern, shape: tuple[int, ...], key: int) -> Tensor:
    """The pattern as a bool tensor of `shape`. A row lies along the last axis; `key` says which, and where it ends."""
    if math.prod(shape) == 0:
        return torch.ones(shape, dtype=torch.bool)
    rows = torch.zeros(shape or (1,), dtype=torch.bool).reshape(-1, shape[-1] if shape else 1)
    word = int(draws(key, 1)[0])
    row, column = word % rows.shape[0], word // rows.shape[0] % rows.shape[1]
    if pattern == "all":
        rows[:] = True
    elif pattern == "row_off":
        rows[:] = True
        rows[row] = False
    elif pattern == "row_only":
        rows[row] = True
    elif pattern == "prefix":
        rows[:, : column + 1] = True
    elif pattern == "one":
        rows[row, column] = True
    elif pattern == "causal":
        side = shape[-2] if len(shape) > 1 else 1
        within = torch.arange(rows.shape[0]) % side
        rows[:] = torch.arange(rows.shape[1]) <= within[:, None]
    elif pattern == "checkerboard":
        rows[:] = (torch.arange(rows.shape[0])[:, None] + torch.arange(rows.shape[1])) % 2 == 0
    return rows.reshape(shape)


ImagePattern = Literal[
    "constant", "checkerboard", "stripes", "gradient_x", "gradient_y", "saturated", "impulse", "levels"
]
IMAGE_PATTERNS: tuple[ImagePattern, ...] = (
    *("constant", "constant", "checkerboard", "stripes", "gradient_x", "gradient_y", "saturated", "impulse", "levels"),
)


class ImageParams(OnInput):
    pattern: ImagePattern
    level: Annotated[FiniteFloat, Field(ge=0, le=1)]  # constant: its brightness. saturated: where white begins
    period: Annotated[int, Field(ge=1, le=4096)]  # of checkerboard and stripes, in pixels; levels: how many


@register
class ImagePatterns(InputMutator[ImageParams]):
    """A constant image, a checkerboard, stripes, a gradient, one bright pixel; or the image itself, posterised."""

    name = "image_patterns"
    params_type = ImageParams

    def suits(self, spec: InputSpec) -> bool:
        real = spec.dtype_name == "uint8" or (spec.dtype_name in FLOAT_DTYPES and spec.dtype_name != "complex64")
        return spec.kind == "image" and not spec.exact and real and len(spec.shape) >= 2

    def pick(self, seed: Seed, name: str, shape: tuple[int, ...], rng: random.Random) -> ImageParams:
        return ImageParams(
            input=name,
            pattern=rng.choice(IMAGE_PATTERNS),
            level=rng.choice((0.0, 1.0, 0.5, 0.1, 0.25)),
            period=rng.choice((1, 1, 2, 4, 8, 16)),
        )

    def alter(self, spec: InputSpec, tensor: Tensor, params: ImageParams) -> Tensor:
        if tensor.numel() == 0:
            return copy_of(tensor)
        black, white = black_and_white(spec, tensor.shape[-3] if tensor.dim() > 2 else 1)
        pixels = tensor.double()
        levels = torch.nan_to_num((pixels - black) / (white - black), nan=0.0, posinf=1.0, neginf=0.0).clamp(0, 1)
        shades = shaded(params, levels)
        values = (black + shades * (white - black)).reshape(tensor.shape)
        if tensor.is_floating_point():
            return saturated(values, tensor.dtype).contiguous()
        return values.round().clamp(0, 255).to(tensor.dtype).contiguous()


def black_and_white(spec: InputSpec, channels: int) -> tuple[Tensor, Tensor]:
    """The values of black and of white for each channel, (channels, 1, 1), float64, after normalisation."""
    integer = spec.dtype_name == "uint8"
    low, high = spec.range or ((0.0, 255.0) if integer else (0.0, 1.0))
    if low == high:
        high = low + 1.0

    def per_channel(values: list[float] | None, default: float) -> Tensor:
        given = torch.tensor(values if values and not integer else [default], dtype=torch.float64)
        return given[torch.arange(channels) % len(given)].view(-1, 1, 1)

    mean, std = per_channel(spec.mean, 0.0), per_channel(spec.std, 1.0)
    return (low - mean) / std, (high - mean) / std


def shaded(params: ImageParams, levels: Tensor) -> Tensor:
    """The pattern, in brightness from 0 to 1, of the shape of `levels` (…, height, width): the image's own."""
    height, width = levels.shape[-2:]
    y, x = torch.arange(height)[:, None], torch.arange(width)
    period = params.period
    if params.pattern == "saturated":
        return (levels > params.level).double()
    if params.pattern == "levels":
        return (levels * period).round() / period
    flat = {
        "constant": torch.full((height, width), params.level, dtype=torch.float64),
        "checkerboard": ((y // period + x // period) % 2).double(),
        "stripes": (x // period % 2 + 0 * y).double(),
        "gradient_x": x.double() / max(width - 1, 1) + 0.0 * y,
        "gradient_y": y.double() / max(height - 1, 1) + 0.0 * x,
        "impulse": ((y == height // 2) & (x == width // 2)).double(),
    }[params.pattern]
    return flat.expand(levels.shape)
