"""Facts about pairs of tensors that a label can rest on. Pure: tensors in, a truth or a number out.

Floats are looked at in float64, into which every narrower dtype goes exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fuzzer.tensors import raw_bytes


def dense(tensor: Tensor) -> Tensor:
    """`tensor` as a strided tensor on the CPU, which is what all that follows takes."""
    value = tensor.detach().cpu()
    return (value if value.layout == torch.strided else value.to_dense()).resolve_conj()


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in float64; complex numbers become pairs in a last dimension."""
    value = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return value.to(torch.float64)


def finite(tensors: Iterable[Tensor]) -> bool:
    """Are all elements of all float tensors finite."""
    return all(bool(wide(t).isfinite().all()) for t in tensors if t.is_floating_point() or t.is_complex())


def same_rows(reference: Tensor, target: Tensor) -> bool:
    """Do both hold the same rows (elements, where one-dimensional), bit for bit, in another order."""
    if reference.shape != target.shape or reference.dtype != target.dtype or reference.dim() == 0:
        return False
    left, right = _rows(reference), _rows(target)
    return left != right and sorted(left) == sorted(right)


def _rows(tensor: Tensor) -> list[bytes]:
    count = tensor.shape[0]
    if tensor.numel() == 0:
        return []
    data = raw_bytes(tensor)
    step = len(data) // count
    return [data[i * step : (i + 1) * step] for i in range(count)]


def same_values_along_last(reference: Tensor, target: Tensor) -> bool:
    """Does every row hold the same values in another order: what a sort or a top-k with ties may do."""
    if reference.shape != target.shape or reference.dim() == 0 or reference.numel() == 0:
        return False
    left, right = wide(reference), wide(target)
    if torch.equal(left, right) or not (left.isfinite().all() and right.isfinite().all()):
        return False
    return torch.equal(left.sort(-1).values, right.sort(-1).values)


def is_index(*tensors: Tensor) -> bool:
    """Could these be indices: 32 or 64 bit integers, none below zero."""
    return all(t.dtype in (torch.int64, torch.int32) and (t.numel() == 0 or int(t.min()) >= 0) for t in tensors)


def same(left: Tensor, right: Tensor) -> bool:
    """Are all elements equal, NaN to NaN."""
    if left.shape != right.shape:
        return False
    one, other = wide(left), wide(right)
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def gathers_alike(reference: Tensor, target: Tensor, source: Tensor) -> bool:
    """Do two index tensors pick equal values (or NaN both) from `source`: in its last dimension, its planes, or all."""
    if not is_index(reference, target) or reference.shape != target.shape or source.numel() == 0:
        return False
    left, right, values = reference.long(), target.long(), source
    if values.dim() == left.dim() + 1 and values.shape[:-1] == left.shape:  # an argmax over the last dimension
        left, right = left.unsqueeze(-1), right.unsqueeze(-1)
    elif left.dim() == 0:
        values, left, right = values.reshape(-1), left.reshape(1), right.reshape(1)
    elif values.dim() == left.dim() >= 3 and values.shape[:-2] == left.shape[:-2] and values.shape != left.shape:
        values, left, right = values.flatten(-2), left.flatten(-2), right.flatten(-2)  # as pooling counts places
    if left.numel() == 0 or values.dim() != left.dim() or values.shape[:-1] != left.shape[:-1]:
        return False
    if max(int(left.max()), int(right.max())) >= values.shape[-1]:
        return False
    return same(values.gather(-1, left), values.gather(-1, right))


def has_ties(tensor: Tensor) -> bool:
    """Does a float tensor hold one value twice in a row of its last dimension; two NaN are a tie as well."""
    if tensor.dim() == 0 or tensor.numel() < 2:
        return False
    ordered = wide(tensor).sort(-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any() | (ordered.isnan().sum(-1) > 1).any())


def largest_magnitude(tensors: Iterable[Tensor]) -> float:
    """The largest finite magnitude over all float tensors, 0 where there is none."""
    found = 0.0
    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex():
            value = wide(tensor).abs()
            value = value[value.isfinite()]
            found = max(found, float(value.max()) if value.numel() else 0.0)
    return found


