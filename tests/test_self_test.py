"""What an output can tell at all, and whether a comparison notices faults planted in it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaves
from fuzzer.verify.compare import compare
from fuzzer.verify.corruptions import Corruption, corruptions, self_test
from fuzzer.verify.ulp import ulp_distance
from fuzzer.verify.unanswered import OracleDown
from fuzzer.verify.vacuity import informative_leaves
from fuzzer.verify.verdict import Kind, Outcome, Verdict

NAMES = [
    "one element moved",
    "two elements swapped",
    "a leaf zeroed",
    "a NaN set",
    "a shape transposed",
    "an integer off by one",
    "a leaf dropped",
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def detections() -> Leaves:
    g = generator()
    return {
        "[0].boxes": torch.rand(20, 4, generator=g) * 300,
        "[0].scores": torch.rand(20, generator=g),
        "[0].labels": torch.randint(1, 90, (20,), generator=g),
    }


def planted(outputs: Leaves, informative: Collection[str] | None = None) -> dict[str, Corruption]:
    return {c.name: c for c in corruptions(outputs, generator(), informative=informative)}


def verdict_against(reference: Leaves, tolerance: Tolerance | None = None) -> Callable[[Leaves], Verdict]:
    def verdict_of(target: Leaves) -> Verdict:
        differences = compare(reference, target, tolerance=tolerance).differences
        return Verdict(Outcome.MISMATCH if differences else Outcome.PASS, differences=differences)

    return verdict_of


# Vacuity.


def reason(*values: object, tolerance: Tolerance | None = None) -> str | None:
    return informative_leaves([{"$": value} for value in values], tolerance).reasons.get("$")  # type: ignore[dict-item]


def test_outputs_that_depend_on_the_input_are_informative() -> None:
    found = informative_leaves([{"$": torch.randn(2, 5, generator=generator(i))} for i in range(3)])
    assert (found.informative, found.reasons, found.vacuous) == ({"$"}, {}, False)


def test_an_output_of_scale_1e_9_is_vacuous() -> None:
    """What torchvision's mobilenet_v2 gives with plain random weights."""
    tiny = [torch.randn(1, 1000, generator=generator(i)) * 1e-9 for i in range(2)]
    found = informative_leaves([{"$": value} for value in tiny])
    assert found.vacuous
    assert "tolerance 1e-06" in found.reasons["$"]


def test_an_output_that_is_always_zero_is_vacuous() -> None:
    """What torchvision's vit_b_16 gives with plain random weights."""
    assert reason(torch.zeros(1, 1000), torch.zeros(1, 1000)) == "constant whatever the input"


def test_an_output_that_hardly_depends_on_the_input_is_vacuous_however_wide_it_is() -> None:
    bias = torch.randn(1000, dtype=torch.float64, generator=generator())
    assert "over the inputs" in (reason(bias, bias + 1e-8) or "")


@pytest.mark.parametrize(("atol", "rtol", "vacuous"), [(0.9, 0.0, False), (1.1, 0.0, True), (0.0, 0.6, True)])
def test_a_tolerance_wider_than_the_spread_is_vacuous(atol: float, rtol: float, vacuous: bool) -> None:
    """Each element moves by 2 between the inputs, a standard deviation of 1; 0.6 · max|r| = 1.2."""
    values = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([-1.0, 1.0, 0.0])
    assert (reason(*values, tolerance=Tolerance(atol=atol, rtol=rtol)) is not None) == vacuous


def test_a_tolerance_as_wide_as_the_spread_is_vacuous() -> None:
    assert reason(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, 1.0]), tolerance=Tolerance(atol=1.0)) is not None


def test_one_wide_element_among_many_narrow_ones_does_not_make_a_leaf_informative() -> None:
    """A softmax whose values all lie far below the tolerance, but for one that moves past it."""
    first, second = torch.full((10_000,), 1e-4), torch.full((10_000,), 1e-4)
    second[0] = 5e-3
    assert "of its elements" in (reason(first, second, tolerance=Tolerance(atol=1e-3)) or "")
    assert reason(first, second) is None


def test_a_single_number_that_follows_the_input_is_informative() -> None:
    assert reason(torch.tensor(1.0), torch.tensor(2.0)) is None
    assert reason(torch.full((3,), 1.0), torch.full((3,), 2.0)) is None


def test_empty_and_nan_leaves_tell_nothing() -> None:
    assert reason(torch.empty(0, 4), torch.empty(0, 4)) == "empty"
    assert reason(torch.full((2,), math.nan), torch.full((2,), math.nan)) == "all NaN"
    assert reason(torch.tensor([math.inf]), torch.tensor([-math.inf])) == "no finite element"


