"""Which operator it is: the model's graph is cut, its beginning runs in eager mode, the rest on the target.

With none of the operators in eager mode the disagreement is there, with all of them it is gone; a binary search finds
the one at which it goes. That this operator alone, in eager mode while all others stay on the target, makes it go away
is the proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.operators import EXACT
from fuzzer.diagnose import facts
from fuzzer.diagnose.finding import Finding, Seen, Trial, size
from fuzzer.diagnose.interventions import Intervention, Variant, register
from fuzzer.diagnose.rerun import CannotRerun, Change, Rerun
from fuzzer.verify.examine import Examined

#: Graphs with more operators are not searched: each step prepares the target anew.
MOST_OPERATORS = 2000
#: Operators computed by formulas of limited accuracy, by their ATen names.
SPECIAL = frozenset(
    """exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan atan2 asinh acosh atanh sigmoid
    log_sigmoid softplus gelu elu selu celu silu mish hardswish erf erfc erfinv lgamma digamma pow rsqrt sqrt softmax
    log_softmax logaddexp logaddexp2 logsumexp logcumsumexp logit xlogy sinc polygamma binary_cross_entropy_with_logits
    soft_margin_loss""".split()
)
#: ATen's own mark of special functions (`special_erfc`).
_SPECIAL = "special_"
#: Statistics, by their ATen names: some of their formulas cancel, as E[x²] − E[x]² does where the mean is large.
STATISTICS = frozenset(
    """var std var_mean std_mean layer_norm native_layer_norm rms_norm group_norm native_group_norm instance_norm
    batch_norm norm linalg_norm linalg_vector_norm cdist _cdist_forward cosine_similarity cov corrcoef""".split()
)
#: A special function that is off by more than this share of its value is not approximated: it is wrong.
SLIGHT = 2.0**-4
#: At these sizes a formula that loses accuracy elsewhere is off by this share of the largest value at most.
MIDDLE, _MIDDLE_OFF, _SPREADS = (2.0**-3, 2.0), 2.0**-8, 2
#: Errors of so many elements, before and after the input was scaled by this, are alike from this cosine on.
_ENOUGH, NUDGE, _ALIKE = 8, 1.011, 0.9
#: Operators whose result is one of few: a rounding to integers, an order, a kept box.
CHOOSES = frozenset("round floor ceil trunc sign sort topk max min argsort max_pool2d_with_indices nms".split())


@register
class Operator(Intervention):
    name = "operator"
    most: ClassVar[int] = MOST_OPERATORS
    changed = "one operator in eager mode, the others on the target"
    confirms: ClassVar[tuple[str, ...]] = (
        "numeric/wrong-value",
        "numeric/approximation",
        "numeric/nonfinite",
        "numeric/overflow",
        "numeric/subnormal",
        "numeric/integer",
        "numeric/reduced-precision",
        "numeric/signed-zero",
        "order/nms",
        "execution/exception",
    )

    def variants(self, finding: Finding) -> Iterable[Variant]:
        yield Variant(change=_cut(finding, Adaptation(prefix=0)), words="none")

    def attempt(self, finding: Finding, rerun: Rerun) -> Trial:
        before = size(finding.examined)
        (none,) = self.variants(finding)
        baseline = self._run(finding, rerun, none)
        names = [str(name) for name in rerun.evidence.get("operators", [])]
        if baseline.seen is Seen.NOTHING:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=baseline.detail)
        if baseline.gone or not names:
            detail = "the captured graph of the model does not show it"
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=detail)
        if len(names) > self.most:
            return Trial(self.name, self.changed, Seen.NOTHING, before, detail=f"{len(names)} operators are too many")
        at = self._first_gone(finding, rerun, len(names))
        return self._proof(finding, rerun, names, at)

    def _first_gone(self, finding: Finding, rerun: Rerun, count: int) -> int:
        """The number of the operator that has to be in eager mode, where all before it are."""
        low, high = 0, count  # with `low` operators in eager mode it is there, with `high` it is gone
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._run(finding, rerun, Variant(change=_cut(finding, Adaptation(prefix=middle))))
            low, high = (low, middle) if trial.gone else (middle, high)
        return high - 1

    def _proof(self, finding: Finding, rerun: Rerun, names: list[str], at: int) -> Trial:
        name = names[at]
        alike = tuple(i for i, other in enumerate(names) if other == name)
        trial = Trial(self.name, self.changed, Seen.NOTHING)
        for kept in dict.fromkeys([(at,), alike]):
            which = f"{name}, number {at + 1} of {len(names)}" if len(kept) == 1 else f"all {len(kept)} calls of {name}"
            words = Variant(change=_cut(finding, Adaptation(eager=kept)), words=which)
            trial = self._run(finding, rerun, words)
            if trial.gone:
                return self._named(finding, rerun, trial, name, names[at + 1 :])
        return trial

    def _named(self, finding: Finding, rerun: Rerun, trial: Trial, operator: str, later: Sequence[str] = ()) -> Trial:
        """The proof with the label that the operator gives it. `later`: the operators after it."""
        name, suspected = _bare(operator), finding.label.name
        if suspected == "order/nms" and not any(suppresses(one) for one in (operator, *later)):
            known = facts.finite(finding.sample.values())
            label = "numeric/wrong-value" if known else "numeric/nonfinite"
            return replace(trial, label=label, detail=f"neither {operator} nor what follows it is an NMS")
        if suspected not in ("numeric/wrong-value", "numeric/approximation", "numeric/reduced-precision"):
            return trial
        if _is_short(finding):
            return replace(trial, label="numeric/reduced-precision")
        smooth = self._follows(finding, rerun) if suspected == "numeric/reduced-precision" else None
        if smooth is False:
            return replace(trial, detail="another input, a hundredth larger, has other errors: they are of rounding")
        words = "" if smooth is None else "an input that is a hundredth larger has the same errors: of a formula"
        if name in STATISTICS:
            # A formula that cancels has digits to spare in float64; a rule that is wrong is wrong there too.
            wide = Variant(change=Change(adaptation=Adaptation(float64=True), both=True))
            formula = self._run(finding, rerun, wide).gone
            label = "numeric/approximation" if formula else "numeric/wrong-value"
            return replace(trial, label=label, detail="both sides in float64: gone" if formula else words)
        if name in SPECIAL or name.startswith(_SPECIAL):
            if suspected == "numeric/approximation" or _slight(finding):
                return replace(trial, label="numeric/approximation", detail=words)
            if self._right_in_the_middle(finding, rerun):
                detail = "inputs of ordinary size show no such error: a formula that loses accuracy elsewhere"
                return replace(trial, label="numeric/approximation", detail=detail)
            return replace(trial, label="numeric/wrong-value", detail=words)
        if suspected == "numeric/approximation":
            return replace(trial, label="numeric/wrong-value", detail=f"{operator} is no special function")
        return replace(trial, label="numeric/wrong-value" if smooth else "", detail=words)

    @staticmethod
    def _right_in_the_middle(finding: Finding, rerun: Rerun) -> bool:
        """Whether the sides are close where inputs are of ordinary size and either sign, as a wrong rule's are not."""
        path = finding.difference.path
        if not finding.floats():
            return False
        for draw in range(_SPREADS):
            spread = {name: _spread(t, draw + 7 * i) for i, (name, t) in enumerate(finding.floats().items())}
            try:
                seen = rerun({**finding.sample, **spread})
            except CannotRerun:
                return False
            one, other = ((side.leaves or {}).get(path) for side in (seen.reference, seen.target))
            if not (isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape):
                return False
            left, right = facts.wide(one), facts.wide(other)
            kept = left.isfinite() & right.isfinite()
            if not bool(kept.any()) or not torch.equal(left.isnan(), right.isnan()):
                return False
            if bool((left - right).abs()[kept].max() > _MIDDLE_OFF * left.abs()[kept].max()):
                return False
        return True

    def _follows(self, finding: Finding, rerun: Rerun) -> bool | None:
        """Whether the errors change little with the input, as a formula's do, and rounding's do not.

        None where there are too few to tell.
        """
        before = _errors(finding, finding.examined)
        if before is None or before.numel() < _ENOUGH or not finding.floats():
            return None
        moved = {name: (t * NUDGE).to(t.dtype) for name, t in finding.floats().items()}
        try:
            after = _errors(finding, rerun({**finding.sample, **moved}))
        except CannotRerun:
            return None
        if after is None or after.shape != before.shape:
            return None
        alike = float((before * after).sum() / (before.norm() * after.norm()))
        return None if alike != alike else alike > _ALIKE


