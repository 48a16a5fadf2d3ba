"""Interventions: a cause is proven by a rerun with one thing changed. The faults are planted here, in process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.session import Answer
from fuzzer.diagnose import amend, suspected
from fuzzer.diagnose.engine import Diagnosed, diagnose
from fuzzer.diagnose.finding import Finding, Seen, Trial
from fuzzer.diagnose.interventions import Intervention, Variant, register, registered
from fuzzer.diagnose.label import TAXONOMY
from fuzzer.diagnose.plan import FIRST, OWN, THEN
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change
from fuzzer.diagnose.stage import climb, rungs
from fuzzer.errors import SpecError
from fuzzer.verify.compare import compare
from fuzzer.verify.examine import Examined
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
Side = Callable[[Mapping[str, Tensor]], Tensor]


class Sides:
    """Reruns of two functions; every difference is the target's. Remembers what was asked."""

    def __init__(self, reference: Side, target: Side, refuses: Callable[[Change], str] = lambda change: "") -> None:
        self._sides = reference, target
        self._refuses = refuses
        self.asked: list[Change] = []
        self.evidence: Mapping[str, Any] = {}

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        self.asked.append(change)
        if self._refuses(change):
            raise CannotRerun(self._refuses(change))
        left, right = ({"$": side(sample)} for side in self._sides)
        found = compare(left, right)
        for difference in found.differences:
            difference.blame = Blame.TARGET
        outcome = Outcome.MISMATCH if found.differences else Outcome.PASS
        return Examined(Verdict(outcome, differences=found.differences), Answer(left), Answer(right))

    def seconds(self, sample: Mapping[str, Tensor], change: Change, times: int) -> float | None:
        return 0.001 * times


def diagnosed(
    label: str, x: Tensor, reference: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor], **more: Any
) -> Diagnosed:
    sides = Sides(lambda sample: reference(sample["x"]), lambda sample: target(sample["x"]), **more)
    sample = {"x": x}
    finding = Finding(sample, sides(sample), suspected(label), "eager:cpu", {"x": torch.ones_like(x)})
    return diagnose(finding, sides, clock=lambda: 0.0, budget_s=10.0)


def test_a_tie_is_proven_by_breaking_it() -> None:
    found = diagnosed(
        "order/tie",
        torch.tensor([3.0, 1.0, 3.0, 2.0]),
        lambda x: torch.tensor(x.tolist().index(max(x))),
        lambda x: torch.tensor(len(x) - 1 - x.tolist()[::-1].index(max(x))),
    )
    assert str(found.label) == "order/tie"
    assert [trial.name for trial in found.trials] == ["ties"]
    assert "gone" in found.evidence[0]


def test_a_fault_that_any_change_hides_is_not_called_a_tie() -> None:
    """The placebo: values that are only nudged, with ties that stay ties, hide this one too."""
    x = torch.tensor([3.0, 1.0, 3.0, 2.0])
    found = diagnosed("order/tie", x, lambda y: y.argmax(), lambda y: y.argmax() + int(torch.equal(y, x)))
    assert str(found.label) == "order/tie?"
    assert "keeps the cause" in found.trials[0].detail


@pytest.mark.parametrize(
    ("label", "x", "reference", "target"),
    [
        ("numeric/nonfinite", [1.0, NAN], lambda x: x.max(), lambda x: x.nan_to_num(-9.0).max()),
        ("numeric/signed-zero", [1.0, -0.0], lambda x: 1 / (x + 0.0), lambda x: 1 / x),
        ("numeric/overflow", [2.0**17, 1.0], lambda x: x, lambda x: x.half().float()),
        ("numeric/integer", [1e20, 5.0], lambda x: (x == 5).long(), lambda x: (x == 5).long() + (x > 1e19).long()),
    ],
)
def test_a_cause_in_the_input_is_proven_by_taking_it_away(
    label: str, x: list[float], reference: Callable[[Tensor], Tensor], target: Callable[[Tensor], Tensor]
) -> None:
    assert str(diagnosed(label, torch.tensor(x), reference, target).label) == label


def test_a_wrong_value_that_only_repeated_indices_show_is_named_after_them() -> None:
    index = torch.tensor([1, 1, 0])
    add = lambda i: torch.zeros(8).index_add(0, i, torch.ones(len(i)))  # noqa: E731
    found = diagnosed("numeric/wrong-value", index, add, lambda i: add(i.unique()))
    assert str(found.label) == "order/duplicate-index"


def test_an_answer_that_depends_on_its_batch_is_proven_by_copies_of_the_sample() -> None:
    x = torch.tensor([[1.0, 2.0], [5.0, 9.0]])
    found = diagnosed("numeric/wrong-value", x, lambda y: y / y.amax(1, keepdim=True), lambda y: y / y.max())
    assert str(found.label) == "state/batch"


