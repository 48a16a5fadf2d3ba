"""Interventions on the input: the backends stay as they are, one property of the sample is taken away."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fuzzer.diagnose import amend, facts
from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.primary import primary
from fuzzer.diagnose.rerun import CannotRerun, Change, Rerun, Sample
from fuzzer.trees import Leaf
from fuzzer.verify.examine import Examined
from fuzzer.verify.verdict import Blame, Kind

#: So many times a decision whose margin was widened must agree.
DRAWS = 4
#: Of so many other samples of a batch the reference must say alone what it says of them in the batch.
OTHERS = 3
#: Inputs are scaled down by these powers of two, and by the one that leaves them at about 1.
_POWERS = (4, 12, 32, 64)


def _with(sample: Sample, changed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**sample, **changed}


def _each_float(finding: Finding, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return _with(finding.sample, {name: change(t) for name, t in finding.floats().items()})


class _OnFloats(Intervention):
    """Changes all float inputs in one way; the placebo nudges them."""

    @staticmethod
    def change(tensor: Tensor) -> Tensor:
        raise NotImplementedError

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(_each_float(finding, self.change))

    def placebo(self, finding: Finding) -> Variant | None:
        return Variant(_each_float(finding, amend.nudged), words="placebo")


@register
class TiesBroken(_OnFloats):
    name = "ties"
    changed = "ties in the inputs broken by rank"
    confirms = ("order/tie",)
    change = staticmethod(amend.broken_ties)

    def applies(self, finding: Finding) -> bool:
        return any(facts.has_ties(t.reshape(-1)) for t in finding.floats().values())


@register
class FiniteInputs(_OnFloats):
    name = "finite"
    changed = "NaN and infinities in the inputs replaced by finite values"
    confirms = ("numeric/nonfinite", "execution/exception", "numeric/integer")
    change = staticmethod(amend.finite)

    def applies(self, finding: Finding) -> bool:
        return not facts.finite(finding.floats().values())


@register
class PositiveZeros(_OnFloats):
    name = "positive-zeros"
    changed = "−0 in the inputs replaced by +0"
    confirms = ("numeric/signed-zero", "execution/exception")
    change = staticmethod(amend.positive_zeros)

    def applies(self, finding: Finding) -> bool:
        return facts.has_negative_zero(finding.floats().values())


@register
class MarginWidened(Intervention):
    """Any near-tie among the inputs, or computed from them, is resolved by noise far above rounding; all draws must
    agree."""

    name = "margin"
    changed = f"margins widened: inputs moved by up to 2^-8 of their size, {DRAWS} times"
    confirms = ("order/near-tie",)

    def applies(self, finding: Finding) -> bool:
        return bool(finding.floats())

    def variants(self, finding: Finding) -> Iterable[Variant]:
        for seed in range(DRAWS):
            yield Variant(
                _with(
                    finding.sample,
                    {n: amend.noisy(t, seed + 7 * i) for i, (n, t) in enumerate(finding.floats().items())},
                )
            )

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        trials = []
        for variant in self.variants(finding):
            trials.append(self._run(finding, rerun, variant))
            if not trials[-1].gone:
                break
        return trials[-1]


@register
class ShortInputs(_OnFloats):
    """Who rounds operands to fewer bits has nothing left to round. For small errors only: others are no rounding."""

    name = "short-inputs"
    changed = "float inputs rounded to bfloat16, on both sides"
    confirms = ("numeric/reduced-precision",)
    change = staticmethod(amend.shortened)

    def applies(self, finding: Finding) -> bool:
        path = finding.difference.path
        left, right = ((side.leaves or {}).get(path) for side in (finding.examined.reference, finding.examined.target))
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or finding.difference.kind is not Kind.VALUE:
            return False
        small = left.shape == right.shape and not _apart(left, right)
        return small and any(not torch.equal(amend.shortened(t), t) for t in finding.floats().values())


@register
class ScaledDown(Intervention):
    """Fixed powers, and the one that brings the largest finite magnitude to about 1: only what is still there then was
    no overflow. Where inputs are of other sizes, each is brought there by a power of its own as well."""

    name = "scale-down"
    changed = "inputs scaled down by a power of two"
    confirms = ("numeric/overflow",)

    def applies(self, finding: Finding) -> bool:
        return facts.largest_magnitude(finding.floats().values()) > 1.0

    def variants(self, finding: Finding) -> Iterable[Variant]:
        own = {name: _above_one(t) for name, t in finding.floats().items()}
        for power in sorted({*_POWERS, max(own.values())} - {0}):
            yield Variant(_each_float(finding, lambda t, p=power: t * 2.0**-p), words=f"2^-{power}")  # type: ignore[misc]
        if len(set(own.values())) > 1:
            scaled = {name: t * 2.0 ** -own[name] for name, t in finding.floats().items()}
            yield Variant(_with(finding.sample, scaled), words="each to about 1")

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        """An overflow that is scaled away leaves rounding at most, which a narrow dtype shows. What is grossly wrong at
        every scale was no overflow, though an infinity showed it."""
        trials, mild, settled = [], None, None
        ends = max(_above_one(t) for t in finding.floats().values())
        for variant in self.variants(finding):
            trial, examined = self._ran(finding, rerun, variant)
            if trial.gone:
                return trial
            wrong = None if examined is None else _wrong_by(examined)
            if mild is None and wrong is False:
                mild = replace(trial, detail="what is left is small")
            trials.append((trial, wrong))
            own = variant.words.startswith("each")
            if own or (settled is None and int(variant.words.removeprefix("2^-")) >= ends):
                settled = trial
        last = settled or trials[-1][0]
        if mild is not None or not all(wrong for _, wrong in trials) or last.seen is not Seen.OTHER:
            return mild or last
        detail = f"at each of {len(trials)} scales finite values are wrong by more than a sixteenth"
        return replace(last, rules_out=True, detail=detail)


def _above_one(tensor: Tensor) -> int:
    """The power of two by which the largest finite magnitude of a tensor is above 1; 0 where it is not."""
    return max(0, math.frexp(facts.largest_magnitude([tensor]))[1] - 1)


def _wrong_by(examined: Examined) -> bool | None:
    """Of finite values that a side is to blame for: are they off by more than a sixteenth of the leaf's largest."""
    found = primary(examined.verdict)
    if found is None or found.kind is not Kind.VALUE or found.blame in (Blame.NEITHER, Blame.UNKNOWN):
        return None
    left, right = (side.leaves or {} for side in (examined.reference, examined.target))
    one, other = left.get(found.path), right.get(found.path)
    if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
        return None
    return _apart(one, other)