def _spread(tensor: Tensor, seed: int) -> Tensor:
    """Random numbers of ordinary size in either sign, in the shape and dtype of `tensor`."""
    generator = torch.Generator().manual_seed(seed)
    low, high = MIDDLE
    sizes = low + (high - low) * torch.rand(tensor.shape, generator=generator)
    signs = torch.where(torch.arange(tensor.numel()) % 2 == seed % 2, 1.0, -1.0).reshape(tensor.shape)
    return (sizes * signs).to(tensor.dtype)


def _bare(operator: str) -> str:
    """`erfc` of `aten.erfc.default`."""
    return operator.split(".")[1] if "." in operator else operator


def suppresses(operator: str) -> bool:
    """Whether an operator, as `torchvision.nms`, suppresses boxes that overlap better ones."""
    name = _bare(operator).lower().replace("_", "")
    return "nms" in name or "nonmaxsuppression" in name


def _errors(finding: Finding, examined: Examined) -> Tensor | None:
    """Target minus reference at the leaf that differs, in one dimension; None where they are no finite floats."""
    path = finding.difference.path
    left, right = ((side.leaves or {}).get(path) for side in (examined.reference, examined.target))
    if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.shape == right.shape):
        return None
    found = (facts.wide(right) - facts.wide(left)).reshape(-1)
    return found if left.is_floating_point() and bool(found.isfinite().all()) else None