class ByTheBatch(Sides):
    """A judge that lets a gap pass where all rows are alike: their noise floor is another, their answers are not."""

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        found = super().__call__(sample, change)
        if bool((sample["x"] == sample["x"][0]).all()):
            found.verdict = Verdict(Outcome.PASS)
        return found


def test_a_side_that_says_of_a_sample_what_it_said_in_another_batch_does_not_depend_on_it() -> None:
    sides = ByTheBatch(lambda s: s["x"], lambda s: s["x"] * (1 + 2.0**-12))
    sample = {"x": torch.tensor([[1.0, 2.0], [5.0, 9.0]])}
    finding = Finding(sample, sides(sample), suspected("numeric/wrong-value"), "eager:cpu", sample)
    trial = registered()["alone"].attempt(finding, sides)
    assert trial.seen is Seen.NOTHING
    assert "both sides say of the sample what they said" in trial.detail


def test_a_dimension_that_the_reference_computes_along_is_no_batch() -> None:
    """Its first element is the same whatever follows, so that the reference seems not to depend on its neighbours."""
    x = torch.tensor([5.0, 1.0, 2.0])
    wrong = lambda y: y.cumsum(0) + 9.0 * (y != y[0]).any() * torch.tensor([1.0, 0, 0])  # noqa: E731
    found = diagnosed("numeric/wrong-value", x, lambda y: y.cumsum(0), wrong)
    assert str(found.label) == "numeric/wrong-value?"
    alone = next(trial for trial in found.trials if trial.name == "alone")
    assert "no batch: the reference's answer for sample 1" in alone.detail


@pytest.mark.parametrize("most", [3e38, 1e38, 1e25, 300.0])
def test_an_overflow_is_scaled_away_however_large_the_inputs_are(most: float) -> None:
    x = torch.tensor([most, 2.0])
    found = diagnosed("numeric/overflow", x, lambda y: y, lambda y: torch.where(y.exp().isinf(), INF, y))
    assert str(found.label) == "numeric/overflow"


def test_inputs_of_other_sizes_are_each_scaled_down_to_about_one() -> None:
    sides = Sides(lambda s: (s["x"].log() + s["y"].log()).exp(), lambda s: s["x"].square() * s["y"] / s["x"])
    sample = {"x": torch.tensor([1e30]), "y": torch.tensor([2.0**-100])}
    finding = Finding(sample, sides(sample), suspected("numeric/overflow"), "eager:cpu", sample)
    words = [variant.words for variant in registered()["scale-down"].variants(finding)]
    assert words == ["2^-4", "2^-12", "2^-32", "2^-64", "2^-99", "each to about 1"]


@pytest.mark.parametrize(("wrong", "left"), [(0.0, "numeric/nonfinite"), (4.0, "numeric/overflow")])
def test_an_overflow_is_ruled_out_only_by_what_inputs_of_about_one_show_as_well(wrong: float, left: str) -> None:
    """By the first fault at each scale; the other is finite from 4 down, where another error of its own is left."""

    class Only(Intervention):
        name = "test-only"
        changed = "everything"
        confirms = ("numeric/nonfinite", "numeric/overflow")

        def variants(self, finding: Finding) -> list[Variant]:
            return []

        def attempt(self, finding: Finding, rerun: Any) -> Trial:
            return Trial(self.name, self.changed, Seen.GONE)

    target = lambda s: torch.where(s["x"].abs() > wrong, INF, s["x"] + 0.01)  # noqa: E731
    sides, sample = Sides(lambda s: s["x"], target), {"x": torch.tensor([1e38, 1e37])}
    finding = Finding(sample, sides(sample), suspected("numeric/overflow"), "eager:cpu", sample)
    known = {"scale-down": registered()["scale-down"], "test-only": Only()}
    found = diagnose(finding, sides, clock=lambda: 0.0, budget_s=10.0, known=known)
    assert str(found.label) == left


def term_by_term(x: Tensor) -> Tensor:
    return torch.from_numpy(np.add.accumulate(x.numpy())[-1:])  # NumPy adds one by one


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (term_by_term, "numeric/accumulation"),
        (lambda x: x.sum(0, keepdim=True) * 0.99, "numeric/accumulation?"),
        (lambda x: x[:-1].sum(0, keepdim=True), "numeric/accumulation?"),
        (lambda x: x.sum(0, keepdim=True) - 1.0 * (x > 0).all(), "numeric/accumulation?"),
    ],
    ids=["term by term", "a factor", "the last is left out", "all of them"],
)
def test_accumulated_rounding_shrinks_with_the_terms_and_no_other_fault_does(
    target: Callable[[Tensor], Tensor], label: str
) -> None:
    x = torch.full((2**18,), 0.1)
    found = diagnosed("numeric/accumulation", x, lambda y: y.sum(0, keepdim=True), target, refuses=no_other)
    assert str(found.label) == label


