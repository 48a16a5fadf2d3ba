"""The intervention on a long sum: with fewer terms its accumulated rounding becomes a smaller share of it."""

from __future__ import annotations

import torch
from torch import Tensor

from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.rerun import CannotRerun, Rerun
from fuzzer.verify.examine import Examined

#: Shares of the terms that are kept.
KEPT = (2, 4, 16)
#: With half of the terms the error is still there; a fault of some elements, or of the last one, is gone or as it was.
STILL, NO_MORE = 0.1, 1.0
#: With the fewest it is at most this share of what it was; an error that is a factor stays.
AT_MOST = 0.25
_SHORT = 16


@register
class HalfTheTerms(Intervention):
    """Zeros in place of the last half of the terms (three quarters, 15 of 16), along the longest side of the input.

    A sum of n equal terms, added one by one, is off by about n units of itself: half the terms, about half the share.
    """

    name = "half-the-terms"
    changed = "half of the terms, and fewer"
    confirms = ("numeric/accumulation",)

    def applies(self, finding: Finding) -> bool:
        return any(max(t.shape, default=0) >= _SHORT for t in finding.floats().values())

    def variants(self, finding: Finding) -> list[Variant]:
        name, longest = max(finding.floats().items(), key=lambda item: max(item[1].shape, default=0))
        axis = longest.shape.index(max(longest.shape))
        return [Variant({**finding.sample, name: first_of(longest, axis, part)}, words=f"1/{part}") for part in KEPT]

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        before = size(finding.examined)
        path = finding.difference.path
        shares = [gap_share(finding.examined, path)]
        for variant in self.variants(finding):
            assert variant.sample is not None
            try:
                shares.append(gap_share(rerun(variant.sample), path))
            except CannotRerun as error:
                return Trial(self.name, self.changed, Seen.NOTHING, before, detail=str(error))
        told = [share for share in shares if share is not None]
        if len(told) < len(shares):
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail="the sums cannot be compared")
        whole, half, fewest = told[0], told[1], told[-1]
        steady = STILL * whole <= half <= NO_MORE * whole and fewest <= AT_MOST * whole
        seen = Seen.GONE if steady else Seen.UNCHANGED
        words = ", ".join(f"1/{part}: {share:.2g}" for part, share in zip((1, *KEPT), told, strict=True))
        return Trial(self.name, self.changed, seen, before, "", f"the gap as a share of the answer: {words}")


def first_of(tensor: Tensor, axis: int, part: int) -> Tensor:
    """`tensor` with zeros after the first 1/`part` along `axis`."""
    kept = tensor.clone()
    first = -(-tensor.shape[axis] // part)
    kept.narrow(axis, first, tensor.shape[axis] - first).zero_()
    return kept


def gap_share(examined: Examined, path: str) -> float | None:
    """How far the sides are apart at the leaf, as a share of its largest value; None where that cannot be said."""
    left, right = (examined.reference.leaves or {}).get(path), (examined.target.leaves or {}).get(path)
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.shape == right.shape and left.numel()):
        return None
    whole, gap = float(left.double().abs().max()), float((left.double() - right.double()).abs().max())
    found = gap / whole if whole else torch.nan
    return found if found == found else None
