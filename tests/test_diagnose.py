"""Labels, and the first label by symptom. Targets' answers are those seen on real backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.diagnose import TAXONOMY, Label, primary, provisional, suspected
from fuzzer.diagnose.facts import gathers_alike, rounds_to, same_rows, shorter
from fuzzer.trees import Leaves
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")


def verdict(*differences: Difference) -> Verdict:
    return Verdict(Outcome.MISMATCH, 1, 1, list(differences))


def diagnose(
    kind: Kind,
    sample: Mapping[str, Tensor] | Tensor,
    reference: Leaves | Tensor,
    target: Leaves | Tensor,
    *,
    path: str = "$",
    truth: Tensor | None = None,
    **fields: Any,
) -> str:
    """The label of one difference, as text."""
    difference = Difference(path, kind, "seen", **fields)
    inputs = {"x": sample} if isinstance(sample, Tensor) else sample
    sides = [{"$": side} if isinstance(side, Tensor) else side for side in (reference, target)]
    answer = None if truth is None else {path: truth}
    return str(provisional(verdict(difference), sides[0], sides[1], answer, inputs, "onnxruntime:cpu").label)


@pytest.mark.parametrize("name", TAXONOMY)
@pytest.mark.parametrize("confirmed", [True, False])
def test_every_label_reads_back_from_its_text(name: str, confirmed: bool) -> None:
    label = Label(*name.split("/"), confirmed)  # type: ignore[arg-type]
    assert str(label) == name + ("" if confirmed else "?")
    assert Label.parse(str(label)) == label


@pytest.mark.parametrize(
    "text", ["numeric/nonsense", "order", "", "numeric/tie", "weird/unknown", "numeric/rounding??"]
)
def test_a_label_that_the_taxonomy_lacks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no label"):
        Label.parse(text)


def test_an_unknown_cause_carries_no_mark() -> None:
    assert str(Label("numeric", "unknown")) == "numeric/unknown"
    assert Label.parse("numeric/unknown") == Label("numeric", "unknown")


def test_the_letters_of_the_study_are_a_for_execution_b_for_structure_c_for_the_rest() -> None:
    letters = {name: suspected(name).study_type for name in TAXONOMY}
    assert {name.split("/")[0] for name, letter in letters.items() if letter == "A"} == {"execution"}
    assert {name.split("/")[0] for name, letter in letters.items() if letter == "B"} == {"structure"}
    assert {name.split("/")[0] for name, letter in letters.items() if letter == "C"} == {"numeric", "order", "state"}


def test_only_what_needs_no_intervention_is_confirmed_at_once() -> None:
    assert [name for name in TAXONOMY if suspected(name).confirmed] == ["structure/arity"]


def test_the_gravest_kind_names_the_finding_and_then_the_first_leaf() -> None:
    found = primary(
        verdict(
            Difference(".a", Kind.VALUE, ""), Difference(".b", Kind.INTEGER, ""), Difference(".c", Kind.INTEGER, "")
        )
    )
    assert found is not None
    assert found.path == ".b"


def test_a_wrong_value_is_not_hidden_behind_a_decision_within_the_noise() -> None:
    found = primary(
        verdict(
            Difference(".index", Kind.INTEGER, "", near_tie=True),
            Difference(".value", Kind.VALUE, "", blame=Blame.TARGET),
        )
    )
    assert found is not None
    assert found.path == ".value"


def test_a_verdict_without_differences_is_not_diagnosed() -> None:
    assert primary(verdict()) is None
    with pytest.raises(ValueError, match="nothing to diagnose"):
        provisional(verdict(), None, None, None, {})


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (Kind.CRASH, "execution/crash?"),
        (Kind.HANG, "execution/hang?"),
        (Kind.MEMORY, "execution/out-of-memory?"),
        (Kind.EXCEPTION, "execution/exception?"),
        (Kind.ARITY, "structure/arity"),
        (Kind.DTYPE, "structure/dtype?"),
        (Kind.NONDETERMINISM, "state/nondeterminism?"),
        (Kind.MUTATION, "state/mutation?"),
        (Kind.SIGNED_ZERO, "numeric/signed-zero?"),
    ],
)
def test_what_is_seen_without_looking_at_values(kind: Kind, label: str) -> None:
    assert diagnose(kind, torch.ones(2), {}, {}) == label


def test_a_crash_is_confirmed_by_seeing_it_again() -> None:
    seen = verdict(Difference("$", Kind.CRASH, "signal 11"))
    assert str(provisional(seen, None, None, None, {}, reproduced=True).label) == "execution/crash"


def test_top_k_with_equal_keys_is_a_tie() -> None:
    x = torch.tensor([1.0, 5, 5, 5, 2, 5, 0, 5])
    values = torch.full((3,), 5.0)
    reference: Leaves = {".values": values, ".indices": torch.tensor([1, 7, 5])}
    target: Leaves = {".values": values, ".indices": torch.tensor([1, 2, 3])}
    assert diagnose(Kind.INTEGER, x, reference, target, path=".indices") == "order/tie?"


def test_an_index_that_picks_another_value_is_no_tie() -> None:
    x = torch.tensor([1.0, 5, 5, 5, 2, 5, 0, 5])
    assert diagnose(Kind.INTEGER, x, torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])) == "numeric/wrong-value?"


def test_argmax_over_rows_with_equal_maxima_is_a_tie() -> None:
    x = torch.tensor([[3.0, 3, 1], [0, 7, 7]])
    assert diagnose(Kind.INTEGER, x, torch.tensor([0, 2]), torch.tensor([1, 1])) == "order/tie?"


def test_a_tie_inside_the_model_shows_in_the_values_beside_the_indices() -> None:
    reference: Leaves = {".scores": torch.tensor([0.9, 0.5, 0.5]), ".ids": torch.tensor([4, 1, 2])}
    target: Leaves = {".scores": torch.tensor([0.9, 0.5, 0.5]), ".ids": torch.tensor([4, 2, 1])}
    assert diagnose(Kind.INTEGER, torch.ones(1, 3, 8), reference, target, path=".ids") == "order/tie?"


def test_two_nan_in_a_window_are_a_tie_too() -> None:
    x = torch.tensor([[[[NAN, NAN, 1.0, 5.0]]]])
    values = torch.tensor([[[[NAN, 5.0]]]])
    reference: Leaves = {"[0]": values, "[1]": torch.tensor([[[[0, 3]]]])}
    target: Leaves = {"[0]": values.clone(), "[1]": torch.tensor([[[[1, 3]]]])}
    assert diagnose(Kind.INTEGER, x, reference, target, path="[1]") == "order/tie?"


def test_a_near_tie_is_what_the_judge_says() -> None:
    x = torch.tensor([1.0, 2.0])
    assert diagnose(Kind.INTEGER, x, torch.tensor(1), torch.tensor(0), near_tie=True) == "order/near-tie?"
    assert diagnose(Kind.VALUE, x, torch.tensor(9.0), torch.tensor(10.0), near_tie=True) == "order/near-tie?"
    gate = (torch.tensor([True]), torch.tensor([False]))
    assert diagnose(Kind.INTEGER, x, *gate, near_tie=True) == "order/near-tie?"


def test_argmax_over_nan_is_a_nonfinite_matter() -> None:
    x = torch.tensor([[1.0, 5, NAN, 0, 9, NAN, 3, 5]])
    assert diagnose(Kind.INTEGER, x, torch.tensor([2]), torch.tensor([4])) == "numeric/nonfinite?"


def test_boxes_kept_in_another_order_for_a_nan_score_are_an_nms_matter() -> None:
    sample = {"boxes": torch.rand(4, 4), "scores": torch.tensor([0.9, NAN, 0.7, 0.6])}
    kept = (torch.tensor([1, 0, 2, 3]), torch.tensor([0, 2, 3, 1]))
    assert diagnose(Kind.INTEGER, sample, *kept) == "order/nms?"


def test_places_of_a_maximum_in_an_image_four_pixels_wide_are_no_matter_of_boxes() -> None:
    image = torch.arange(16.0).view(1, 1, 4, 4).clone()
    image[0, 0, 0, 0] = NAN
    places = torch.tensor([0, 7, 13, 15]).view(1, 1, 2, 2), torch.tensor([5, 7, 13, 15]).view(1, 1, 2, 2)
    assert diagnose(Kind.INTEGER, image, *places) == "numeric/nonfinite?"


def test_a_detector_that_keeps_one_box_fewer_is_an_nms_matter() -> None:
    def kept(count: int) -> Leaves:
        return {"[0].boxes": torch.rand(count, 4), "[0].scores": torch.rand(count)}

    image = torch.rand(3, 8, 8)
    assert diagnose(Kind.SHAPE, image, kept(5), kept(4), path="[0].boxes") == "order/nms?"
    assert diagnose(Kind.SHAPE, image, kept(5), kept(4), path="[0].boxes", near_tie=True) == "order/near-tie?"


def test_a_shape_that_depends_on_nan_is_a_matter_of_structure() -> None:
    x = torch.tensor([3.0, NAN, 1, 3, NAN, 2])
    assert diagnose(Kind.SHAPE, x, torch.unique(x), torch.unique(x)[:3]) == "structure/shape?"


def test_max_pool_that_drops_nan_is_nonfinite() -> None:
    x = torch.arange(16.0).view(1, 1, 4, 4)
    x[0, 0, 0, 1] = NAN
    reference = F.max_pool2d(x, 2)
    assert diagnose(Kind.NONFINITE, x, reference, reference.nan_to_num(5.0)) == "numeric/nonfinite?"


def test_an_infinity_from_finite_inputs_is_overflow() -> None:
    x = torch.tensor([100.0, -200.0, 1.0])
    reference = torch.logaddexp(x, x)
    assert diagnose(Kind.NONFINITE, x, reference, (x.exp() + x.exp()).log()) == "numeric/overflow?"


@pytest.mark.parametrize("lost", [0.0, NAN])
def test_nan_and_zeros_from_squares_that_overflow_are_overflow_too(lost: float) -> None:
    x = torch.tensor([1e30, -1e30, 5e29, 2e29])
    truth = F.layer_norm(x.double(), (4,))
    target = torch.full((4,), lost)
    kind = Kind.VALUE if lost == 0.0 else Kind.NONFINITE
    label = diagnose(kind, x, truth.float(), target, truth=truth, blame=Blame.TARGET)
    assert label == "numeric/overflow?"
    small = diagnose(kind, x / 1e30, truth.float(), target, truth=truth, blame=Blame.TARGET)
    assert small == ("numeric/wrong-value?" if lost == 0.0 else "numeric/nonfinite?")


def test_finite_elements_that_are_wrong_beside_nan_are_not_explained_by_it() -> None:
    x = torch.tensor([1.0, -2.0, 3.0])
    truth, target = x.double().abs(), torch.tensor([7.0, NAN, 3.0])
    nan, wrong = (Difference("$", kind, "seen", blame=Blame.TARGET) for kind in (Kind.NONFINITE, Kind.VALUE))
    for differences, label in (((nan,), "numeric/nonfinite?"), ((nan, wrong), "numeric/wrong-value?")):
        sides = {"$": x.abs()}, {"$": target}, {"$": truth}
        assert str(provisional(verdict(*differences), *sides, {"x": x}).label) == label


def test_a_long_sum_that_is_a_little_off_in_one_direction_is_accumulation() -> None:
    x = torch.full((3, 4096), 0.1)
    truth = x.double().sum(1)
    running = truth.float() * torch.tensor([0.9999, 0.9998, 0.9999])
    label = diagnose(Kind.VALUE, x, truth.float(), running, truth=truth, blame=Blame.TARGET)
    assert label == "numeric/accumulation?"
    both_ways = truth.float() * torch.tensor([0.9999, 1.0002, 0.9999])
    assert diagnose(Kind.VALUE, x, truth.float(), both_ways, truth=truth, blame=Blame.TARGET) == "numeric/wrong-value?"
    few = diagnose(Kind.VALUE, x[:, :8], truth.float(), running, truth=truth, blame=Blame.TARGET)
    assert few == "numeric/wrong-value?"


def test_infinities_of_other_signs_after_minus_zero_are_about_its_sign() -> None:
    x = torch.tensor([-0.0, 1.0, 2.0, 4.0])
    assert diagnose(Kind.NONFINITE, x, 1 / (x + 0.0), 1 / x) == "numeric/signed-zero?"


def test_rounding_to_bfloat16_that_one_side_leaves_out_is_reduced_precision() -> None:
    x = torch.tensor([1.00390625, 1.01171875, 3.4e38, 0.1] * 4)
    rounded = x.bfloat16().float()
    assert diagnose(Kind.VALUE, x, rounded, x, blame=Blame.REFERENCE) == "numeric/reduced-precision?"
    assert diagnose(Kind.NONFINITE, x, rounded, x, blame=Blame.REFERENCE) == "numeric/reduced-precision?"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_errors_of_a_product_in_half_precision_are_reduced_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(256, generator=generator) + 0.5
    y = torch.rand(256, generator=generator) + 0.5
    target = (x.to(dtype) * y.to(dtype)).float() * 1.1
    label = diagnose(
        Kind.VALUE, {"x": x, "y": y}, x * y * 1.1, target, truth=x.double() * y.double() * 1.1, blame=Blame.TARGET
    )
    assert label == "numeric/reduced-precision?"


def test_values_that_are_all_16_bit_floats_are_reduced_precision_however_far_off() -> None:
    x = torch.linspace(-3.0, 3.0, 16)
    truth = torch.softmax(x.double(), 0)
    target = torch.softmax(x.bfloat16(), 0).float() * 2
    label = diagnose(Kind.VALUE, x, truth.float() * 2, target, truth=truth * 2, blame=Blame.TARGET)
    assert label == "numeric/reduced-precision?"


def test_values_that_vanish_below_the_smallest_normal_number_are_subnormal() -> None:
    x = torch.tensor([-88.0, -87.5, -87.4, 0.0])
    reference = torch.sigmoid(x)
    target = torch.where(reference < torch.finfo(torch.float32).tiny, 0.0, reference)
    assert (target != reference).sum() == 3
    assert diagnose(Kind.VALUE, x, reference, target, blame=Blame.TARGET) == "numeric/subnormal?"


def test_expm1_of_tiny_numbers_by_exp_minus_one_is_an_approximation() -> None:
    x = torch.tensor([1e-8, 1e-10, -1e-9, 1e-7] * 10)
    assert (
        diagnose(Kind.VALUE, x, torch.expm1(x) / x, (x.exp() - 1) / x, blame=Blame.TARGET) == "numeric/approximation?"
    )


def test_int64_arithmetic_through_float_is_an_integer_matter() -> None:
    x = torch.tensor([16777217, 5])
    assert diagnose(Kind.INTEGER, x, x, x.float().long()) == "numeric/integer?"
    lost = (torch.tensor([0, 0], dtype=torch.int8), torch.tensor([-128, 0], dtype=torch.int8))
    assert diagnose(Kind.INTEGER, torch.tensor([1e20, 0.0]), *lost) == "numeric/integer?"


def test_a_dropped_argument_is_a_wrong_value() -> None:
    x = torch.ones(1, 1, 4, 4)
    reference = F.avg_pool2d(x, 2, 2, divisor_override=3)
    assert diagnose(Kind.VALUE, x, reference, F.avg_pool2d(x, 2, 2), blame=Blame.TARGET) == "numeric/wrong-value?"
    assert diagnose(Kind.VALUE, x, reference, F.avg_pool2d(x, 2, 2)) == "numeric/unknown"


def test_what_lies_within_the_noise_is_rounding() -> None:
    x = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert diagnose(Kind.VALUE, x, torch.tensor(32.0), torch.tensor(128.0), blame=Blame.NEITHER) == "numeric/rounding?"


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 2**32 - 1))
def test_rows_in_any_other_order_are_the_same_rows(order: list[int], seed: int) -> None:
    rows = torch.rand(6, 4, generator=torch.Generator().manual_seed(seed))
    assert same_rows(rows, rows[order]) == (order != sorted(order))
    changed = rows[order].clone()
    changed[0, 0] += 1
    assert not same_rows(rows, changed)


def test_permuted_boxes_with_equal_scores_are_a_tie() -> None:
    boxes, scores = torch.rand(4, 4), torch.tensor([0.9, 0.5, 0.5, 0.1])
    reference: Leaves = {"[0].boxes": boxes, "[0].scores": scores}
    target: Leaves = {"[0].boxes": boxes[[0, 2, 1, 3]], "[0].scores": scores.clone()}
    label = diagnose(Kind.VALUE, torch.rand(3, 8, 8), reference, target, path="[0].boxes", blame=Blame.TARGET)
    assert label == "order/tie?"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_indices_gather_alike_exactly_where_the_values_are_equal(values: list[int], data: st.DataObject) -> None:
    index = st.lists(st.integers(0, len(values) - 1), min_size=2, max_size=2)
    left, right = data.draw(index), data.draw(index)
    expected = [values[i] for i in left] == [values[i] for i in right]
    assert gathers_alike(torch.tensor(left), torch.tensor(right), torch.tensor(values, dtype=torch.float32)) == expected


@given(
    st.lists(st.floats(0.125, 1e3, width=32), min_size=4, max_size=20), st.sampled_from([torch.float16, torch.bfloat16])
)
def test_only_values_that_were_rounded_are_shorter(values: list[float], dtype: torch.dtype) -> None:
    fine = torch.tensor(values)
    rounded = fine.to(dtype).float()
    assert shorter(fine, rounded) is None
    moved = set(rounded[fine != rounded].tolist())
    enough = len(moved) >= 4 and any(value % 1 for value in moved)
    assert (shorter(rounded, fine) is not None) == enough


def test_a_value_that_is_already_rounded_says_nothing_about_precision() -> None:
    whole = torch.tensor([1.0, 2.0])
    assert not rounds_to(whole, whole, torch.bfloat16)


_TENSORS = st.sampled_from(
    [
        torch.tensor(1.5),
        torch.tensor([NAN, INF, -INF, -0.0]),
        torch.zeros(0, 4),
        torch.tensor([[1, 2], [3, -4]]),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3j]),
        torch.tensor([1.0, 2.0]).to_sparse(),
        torch.tensor([1.0], dtype=torch.bfloat16),
        torch.tensor([[0.5, 0.5, 1.0, 2.0]]),
        torch.tensor([2**63 - 1, 0]),
        torch.tensor(0),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(Kind)), _TENSORS, _TENSORS, _TENSORS, st.sampled_from(list(Blame)))
def test_any_pair_of_tensors_gets_a_label_with_evidence(
    kind: Kind, sample: Tensor, left: Tensor, right: Tensor, blame: Blame
) -> None:
    seen = verdict(Difference("$", kind, "seen", blame=blame))
    found = provisional(seen, {"$": left}, {"$": right}, {"$": left}, {"x": sample})
    assert Label.parse(str(found.label)) == found.label
    assert all(found.evidence)