def no_other(change: Change) -> str:
    return "" if change == NOTHING else "nothing but the input changes here"


class Calls(Sides):
    """The target is wrong in its first `wrong` calls in a process, by what `by` says of the process; each rerun calls
    it twice."""

    def __init__(self, wrong: int, by: Callable[[int], float]) -> None:
        super().__init__(lambda s: s["x"], lambda s: s["x"])
        self._wrong, self._by = wrong, by
        self._processes, self._calls = 0, [0]

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        warm = self._calls
        if change.fresh:
            self._processes, self._calls = self._processes + 1, [0]
        answers = []
        for _ in range(2):
            self._calls[0] += 1
            answers.append(sample["x"] + self._by(self._processes) * (self._calls[0] <= self._wrong))
        self._calls = warm
        kind = Kind.NONDETERMINISM
        seen = [] if torch.equal(*answers) else [Difference("$", kind, "disagrees with itself", blame=Blame.TARGET)]
        verdict = Verdict(Outcome.MISMATCH if seen else Outcome.PASS, differences=seen)
        return Examined(verdict, Answer({"$": sample["x"]}), Answer({"$": answers[0]}))


@pytest.mark.parametrize(
    ("wrong", "by", "seen"),
    [
        (1, lambda process: 1.0, Seen.GONE),
        (1, lambda process: 1.0 + process, Seen.UNCHANGED),
        (2, lambda process: 1.0, Seen.UNCHANGED),
    ],
    ids=["the first call", "another first answer in each process", "not twice in a fresh process"],
)
def test_a_fault_of_the_first_call_is_the_same_in_every_process_and_gone_afterwards(
    wrong: int, by: Callable[[int], float], seen: Seen
) -> None:
    sample = {"x": torch.ones(2)}
    sides = Calls(1, by)
    finding = Finding(sample, sides(sample), suspected("state/nondeterminism"), "eager:cpu", sample)
    trial = registered()["fresh-process"].attempt(finding, Calls(wrong, by))
    assert trial.seen is seen
    assert trial.detail


def test_what_cannot_be_run_proves_nothing_and_says_why() -> None:
    x = torch.tensor([1.0, 2.0])
    refuses = lambda change: "no such graph" if change != NOTHING else ""  # noqa: E731
    found = diagnosed("numeric/wrong-value", x, lambda y: y, lambda y: y + 1, refuses=refuses)
    assert str(found.label) == "numeric/wrong-value?"
    assert "no such graph" in found.evidence[-1]


def test_without_time_nothing_is_tried_and_the_label_stays_suspected() -> None:
    sides = Sides(lambda s: s["x"], lambda s: s["x"] + 1)
    sample = {"x": torch.ones(2)}
    finding = Finding(sample, sides(sample), suspected("numeric/wrong-value"), "eager:cpu", sample)
    found = diagnose(finding, sides, clock=iter(range(0, 1000, 100)).__next__, budget_s=50.0)
    assert str(found.label) == "numeric/wrong-value?"
    assert found.unfinished
    assert not found.trials


def test_every_label_with_an_intervention_has_one_that_is_registered() -> None:
    known = registered()
    never = {"execution/unsupported", "execution/crash", "structure/arity"}  # no finding, or proven by being seen again
    for label in set(TAXONOMY) - never:
        assert OWN[label], label
    for names in (*OWN.values(), *FIRST.values(), *THEN.values()):
        assert set(names) <= set(known)


def test_an_intervention_of_ones_own_is_tried_for_the_label_it_confirms() -> None:
    class Doubled(Intervention):
        name = "test-doubled"
        changed = "inputs doubled"
        confirms = ("numeric/rounding",)

        def variants(self, finding: Finding) -> list[Variant]:
            return [Variant({name: t * 2 for name, t in finding.sample.items()})]

    known = {"test-doubled": Doubled()}
    sides = Sides(lambda s: s["x"], lambda s: s["x"] + (s["x"] < 2))
    sample = {"x": torch.ones(2)}
    finding = Finding(sample, sides(sample), suspected("numeric/rounding"), "eager:cpu", sample)
    found = diagnose(finding, sides, clock=lambda: 0.0, budget_s=10.0, known=known)
    assert str(found.label) == "numeric/rounding"
    assert found.trials[0].seen is Seen.GONE


def test_a_change_of_the_backend_of_ones_own_that_helps_is_told_as_a_mitigation() -> None:
    class Slower(Intervention):
        name = "test-slower"
        changed = "the target's slow kernels"
        confirms = ("numeric/wrong-value",)

        def variants(self, finding: Finding) -> list[Variant]:
            return [Variant(change=Change(target="eager:cpu?threads=2"))]

    class Other(Staged):
        def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
            return super().__call__(sample, change if change.target else Change(target="inductor:cpu"))

    sides, sample = Other({"inductor:cpu"}), {"x": torch.ones(2)}
    finding = Finding(sample, sides(sample), suspected("numeric/wrong-value"), "eager:cpu", sample)
    found = diagnose(finding, sides, clock=lambda: 0.0, budget_s=10.0, known={"test-slower": Slower()})
    assert [(one.what, one.how, one.restores) for one in found.mitigations] == [
        ("the target's slow kernels", "eager:cpu?threads=2", True)
    ]


