"""Interventions on a backend: the input stays as it is, a switch of the target, or of both sides, is turned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.session import Answer
from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change, Rerun
from fuzzer.trees import Leaves
from fuzzer.verify.examine import Examined
from fuzzer.verify.judge import THRESHOLD
from fuzzer.verify.verdict import Blame, Kind

COMPILED = ("dynamo", "aot_eager", "inductor")
#: First answers that must be alike, in a fresh process each; later calls in one process that must agree.
FIRSTS, LATERS = 3, 3
#: Operators of PyTorch that draw random numbers, by the start of their names.
_RANDOM = ("aten.rand", "aten.bernoulli", "aten.dropout", "aten.normal", "aten.multinomial", "aten.uniform")
_MORE_RANDOM = ("aten.exponential", "aten.native_dropout", "aten.poisson", "aten.alpha_dropout", "aten.feature_dropout")


def with_option(target: str, name: str, value: str) -> str:
    """The backend string with one option set."""
    from fuzzer.backends.spec import BackendSpec

    spec = BackendSpec.parse(target)
    return str(replace(spec, options={**spec.options, name: value}))


@register
class Flush(Intervention):
    name = "flush"
    changed = "subnormal numbers flushed to zero on both sides"
    confirms = ("numeric/subnormal",)
    fresh = True

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(adaptation=Adaptation(flush=True), both=True, fresh=True))


@register
class FullPrecision(Intervention):
    name = "full-precision"
    changed = "full precision on"
    confirms = ("numeric/reduced-precision", "numeric/overflow")

    def variants(self, finding: Finding) -> Iterable[Variant]:
        if finding.spec.device == "cuda" and finding.spec.runtime != "onnxruntime":
            yield Variant(change=Change(target=with_option(finding.target, "tf32", "false")), words="TF32 off")
        if finding.spec.runtime == "inductor":
            casts = Adaptation(inductor={"emulate_precision_casts": True})
            yield Variant(change=Change(adaptation=casts), words="Inductor emulates eager mode's casts")
        yield Variant(
            change=Change(adaptation=Adaptation(float32=True), both=True), words="no 16-bit floats, both sides"
        )

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        """NaN and infinities that a wider float does without are of the narrow one's range, at whatever scale."""
        trial = super().attempt(finding, rerun)
        suspected = finding.label.name in ("numeric/overflow", "numeric/nonfinite")
        if not trial.gone or not suspected or finding.difference.kind is not Kind.NONFINITE:
            return trial
        tf32 = trial.change.target is not None  # which has the range of float32
        return replace(trial, label="numeric/reduced-precision" if tf32 else "numeric/overflow")


@register
class Float64(Intervention):
    name = "float64"
    changed = "both sides in float64"
    confirms = ("numeric/accumulation", "numeric/rounding")

    def applies(self, finding: Finding) -> bool:
        return bool(finding.floats())

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(adaptation=Adaptation(float64=True), both=True))


@register
class StableOrder(Intervention):
    name = "stable-order"
    changed = "sort, topk and argmax break ties by position, on both sides"
    confirms = ("order/tie",)

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(adaptation=Adaptation(order="stable"), both=True))


@register
class OrderBeforeNms(Intervention):
    name = "order-before-nms"
    changed = "NMS takes its boxes in a fixed order, on both sides"
    confirms = ("order/nms",)

    def applies(self, finding: Finding) -> bool:
        return finding.has_boxes()

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(adaptation=Adaptation(order="nms"), both=True), words="score, then box")
        yield Variant(change=Change(adaptation=Adaptation(order="nms-quantised"), both=True), words="scores quantised")


@register
class Copies(Intervention):
    name = "copies"
    changed = "copies of the inputs and of the parameters handed in"
    confirms = ("state/mutation",)

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(adaptation=Adaptation(copies=True), both=True))


@register
class ReferenceGenerator(Intervention):
    """Whether the model draws random numbers is asked first: the reference, seeded otherwise, must answer otherwise."""

    name = "reference-generator"
    changed = "random numbers from the reference's generator"
    confirms = ("state/rng",)

    def variants(self, finding: Finding) -> Iterable[Variant]:
        if finding.spec.runtime == "inductor":
            yield Variant(
                change=Change(adaptation=Adaptation(inductor={"fallback_random": True})), words="fallback_random"
            )

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        draws = self._draws(finding, rerun)
        if not draws:
            detail = "the reference answers the same whatever its generator is seeded with"
            return Trial(self.name, self.changed, Seen.NOTHING, size(finding.examined), detail=detail)
        trial = super().attempt(finding, rerun)
        if trial.gone:
            return trial
        captured = Change(example=finding.sample, adaptation=Adaptation(prefix=0))
        baseline = self._run(finding, rerun, Variant(change=captured))
        names = list(rerun.evidence.get("operators", []))
        random = tuple(i for i, name in enumerate(names) if str(name).startswith((*_RANDOM, *_MORE_RANDOM)))
        if baseline.seen is Seen.NOTHING or not random:
            return trial
        there = Change(example=finding.sample, adaptation=Adaptation(eager=random))
        return self._run(finding, rerun, Variant(change=there, words=f"{names[random[0]]} in eager mode"))

    @staticmethod
    def _draws(finding: Finding, rerun: Rerun) -> bool:
        before = finding.examined.reference.leaves
        after = rerun(finding.sample, Change(rng_seed=finding.rng_seed + 1)).reference.leaves
        return before is not None and after is not None and not _equal(before, after)