def test_leaves_whose_shape_varies_are_informative_where_they_have_elements() -> None:
    assert reason(torch.zeros(3), torch.zeros(4)) is None
    assert reason(torch.zeros(0, 4), torch.zeros(0, 5)) == "empty"
    assert informative_leaves([{"a": torch.zeros(1)}, {}]).informative == {"a"}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64, torch.bool])
def test_integer_leaves_tell_something_where_they_change(dtype: torch.dtype) -> None:
    one, other = torch.tensor([1, 0]).to(dtype), torch.tensor([0, 1]).to(dtype)
    assert reason(one, other) is None
    assert reason(one, one.clone()) == "constant whatever the input"


def test_python_values_tell_nothing() -> None:
    assert reason(1.0, 2.0) == reason(torch.tensor(1.0), 2.0) == "not a tensor"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.bfloat16])
def test_other_float_formats_are_read(dtype: torch.dtype) -> None:
    assert reason(torch.tensor([1.0, 2.0]).to(dtype), torch.tensor([2.0, 4.0]).to(dtype)) is None


def test_the_largest_numbers_do_not_overflow_the_spread() -> None:
    big = torch.tensor([1.7e308, -1.7e308], dtype=torch.float64)
    assert reason(big, -big) is None


def test_one_output_is_not_enough() -> None:
    with pytest.raises(ValueError, match="two or more"):
        informative_leaves([{"$": torch.ones(3)}])


# Corruptions.


def test_each_fault_is_what_its_name_says() -> None:
    outputs = detections()
    boxes, labels = outputs["[0].boxes"], outputs["[0].labels"]
    assert isinstance(boxes, Tensor)
    assert isinstance(labels, Tensor)
    faults = planted(outputs)
    assert list(faults) == NAMES
    assert all(fault.applicable for fault in faults.values())
    # all but one in the largest leaf
    assert {fault.path for fault in faults.values()} == {"[0].boxes", "[0].labels"}

    def changed(name: str) -> Tensor:
        value = faults[name].leaves["[0].boxes"]
        assert isinstance(value, Tensor)
        return value

    moved = (changed("one element moved") - boxes).abs()
    assert int((moved > 0).sum()) == 1
    assert float(moved.max()) == pytest.approx(1e-3 * float(boxes.std(correction=0)), rel=1e-2)
    swapped = changed("two elements swapped")
    assert int((swapped != boxes).sum()) == 2
    assert swapped.argmax() == boxes.argmin()
    assert swapped.argmin() == boxes.argmax()
    assert not changed("a leaf zeroed").any()
    assert int(changed("a NaN set").isnan().sum()) == 1
    assert torch.equal(changed("a shape transposed"), boxes.T)
    off = faults["an integer off by one"].leaves["[0].labels"]
    assert isinstance(off, Tensor)
    assert int((off - labels).abs().sum()) == 1
    assert faults["a leaf dropped"].leaves.keys() == outputs.keys() - {"[0].boxes"}


def test_the_output_itself_is_not_touched() -> None:
    outputs = detections()
    before = copy.deepcopy(outputs)
    corruptions(outputs, generator())
    assert compare(before, outputs).differences == []


def test_faults_go_only_into_informative_leaves() -> None:
    faults = planted(detections(), informative={"[0].scores"})
    assert {fault.path for fault in faults.values() if fault.applicable} == {"[0].scores"}
    assert faults["an integer off by one"].why_not == "no leaf of that kind"
    assert faults["a shape transposed"].leaves["[0].scores"].shape == (20, 1)  # type: ignore[union-attr]


def test_a_leaf_that_hardly_spreads_moves_by_64_ulp() -> None:
    outputs: Leaves = {"$": torch.full((8,), 1.0)}
    fault = planted(outputs)["one element moved"].leaves["$"]
    assert int(ulp_distance(fault, outputs["$"]).max()) == 64  # type: ignore[arg-type]
    assert "equal" in planted(outputs)["two elements swapped"].why_not


def moved_by(leaf: Tensor, truth: Tensor | None) -> float:
    faults = corruptions({"$": leaf}, generator(), truth=None if truth is None else {"$": truth})
    wrong = {fault.name: fault for fault in faults}["one element moved"].leaves["$"]
    assert isinstance(wrong, Tensor)
    return float((wrong - leaf).abs().max())