def _is_short(finding: Finding) -> bool:
    """Whether the target's values are those of a narrower float, however they are computed."""
    path = finding.difference.path
    left, right = ((side.leaves or {}).get(path) for side in (finding.examined.reference, finding.examined.target))
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
        return False
    if facts.shorter(right, left) is not None:
        return True
    truth = finding.examined.oracle and (finding.examined.oracle.truth or {}).get(path)
    if not isinstance(truth, Tensor) or right.shape != truth.shape or right.dtype != torch.float64:
        return False
    errors = facts.relative_errors(right, truth)
    return bool(errors.numel()) and facts.of_float32(facts.median(errors), float(errors.max()))


def _slight(finding: Finding) -> bool:
    """Whether the worst element is off by a small share of itself."""
    try:
        target, truth = float(finding.difference.target), float(finding.difference.truth)
    except ValueError:
        return False
    return abs(target - truth) <= SLIGHT * abs(truth)


@register
class ExactOperator(Operator):
    """A decision that the target takes otherwise from the very same bits hangs on no noise: its rule is another.

    Only for operators that choose, and for small graphs: near-ties are many. One that computes what it chooses by, as
    NMS does its overlaps, may round: it has to choose otherwise in float64 too, where none but an exact tie is left.
    """

    name = "exact-operator"
    changed = "one operator that only chooses in eager mode, the others on the target"
    confirms = ("numeric/wrong-value", "order/nms")
    most = 16

    def _proof(self, finding: Finding, rerun: Rerun, names: list[str], at: int) -> Trial:
        trial = super()._proof(finding, rerun, names, at)
        name = _bare(names[at])
        if not trial.gone or name in EXACT & CHOOSES:
            return trial
        if name not in CHOOSES and not suppresses(name):
            return replace(trial, seen=Seen.NOTHING, detail=f"{names[at]} computes values, which may differ by noise")
        wider = self._run(finding, rerun, Variant(change=Change(adaptation=Adaptation(float64=True), both=True)))
        if wider.seen not in (Seen.UNCHANGED, Seen.OTHER):
            return replace(
                trial, seen=Seen.NOTHING, detail=f"both sides in float64: {wider.seen} {wider.detail}".rstrip()
            )
        label = "order/nms" if suppresses(name) else "numeric/wrong-value"
        return replace(trial, label=label, detail="it chooses otherwise in float64 too: the tie is exact")


def _cut(finding: Finding, adaptation: Adaptation) -> Change:
    return Change(example=finding.sample, adaptation=adaptation)


def operator_of(trial: Trial) -> str:
    """The operator that an `operator` trial names, or an empty text."""
    if trial.name not in ("operator", "exact-operator") or not trial.gone:
        return ""
    inside = trial.changed.rpartition("(")[2].rstrip(")")
    return inside.rpartition(" of ")[2] if inside.startswith("all ") else inside.partition(",")[0]