def _equal(left: Leaves, right: Leaves) -> bool:
    if left.keys() != right.keys():
        return False
    for path, one in left.items():
        other = right[path]
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            alike = one.shape == other.shape and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
        else:
            alike = one is other or one == other
        if not alike:
            return False
    return True


@register
class FreshProcess(Intervention):
    """A backend whose answers depend on the calls before says in each fresh process the same first thing, and then
    another, from which it does not waver; one that wavers says something else each time."""

    name = "fresh-process"
    changed = "fresh processes, the same input"
    confirms = ("state/recompile",)
    fresh = True

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(fresh=True))

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        before = size(finding.examined)
        wavers = finding.difference.kind is Kind.NONDETERMINISM
        try:
            firsts = [rerun(finding.sample, Change(fresh=True)) for _ in range(FIRSTS if wavers else 1)]
            laters = [rerun(finding.sample) for _ in range(1 + LATERS)][1:] if wavers else []
        except CannotRerun as error:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=str(error))
        if not wavers:
            return Trial(self.name, self.changed, finding.judged(firsts[0]), before, size(firsts[0]))
        answers = [_side(finding, one).leaves for one in firsts]
        if answers[0] is None or any(one is None or not _equal(answers[0], one) for one in answers):
            return Trial(self.name, self.changed, Seen.UNCHANGED, before, "", "the first answers differ")
        if not all(_wavers(one) for one in firsts):
            return Trial(self.name, self.changed, Seen.UNCHANGED, before, "", "not in each of them")
        if any(_wavers(one) for one in laters):
            return Trial(self.name, self.changed, Seen.UNCHANGED, before, "", "later calls disagree too")
        detail = f"the first answer is the same in {FIRSTS} of them; later calls in one process agree with each other"
        return Trial(self.name, self.changed, Seen.GONE, before, "", detail, Change(fresh=True))


def _side(finding: Finding, examined: Examined) -> Answer:
    return examined.reference if finding.difference.blame is Blame.REFERENCE else examined.target


def _wavers(examined: Examined) -> bool:
    return any(one.kind is Kind.NONDETERMINISM for one in examined.verdict.differences)


@register
class Deterministic(Intervention):
    name = "deterministic"
    changed = "deterministic algorithms, one thread"
    confirms = ("state/nondeterminism",)
    fresh = True

    def variants(self, finding: Finding) -> Iterable[Variant]:
        target = with_option(finding.target, "threads", "1") if "threads" in finding.spec.options else None
        yield Variant(change=Change(target=target, adaptation=Adaptation(deterministic=True), both=True, fresh=True))


@register
class LongerDeadline(Intervention):
    """A hang is one where three times the deadline does not help either."""

    name = "longer-deadline"
    changed = "three times the deadline"
    confirms = ("execution/hang",)
    fresh = True

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=Change(fresh=True, deadline=3.0))


@register
class PerturbedReference(Intervention):
    """Runs of the reference under random rounding, which the judge has made: how far do they reach?"""

    name = "perturbed-reference"
    changed = "the reference under random rounding"
    confirms = ("numeric/rounding",)

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=NOTHING)

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        before = size(finding.examined)
        oracle, path = finding.examined.oracle, finding.difference.path
        sides = [(finding.examined.reference.leaves or {}).get(path), (finding.examined.target.leaves or {}).get(path)]
        if oracle is None or not all(isinstance(side, Tensor) for side in sides):
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail="there was no oracle to ask")
        left, right = (side.double() for side in sides if isinstance(side, Tensor))
        plain = oracle.plain.get(path)
        moved = [draw[path].double() - plain.double() for draw in oracle.draws if _alike(draw.get(path), plain)]  # type: ignore[union-attr]
        if left.shape != right.shape or not moved:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail="the runs cannot be compared")
        reach = float(torch.stack(moved).abs().nan_to_num().max())
        gap = float((left - right).abs().nan_to_num().max())
        seen = Seen.GONE if gap <= THRESHOLD * reach else Seen.UNCHANGED
        detail = f"its runs reach {reach:.3g} from it, the sides are {gap:.3g} apart"
        return Trial(self.name, self.changed, seen, before, "", detail)


def _alike(one: object, other: object) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
