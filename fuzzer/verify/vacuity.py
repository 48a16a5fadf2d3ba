"""Which output leaves could tell a wrong answer from a right one at all.

A leaf that is the same whatever the input, or that moves by less than what a comparison lets pass, agrees with
everything. Plain random weights give such outputs: torchvision's mobilenet_v2 peaks at 1e-9, its vit_b_16 is exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaf, Leaves
from fuzzer.verify.compare import as_real

#: What a leaf's spread must exceed where the seed has no tolerance: the tightest of the study's, absolute.
YARDSTICK = 1e-6


@dataclass
class Vacuity:
    """The leaves, by path, that are worth comparing, and for every other one the reason why it is not."""

    informative: set[str] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def vacuous(self) -> bool:
        """Nothing is informative: to compare these outputs proves nothing."""
        return not self.informative


def informative_leaves(outputs: Sequence[Leaves], tolerance: Tolerance | None = None) -> Vacuity:
    """Judge the leaves of the reference's `outputs` on two or more base inputs.

    A float leaf is informative where two spreads exceed the yardstick (atol + rtol·max|r| of `tolerance`, else
    YARDSTICK): that over the inputs, at the element where it is largest, and the leaf's own, over all elements and
    inputs. Spreads are population standard deviations of the finite values, in float64. Integer and bool leaves are
    informative where they are not constant; leaves whose shape varies, or which some outputs lack, where they have an
    element. What is not a tensor never is. Raises ValueError on fewer than two outputs.
    """
    if len(outputs) < 2:
        raise ValueError("one output cannot show whether the outputs depend on the input: needs two or more")
    found = Vacuity()
    for path in dict.fromkeys(path for leaves in outputs for path in leaves):
        reason = _uninformative([leaves[path] for leaves in outputs if path in leaves], len(outputs), tolerance)
        if reason is None:
            found.informative.add(path)
        else:
            found.reasons[path] = reason
    return found


def _uninformative(values: Sequence[Leaf], outputs: int, tolerance: Tolerance | None) -> str | None:
    """Why the leaf with these values tells nothing, or None where it does."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len(tensors) < len(values):
        return "not a tensor"
    try:
        dense = [as_real(value) for value in tensors]
        if not any(value.numel() for value in dense):
            return "empty"
        if len(values) < outputs or len({value.shape for value in dense}) > 1:
            return None
        if not (dense[0].is_floating_point() and dense[0].dtype == dense[-1].dtype):
            constant = all(torch.equal(value, dense[0]) for value in dense[1:])
            return "constant whatever the input" if constant else None
        return _flat(torch.stack([value.to(torch.float64).reshape(-1) for value in dense]), tolerance)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return f"cannot be read: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _flat(rows: Tensor, tolerance: Tolerance | None) -> str | None:
    """Why a float leaf tells nothing. `rows` is float64 [inputs, elements]."""
    finite = torch.isfinite(rows)
    if not bool(finite.any()):
        return "all NaN" if bool(torch.isnan(rows).all()) else "no finite element"
    if bool(((rows == rows[0]) | (torch.isnan(rows) & torch.isnan(rows[0]))).all()):
        return "constant whatever the input"
    largest = float(rows[finite].abs().max())
    yardstick = YARDSTICK if tolerance is None else tolerance.atol + tolerance.rtol * largest
    over_inputs = float(_std(rows, finite, largest).max())
    own = float(_std(rows.reshape(-1, 1), finite.reshape(-1, 1), largest))
    for what, spread in (("over the inputs", over_inputs), ("of its elements", own)):
        if not spread > yardstick:
            return f"the spread {what}, {spread:.3g}, is within the tolerance {yardstick:.3g}"
    return None


def _std(rows: Tensor, finite: Tensor, largest: float) -> Tensor:
    """Population standard deviation of each column over its finite rows; 0 where it has none. Cannot overflow."""
    scale = largest if largest > 0 else 1.0
    x = torch.where(finite, rows, 0.0) / scale
    count = finite.sum(dim=0).clamp(min=1)
    gap = torch.where(finite, x - x.sum(dim=0) / count, 0.0)
    return (gap.square().sum(dim=0) / count).sqrt() * scale
