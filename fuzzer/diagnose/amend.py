"""Changes of a sample that take one possible cause away and leave the rest as it is. Pure: tensors in, tensors out."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fuzzer.diagnose import facts

#: Ties are broken, and all values are nudged, by this share of the largest magnitude or of themselves.
STEP = 2.0**-10
#: Integers are brought into ±this, where all arithmetic on them is exact in every dtype that could be used.
SMALL = 100


def broken_ties(tensor: Tensor) -> Tensor:
    """Equal floats made different: each further one of a value is a step larger than the one before.

    The first infinity of either sign, and the first NaN, stay; further ones become finite, beyond all that are.
    """
    flat = facts.wide(tensor).reshape(-1)
    finite = flat[flat.isfinite()]
    scale = (float(finite.abs().max()) if finite.numel() else 0.0) or 1.0
    order = flat.argsort(stable=True)
    ordered = flat[order]
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = (ordered[1:] != ordered[:-1]) & ~(ordered[1:].isnan() & ordered[:-1].isnan())
    place = torch.arange(len(ordered))
    first = torch.where(new, place, 0).cummax(0).values
    repeats = torch.empty_like(place)
    repeats[order] = place - first
    step = repeats * scale * STEP
    beyond = min(scale, torch.finfo(tensor.dtype).max / 8) * torch.where(flat.isnan(), 4.0, 2.0) + step
    beyond = torch.where(flat == -torch.inf, -beyond, beyond)
    moved = torch.where(flat.isfinite(), flat + step, torch.where(repeats > 0, beyond, flat))
    return moved.reshape(tensor.shape).to(tensor.dtype)


def nudged(tensor: Tensor) -> Tensor:
    """Floats a thousandth larger in size: ties stay ties, zeros keep their signs, NaN and infinities stay."""
    return (tensor * (1 + STEP)).to(tensor.dtype) if tensor.is_floating_point() else tensor


def noisy(tensor: Tensor, seed: int) -> Tensor:
    """Finite floats moved at random by up to a 256th of the largest magnitude: far beyond any rounding."""
    value = facts.wide(tensor)
    finite = value[value.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    generator = torch.Generator().manual_seed(seed)
    noise = (torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5) * (scale or 1.0) * 2.0**-7
    return torch.where(value.isfinite(), value + noise, value).to(tensor.dtype)


def shortened(tensor: Tensor) -> Tensor:
    """Floats rounded to bfloat16, whose eight bits fit into float16 and TF32 as well; wider ones keep their dtype."""
    return tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.element_size() > 2 else tensor


def finite(tensor: Tensor) -> Tensor:
    """NaN replaced by the mean of the finite elements (0.5 where there are none), infinities by the largest of them."""
    value = tensor.to(torch.float64)
    kept = value[value.isfinite()]
    mean = float(kept.mean()) if kept.numel() else 0.5
    most = float(kept.abs().max()) if kept.numel() else 1.0
    return torch.nan_to_num(value, nan=mean, posinf=most, neginf=-most).to(tensor.dtype)


def positive_zeros(tensor: Tensor) -> Tensor:
    """−0 replaced by +0."""
    return torch.where(tensor == 0, torch.zeros_like(tensor), tensor)


def small(tensor: Tensor) -> Tensor:
    """Numbers brought into ±100, NaN to 0; 8-bit integers into a quarter of their range."""
    if tensor.is_floating_point():
        return torch.nan_to_num(tensor, nan=0.0, posinf=SMALL, neginf=-SMALL).clamp(-SMALL, SMALL)
    if tensor.dtype == torch.bool or tensor.is_complex():
        return tensor
    info = torch.iinfo(tensor.dtype)
    return tensor.clamp(max(-SMALL, info.min // 4), min(SMALL, info.max // 4))


def within(tensor: Tensor, ordinary: Tensor) -> Tensor:
    """Integers brought into the range that the ordinary input has."""
    if not ordinary.numel():
        return tensor
    return tensor.clamp(int(ordinary.min()), int(ordinary.max()))


def distinct(tensor: Tensor, most: int) -> Tensor | None:
    """Repeated integers of a row (last dimension) replaced by numbers in [0, most] that it does not hold.

    None where a row has too few left.
    """
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)
    found = []
    for row in rows.tolist():
        free = iter(sorted(set(range(most + 1)) - set(row)))
        seen: set[int] = set()
        for value in row:
            number = value if value not in seen else next(free, None)
            if number is None:
                return None
            seen.add(number)
            found.append(number)
    return torch.tensor(found, dtype=tensor.dtype).reshape(tensor.shape)


def without_repeats(sample: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The sample with each index of the vector `name` once; whatever is as long is cut at the same places."""
    index = sample[name].tolist()
    kept = torch.tensor([i for i, value in enumerate(index) if value not in index[:i]])
    n = len(index)
    return {key: t.index_select(0, kept) if t.dim() and t.shape[0] == n else t for key, t in sample.items()}