def test_an_intervention_that_confirms_no_label_is_refused() -> None:
    class Wrong(Intervention):
        name = "test-wrong"
        changed = "something"
        confirms = ("order/ties",)

        def variants(self, finding: Finding) -> list[Variant]:
            return []

    with pytest.raises(SpecError, match="did you mean 'order/tie'"):
        register(Wrong)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, -2.0, 0.5, INF, NAN]), min_size=1, max_size=12))
def test_broken_ties_hold_no_value_twice_and_keep_what_was_alone(values: list[float]) -> None:
    found = amend.broken_ties(torch.tensor(values)).tolist()
    assert len({repr(value) for value in found}) == len(found)
    assert all(values.count(v) > 1 or v == f or v != v for v, f in zip(values, found, strict=True))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_distinct_indices_keep_first_occurrences(values: list[int]) -> None:
    found = amend.distinct(torch.tensor(values), 11)
    assert found is not None
    assert len(set(found.tolist())) == len(values)
    firsts = [i for i, value in enumerate(values) if value not in values[:i]]
    assert all(int(found[i]) == values[i] for i in firsts)
    assert amend.distinct(torch.tensor([0, 0, 0]), 1) is None


def test_the_ladder_of_a_target_ends_with_the_target_itself() -> None:
    assert [rung.stage for rung in rungs("inductor:cpu?dynamic=true")] == [
        "dynamo",
        "autograd",
        "decompositions",
        "inductor",
    ]
    assert rungs("inductor:cpu?dynamic=true")[2].backend == "aot_eager:cpu?decomp=true&dynamic=true"
    opts = [rung.backend.partition("opt=")[2] for rung in rungs("onnxruntime:cpu?opt=extended")]
    assert opts == ["none", "basic", "extended"]
    assert rungs("eager:cuda") == []


class Staged(Sides):
    """Backends of which only those in `wrong` are wrong; without `culprit` (a switch of Inductor's) none is."""

    def __init__(self, wrong: set[str], culprit: str = "") -> None:
        super().__init__(lambda s: s["x"], lambda s: s["x"])
        self._wrong, self._culprit = wrong, culprit

    def __call__(self, sample: Mapping[str, Tensor], change: Change = NOTHING) -> Examined:
        wrong = (change.target or "inductor:cpu") in self._wrong and self._culprit not in change.adaptation.inductor
        self._sides = (lambda s: s["x"]), (lambda s: s["x"] + wrong)
        return super().__call__(sample, change)


@pytest.mark.parametrize(
    ("wrong", "culprit", "stage", "helps", "reruns"),
    [
        ({"inductor:cpu"}, "", "inductor: lowering", "aot_eager:cpu?decomp=true in its place", 2),
        ({"inductor:cpu"}, "pattern_matcher", "inductor: pattern matcher", "Inductor's pattern matcher off", 3),
        (
            {"aot_eager:cpu", "aot_eager:cpu?decomp=true", "inductor:cpu"},
            "",
            "autograd",
            "dynamo:cpu in its place",
            3,
        ),
        ({"dynamo:cpu", "aot_eager:cpu", "aot_eager:cpu?decomp=true", "inductor:cpu"}, "", "dynamo", "", 3),
    ],
)
def test_the_stage_is_the_first_that_shows_it(
    wrong: set[str], culprit: str, stage: str, helps: str, reruns: int
) -> None:
    sides, sample = Staged(wrong, culprit), {"x": torch.ones(2)}
    finding = Finding(sample, sides(sample), suspected("numeric/wrong-value"), "inductor:cpu", sample)
    sides.asked.clear()
    found = climb(finding, sides, lambda: False)
    assert found.stage == stage
    assert [words for words, _ in found.without][:1] == ([helps] if helps else [])
    assert len(sides.asked) == reruns


@settings(max_examples=50, deadline=None)
@given(
    st.builds(
        Adaptation,
        order=st.sampled_from(["", "stable", "nms"]),
        float32=st.booleans(),
        eager=st.none() | st.tuples(st.integers(0, 5)),
        prefix=st.none() | st.integers(0, 9),
        inductor=st.dictionaries(st.sampled_from(["fallback_random"]), st.booleans()),
    )
)
def test_an_adaptation_reads_back_from_its_json(adaptation: Adaptation) -> None:
    assert Adaptation.from_json(adaptation.to_json()) == adaptation