def test_one_element_moves_past_what_the_models_own_rounding_does_but_within_the_spread() -> None:
    leaf = torch.randn(100, generator=generator())
    spread = float(leaf.double().std(correction=0))
    for error, step in ((0.0, 1e-3 * spread), (1e-3, 32e-3), (1.0, spread)):
        assert moved_by(leaf, leaf.double() + error) == pytest.approx(step, rel=1e-3)
    assert moved_by(leaf, None) == moved_by(leaf, leaf[:5].double()) == pytest.approx(1e-3 * spread, rel=1e-3)
    lonely = leaf.double()
    lonely[3] += 9.0  # one row that changed places is no distance
    assert moved_by(leaf, lonely) == pytest.approx(1e-3 * spread, rel=1e-3)


def test_without_an_oracle_the_self_test_goes_on_without_the_truth() -> None:
    def down() -> Leaves | None:
        raise OracleDown("there is no oracle")

    assert self_test(detections(), verdict_against(detections()), truth=down).ok


def test_the_next_largest_leaf_takes_a_fault_that_the_largest_cannot() -> None:
    outputs: Leaves = {"a": torch.zeros(10), "b": torch.ones(2)}
    assert planted(outputs)["a leaf zeroed"].path == "b"


@pytest.mark.parametrize(
    "leaf",
    [
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        torch.tensor([448.0, 448.0]).to(torch.float8_e4m3fn),
        torch.tensor([1.0, 57344.0]).to(torch.float8_e5m2),
        torch.tensor([1.0, 65504.0], dtype=torch.float16),
        torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16),
        torch.tensor([1 + 2j, 3 + 4j]),
        torch.tensor([0, 2**64 - 1], dtype=torch.uint64),
        torch.tensor([True, False]),
        torch.tensor(3.5),
        torch.tensor([1e308, -1e308], dtype=torch.float64),
        torch.arange(6.0).reshape(2, 3).T,
        torch.eye(2).to_sparse(),
        torch.empty(0, 4),
        torch.tensor([math.nan, math.inf]),
    ],
    ids=lambda leaf: f"{leaf.dtype}-{tuple(leaf.shape)}-{leaf.layout}",
)
def test_every_fault_that_applies_to_a_leaf_changes_it(leaf: Tensor) -> None:
    outputs: Leaves = {"$": leaf}
    faults = [fault for fault in corruptions(outputs, generator()) if fault.applicable]
    assert faults
    for fault in faults:
        assert compare(outputs, fault.leaves).differences, fault.name


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_faults_repeat_from_the_same_seed(seed: int, elements: int) -> None:
    outputs: Leaves = {"$": torch.randn(elements, generator=generator(seed))}
    once, again = corruptions(outputs, generator(seed)), corruptions(outputs, generator(seed))
    for a, b in zip(once, again, strict=True):
        assert compare(a.leaves, b.leaves).differences == []


# The self-test.


def test_the_comparison_catches_every_fault() -> None:
    result = self_test(detections(), verdict_against(detections()))
    assert result.ok
    assert result.caught == NAMES


def test_a_comparison_that_averages_fails() -> None:
    reference = {"$": torch.randn(1000, generator=generator())}

    def averages(target: Leaves) -> Verdict:
        value = target.get("$")
        if not isinstance(value, Tensor):
            return Verdict(Outcome.MISMATCH)
        gap = float((value.reshape(-1) - reference["$"]).nanmean().abs())
        return Verdict(Outcome.MISMATCH if gap > 1e-5 else Outcome.PASS)

    result = self_test(dict(reference), averages)
    assert not result.ok
    assert {"one element moved", "two elements swapped", "a NaN set", "a shape transposed"} <= set(result.missed)


def test_a_comparison_with_a_tolerance_wider_than_the_output_fails() -> None:
    outputs: Leaves = {"$": torch.rand(100, generator=generator()) * 1e-4}
    result = self_test(outputs, verdict_against(outputs, Tolerance(atol=1e-3)))
    assert result.missed == ["one element moved", "two elements swapped", "a leaf zeroed"]


def test_a_comparison_that_is_never_content_fails() -> None:
    result = self_test(detections(), lambda target: Verdict(Outcome.MISMATCH))
    assert result.false_alarm
    assert not result.ok


def test_vacuous_is_not_caught() -> None:
    result = self_test(detections(), lambda target: Verdict(Outcome.VACUOUS))
    assert result.missed == NAMES


def test_an_output_without_tensors_cannot_pass() -> None:
    result = self_test({"$": 1.0}, verdict_against({"$": 1.0}))
    assert not result.ok
    assert list(result.not_applicable) == NAMES


def test_one_moved_element_is_a_value_difference() -> None:
    outputs = detections()
    (difference,) = compare(outputs, planted(outputs)["one element moved"].leaves).differences
    assert (difference.kind, difference.mismatched) == (Kind.VALUE, 1)