def _apart(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape are further apart than a sixteenth of the largest value of the first."""
    whole, gap = facts.wide(one).abs().max(), (facts.wide(one) - facts.wide(other)).abs().max()
    return not bool(gap <= whole / 16)


@register
class ScaledUp(Intervention):
    name = "scale-up"
    changed = "inputs scaled up to normal numbers"
    confirms = ("numeric/subnormal",)

    def applies(self, finding: Finding) -> bool:
        return any(0.0 < facts.largest_magnitude([t]) < 2.0**-100 for t in finding.floats().values())

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(_each_float(finding, lambda t: t * 2.0**100 * 2.0**20), words="2^120")


@register
class InRange(Intervention):
    name = "in-range"
    changed = "operands brought into a range where integer arithmetic is defined"
    confirms = ("numeric/integer", "execution/exception")

    def variants(self, finding: Finding) -> Iterable[Variant]:
        small = {name: amend.small(t) for name, t in finding.sample.items()}
        if any(not torch.equal(small[name], t) for name, t in finding.sample.items()):
            yield Variant(small, words=f"±{amend.SMALL}")
        whole = {name: t.abs().clamp(min=1) for name, t in finding.integers().items()}
        if whole:
            yield Variant(_with(small, {n: amend.small(t) for n, t in whole.items()}), words="1 to 100")

    def applies(self, finding: Finding) -> bool:
        return bool(finding.integers()) or finding.difference.kind in (Kind.INTEGER, Kind.EXCEPTION)


@register
class OrdinaryRange(Intervention):
    name = "ordinary-range"
    changed = "integers brought into the range of the base input"
    confirms = ("execution/exception", "numeric/integer")

    def applies(self, finding: Finding) -> bool:
        return bool(finding.integers())

    def variants(self, finding: Finding) -> Iterable[Variant]:
        ordinary = finding.ordinary
        amended = {name: amend.within(t, ordinary[name]) for name, t in finding.integers().items()}
        yield Variant(_with(finding.sample, amended))


@register
class OrdinaryInput(Intervention):
    """The nearest input of all that is known to be well: last resort for what raises."""

    name = "ordinary"
    changed = "the base input in its place"
    confirms = ("execution/exception", "execution/out-of-memory")

    def variants(self, finding: Finding) -> Iterable[Variant]:
        floats = {name: finding.ordinary[name] for name in finding.floats()}
        whole = {name: finding.ordinary[name] for name in finding.integers()}
        if floats and whole:
            fits = {n: t for n, t in whole.items() if t.shape == finding.sample[n].shape}
            if fits:
                yield Variant(_with(finding.sample, fits), words="its integers only")
        yield Variant(finding.ordinary)


@register
class UniqueIndices(Intervention):
    name = "unique-indices"
    changed = "repeated indices made unique"
    confirms = ("order/duplicate-index",)

    def applies(self, finding: Finding) -> bool:
        return any(_repeats(t) for t in finding.integers().values())

    def variants(self, finding: Finding) -> Iterable[Variant]:
        amended = {}
        for name, tensor in finding.integers().items():
            if _repeats(tensor):
                most = max(
                    int(tensor.max()), int(finding.ordinary[name].max()) if finding.ordinary[name].numel() else 0
                )
                unique = amend.distinct(tensor, most)
                if unique is not None:
                    amended[name] = unique
        if amended:
            yield Variant(_with(finding.sample, amended), words="by others")
        for name, tensor in finding.integers().items():
            if tensor.dim() == 1 and _repeats(tensor):
                fewer = amend.without_repeats(finding.sample, name)
                yield Variant(fewer, Change(example=fewer), words=f"repeats of {name} left out")


def _repeats(tensor: Tensor) -> bool:
    if tensor.dim() == 0 or tensor.shape[-1] < 2 or int(tensor.min()) < 0:
        return False
    ordered = tensor.sort(-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


@register
class Alone(Intervention):
    """The batch keeps its size, the sample its place: only what stands beside it changes. The reference must say of it
    what it said before, and the target, if that is the side to blame, something else.

    The reference must do so for other samples too: where it does not, the first dimension is no batch, but one that
    the model computes along (a cumulative sum says of its first element the same whatever follows).
    """

    name = "alone"
    changed = "the sample's neighbours in its batch replaced by copies of it"
    confirms = ("state/batch",)

    def applies(self, finding: Finding) -> bool:
        return _batch(finding) > 1

    def variants(self, finding: Finding) -> Iterable[Variant]:
        index = finding.difference.index
        row = index[0] if index and index[0] < _batch(finding) else 0
        yield Variant(_copies(finding.sample, row), words=f"sample {row}")

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        (variant,) = self.variants(finding)
        trial = self._run(finding, rerun, variant)
        if trial.gone and variant.sample is not None:
            examined = rerun(variant.sample)
            path, row = finding.difference.path, int(variant.words.split()[-1])
            sides = [
                ((before.leaves or {}).get(path), (after.leaves or {}).get(path))
                for before, after in (
                    (finding.examined.reference, examined.reference),
                    (finding.examined.target, examined.target),
                )
            ]
            detail = _of_its_batch(sides[0], sides[1], row) or self._computed_along(finding, rerun, row)
            if detail:
                return Trial(self.name, trial.changed, Seen.NOTHING, size(finding.examined), detail=detail)
        return trial

    @staticmethod
    def _computed_along(finding: Finding, rerun: Rerun, row: int) -> str:
        """Why the first dimension is no batch: what the reference says of other samples, alone and beside others."""
        path = finding.difference.path
        whole = (finding.examined.reference.leaves or {}).get(path)
        for other in [i for i in range(_batch(finding)) if i != row][:OTHERS]:
            try:
                alone = (rerun(_copies(finding.sample, other)).reference.leaves or {}).get(path)
            except CannotRerun as error:
                return str(error)
            if not (isinstance(whole, Tensor) and isinstance(alone, Tensor) and _same(whole, alone, other)):
                return f"no batch: the reference's answer for sample {other} depends on the others"
        return ""


def _copies(sample: Sample, row: int) -> dict[str, Tensor]:
    """A batch of copies of one of its samples."""
    return {name: t[row : row + 1].expand_as(t).contiguous() for name, t in sample.items()}


def _batch(finding: Finding) -> int:
    """The size of the first dimension where all inputs, and the leaf that differs, share it; else 0."""
    leaf = (finding.examined.reference.leaves or {}).get(finding.difference.path)
    tensors = [*finding.sample.values(), *([leaf] if isinstance(leaf, Tensor) else [])]
    sizes = {t.shape[0] if t.dim() else 0 for t in tensors}
    return sizes.pop() if len(sizes) == 1 and isinstance(leaf, Tensor) else 0


def _of_its_batch(reference: tuple[Leaf, Leaf], target: tuple[Leaf, Leaf], row: int) -> str:
    """Why the answers for the sample, before and after, do not show that one side alone depends on the batch."""
    if not all(isinstance(one, Tensor) for one in (*reference, *target)):
        return "the answers cannot be compared"
    alike = [_same(*pair, row) for pair in (reference, target)]  # type: ignore[arg-type]
    if alike[0] and alike[1] and bool(_gap(*target, row) < 0.5 * _gap(reference[0], target[0], row)):  # type: ignore[arg-type]
        return "both sides say of the sample what they said of it before: the noise is another, not the answer"
    return "" if alike[0] else "the reference's own answer depends on the batch"


def _gap(one: Tensor, other: Tensor, row: int) -> float:
    if one.shape != other.shape or row >= one.shape[0]:
        return math.inf
    left, right = one[row].double(), other[row].double()
    gap = torch.where(left.isnan() ^ right.isnan(), math.inf, (left - right).abs().nan_to_num(0.0))
    return float(gap.max()) if gap.numel() else 0.0


def _same(whole: Tensor, one: Tensor, row: int) -> bool:
    if one.dim() == 0 or whole.shape != one.shape or row >= whole.shape[0]:
        return False
    return bool(torch.allclose(whole[row].double(), one[row].double(), rtol=1e-4, atol=1e-6, equal_nan=True))


@register
class AsExample(Intervention):
    """For a specialised graph. For a wrong shape, that it survives this says that the shape is wrong by itself."""

    name = "example"
    changed = "compiled or exported with this input as the example"
    confirms = ("structure/specialisation",)

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(example=finding.sample))