def has_negative_zero(tensors: Iterable[Tensor]) -> bool:
    return any(bool(((t == 0) & t.signbit()).any()) for t in tensors if t.is_floating_point())


def all_subnormal(reference: Tensor, target: Tensor) -> bool:
    """Do all mismatches lie where both values are below the smallest normal number of the leaf's dtype."""
    left, right = wide(reference), wide(target)
    differs = left != right
    if not bool(differs.any()) or not reference.is_floating_point():
        return False
    tiny = torch.finfo(reference.dtype).tiny
    return bool((torch.maximum(left.abs(), right.abs())[differs] < tiny).all())


def relative_errors(value: Tensor, truth: Tensor) -> Tensor:
    """|value − truth| / |truth| where both are finite, the truth is not 0 and they differ; one-dimensional float64."""
    left, right = wide(value), wide(truth)
    keep = left.isfinite() & right.isfinite() & (right != 0) & (left != right)
    return ((left - right).abs() / right.abs())[keep]


def errors_of_scale(value: Tensor, truth: Tensor) -> Tensor:
    """|value − truth| over the root mean square of the truth, where both are finite and differ; one-dimensional."""
    left, right = wide(value), wide(truth)
    finite = left.isfinite() & right.isfinite()
    scale = right[finite].square().mean().sqrt()
    return ((left - right).abs() / scale)[finite & (left != right)]


def one_way(value: Tensor, truth: Tensor) -> bool:
    """Are nearly all of eight values or more too large in size, or nearly all too small: rounding does neither."""
    left, right = wide(value), wide(truth)
    at = left.isfinite() & right.isfinite() & (right != 0) & (left != right)
    larger = (left.abs() > right.abs())[at]
    share = float(larger.double().mean()) if larger.numel() else 0.5
    return larger.numel() >= 8 and min(share, 1 - share) < 1 / 16


def rounds_to(fine: Tensor, coarse: Tensor, dtype: torch.dtype) -> bool:
    """Is `coarse` what `fine` becomes when it is rounded to `dtype`, and is some finite value of it not so already.

    Values that become 0 count for nothing: a target that says 0 throughout has rounded nothing.
    """
    if fine.shape != coarse.shape or not (fine.is_floating_point() and coarse.is_floating_point()):
        return False
    rounded = wide(fine.to(dtype))
    moved = (wide(fine) != rounded) & rounded.isfinite() & (rounded != 0)
    same = (rounded == wide(coarse)) | (rounded.isnan() & wide(coarse).isnan())
    return bool(moved.any()) and bool(same.all())


def shorter(coarse: Tensor, fine: Tensor) -> torch.dtype | None:
    """The 16-bit float that holds `coarse` without rounding at each of the elements that differ, and `fine` at none.

    None where they are fewer than four values, which may be so by chance, or whole numbers, or off by a sixteenth of
    the largest.
    """
    if fine.shape != coarse.shape or not (fine.dtype == coarse.dtype and fine.dtype in (torch.float32, torch.float64)):
        return None
    at = (fine != coarse) & fine.isfinite() & coarse.isfinite() & (coarse != 0)
    left, right = coarse[at], fine[at]
    if left.unique().numel() < 4:  # type: ignore[no-untyped-call]
        return None
    near = (left - right).abs() <= right.abs().max() / 16
    if not bool(near.all()) or torch.equal(left, left.round()):
        return None
    for dtype in (torch.bfloat16, torch.float16):
        held, other = (side == side.to(dtype).to(side.dtype) for side in (left, right))
        if bool(held.all()) and not bool(other.any()):
            return dtype
    return None


def of_float32(middle: float, most: float) -> bool:
    """Are these, relative and in float64, the median and the largest error of a few roundings to float32."""
    return 2.0**-28 < middle < 2.0**-22 and most < 2.0**-20


def median(values: Tensor) -> float:
    return float(values.median()) if values.numel() else math.nan
