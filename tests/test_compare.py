"""Tier 1 sees every difference, at its place and of its kind, and never raises."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaves, flatten
from fuzzer.verify.compare import Comparison, compare
from fuzzer.verify.ulp import FORMATS
from fuzzer.verify.verdict import Difference, Kind, LeafStats

LOOSE = Tolerance(atol=1e-3, rtol=1e-3)  # the tolerance at which torch's same() passes all of the first six
EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, *EIGHT_BITS]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")


def check(reference: Any, target: Any, **options: Any) -> Comparison:
    return compare(flatten(reference), flatten(target), **options)


def kinds(reference: Any, target: Any, **options: Any) -> list[tuple[str, Kind]]:
    return [(difference.path, difference.kind) for difference in check(reference, target, **options).differences]


def only(reference: Any, target: Any, **options: Any) -> Difference:
    (difference,) = check(reference, target, **options).differences
    return difference


def stats(reference: Any, target: Any, **options: Any) -> LeafStats:
    (found,) = check(reference, target, **options).stats
    return found


# What a comparison that averages, or that trusts its caller, lets pass.


def test_one_element_in_a_million_off_by_a_little_is_found_at_its_place() -> None:
    reference = torch.randn(1000, 1000, generator=torch.Generator().manual_seed(0))
    target = reference.clone()
    target[123, 456] += 0.09
    found = check(reference, target, tolerance=LOOSE)
    (difference,) = found.differences
    assert (difference.kind, difference.index) == (Kind.VALUE, (123, 456))
    assert (difference.mismatched, difference.compared) == (1, 1_000_000)
    assert found.masks["$"].nonzero().tolist() == [[123, 456]]
    assert found.stats[0].mean_abs == pytest.approx(9e-8, rel=1e-3)  # which is what an average would have looked at


def test_a_small_output_replaced_by_zeros_is_found() -> None:
    reference = torch.linspace(1e-4, 2e-4, 1000)
    assert only(reference, torch.zeros(1000)).mismatched == 1000
    # a tolerance wider than the output lets it pass: that is for `vacuity` to refuse, not for the comparison
    assert kinds(reference, torch.zeros(1000), tolerance=LOOSE) == []


@pytest.mark.parametrize("off", [1, 4])
def test_integers_are_exact_whatever_the_tolerance(off: int) -> None:
    difference = only(torch.tensor([7, 5000]), torch.tensor([7, 5000 + off]), tolerance=LOOSE)
    assert (difference.kind, difference.index) == (Kind.INTEGER, (1,))
    assert (difference.reference, difference.target) == ("5000", str(5000 + off))


def test_shapes_that_broadcast_are_still_different_shapes() -> None:
    found = check(torch.ones(4, 1), torch.ones(4, 4), tolerance=LOOSE)
    assert [difference.kind for difference in found.differences] == [Kind.SHAPE]
    assert found.compared == 0


def test_infinity_against_garbage_is_found() -> None:
    difference = only(torch.tensor([1.0, math.inf]), torch.tensor([1.0, 3.0]), tolerance=LOOSE)
    assert (difference.kind, difference.index) == (Kind.NONFINITE, (1,))
    assert (difference.reference, difference.target) == ("inf", "3.0")


def test_nan_at_other_positions_is_found() -> None:
    reference, target = torch.tensor([math.nan, 1.0, 1.0]), torch.tensor([1.0, math.nan, 1.0])
    found = check(reference, target, tolerance=LOOSE)
    (difference,) = found.differences
    assert (difference.kind, difference.mismatched) == (Kind.NONFINITE, 2)
    assert found.nonfinite["$"].tolist() == [True, True, False]
    assert not found.masks
    assert not any(found.stats[0].norm_ok.values())


def test_infinities_of_other_signs_are_found() -> None:
    assert only(torch.tensor(math.inf), torch.tensor(-math.inf)).kind is Kind.NONFINITE


def test_the_payload_of_nan_does_not_matter() -> None:
    payloads = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert kinds(payloads, payloads.flip(0)) == []


def test_finite_elements_beside_nonfinite_ones_are_compared_too() -> None:
    reference = torch.tensor([math.nan, math.inf, 1.0])
    assert kinds(reference, torch.tensor([math.nan, math.inf, 1.5])) == [("$", Kind.VALUE)]
    assert kinds(reference, torch.tensor([0.0, math.inf, 1.5])) == [("$", Kind.NONFINITE), ("$", Kind.VALUE)]


def test_two_swapped_elements_are_both_named() -> None:
    found = check(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0]))
    assert found.masks["$"].tolist() == [True, False, True]


def test_a_wrong_last_tile_is_found_where_it_is() -> None:
    reference = torch.randn(33, 65, generator=torch.Generator().manual_seed(1))
    target = reference.clone()
    target[32:, 64:] = 0.0
    assert only(reference, target).index == (32, 64)


# Trees and objects.


def test_a_renamed_key_is_one_missing_and_one_extra_leaf() -> None:
    x = torch.ones(2)
    assert kinds({"logits": x, "aux": x}, {"logits": x, "auxiliary": x}) == [
        (".aux", Kind.ARITY),
        (".auxiliary", Kind.ARITY),
    ]


def test_a_list_one_shorter_is_missing_its_last_leaf() -> None:
    x = torch.ones(2)
    found = check([x, x, x], [x, x])
    assert [(d.path, d.kind, d.message) for d in found.differences] == [("[2]", Kind.ARITY, "missing from the target")]
    assert found.compared == 4


def test_a_dropped_second_output_is_missing() -> None:
    x = torch.ones(2)
    assert ("[1]", Kind.ARITY) in kinds((x, x), x)


@pytest.mark.parametrize(
    ("reference", "target", "kind"),
    [
        (3, 4, Kind.INTEGER),
        (2**100, 2**100 + 1, Kind.INTEGER),
        (True, False, Kind.INTEGER),
        (True, 1, Kind.OBJECT),
        (1, 1.0, Kind.OBJECT),
        (0.1, math.nextafter(0.1, 1.0), Kind.VALUE),
        (math.nan, 0.0, Kind.NONFINITE),
        ("a", "b", Kind.OBJECT),
        (None, 0, Kind.OBJECT),
        (torch.tensor(1), 1, Kind.OBJECT),
    ],
)
def test_python_values_compare_exactly_and_by_type(reference: Any, target: Any, kind: Kind) -> None:
    assert kinds(reference, target) == [("$", kind)]
    assert kinds(reference, reference) == kinds(target, target) == []


def test_text_counts_no_elements_and_numbers_one() -> None:
    assert check(["a", None], ["a", None]).compared == 0
    assert check([1, 2.0, True], [1, 2.0, True]).compared == 3


# Dtypes and layouts.


def test_float16_inside_is_a_dtype_and_a_value_difference() -> None:
    reference = torch.tensor([1.0, 0.1])
    found = check(reference, reference.half())
    assert [difference.kind for difference in found.differences] == [Kind.DTYPE, Kind.VALUE]
    assert found.differences[1].target == repr(float(np.float16(0.1)))
    # 0.1 in float32 is 0x3dcccccd; rounded to eleven bits it is 0x3dccc000
    assert found.stats[0].max_ulp == 0x3DCCCCCD - 0x3DCCC000


def test_a_value_rounded_through_float16_is_found() -> None:
    reference = torch.tensor([1.0, 0.1])
    assert only(reference, reference.half().float()).index == (1,)


def test_another_integer_dtype_with_the_same_values_is_only_a_dtype_difference() -> None:
    assert kinds(torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)) == [("$", Kind.DTYPE)]


def test_uint64_and_negative_int64_with_the_same_bits_differ() -> None:
    unsigned = torch.tensor([2**64 - 1, 5], dtype=torch.uint64)
    found = check(unsigned, torch.tensor([-1, 5]))
    assert [difference.kind for difference in found.differences] == [Kind.DTYPE, Kind.INTEGER]
    assert (found.differences[1].reference, found.differences[1].target) == ("18446744073709551615", "-1")
    assert found.differences[1].mismatched == 1


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.uint64, 0, 2**64 - 1), (torch.uint64, 2**64 - 2, 2**64 - 1), (torch.int64, -(2**63), 2**63 - 1)],
)
def test_the_extremes_of_64_bit_integers_are_told_apart(dtype: torch.dtype, low: int, high: int) -> None:
    difference = only(torch.tensor([3, low], dtype=dtype), torch.tensor([3, high], dtype=dtype))
    assert (difference.index, difference.reference, difference.target) == ((1,), str(low), str(high))


def test_complex_parts_are_compared_each() -> None:
    reference = torch.tensor([1 + 2j, 3 + 4j])
    found = check(reference, torch.tensor([1 + 2j, 3 + 4.5j]))
    (difference,) = found.differences
    assert (difference.kind, difference.index, difference.target) == (Kind.VALUE, (1, 1), "4.5")
    assert found.compared == 4
    nan = torch.complex(torch.tensor([1.0, math.nan]), torch.tensor([2.0, 4.0]))
    assert only(reference, nan).kind is Kind.NONFINITE


def test_a_conjugate_view_is_compared_by_its_values() -> None:
    x = torch.tensor([1 + 2j])
    assert kinds(x.conj(), torch.tensor([1 - 2j])) == []
    assert kinds(x.conj(), x) == [("$", Kind.VALUE)]


def test_a_complex_leaf_against_its_real_part_keeps_the_imaginary_difference() -> None:
    assert kinds(torch.tensor([1 + 0j]), torch.tensor([1.0])) == [("$", Kind.DTYPE)]
    assert kinds(torch.tensor([1.0]), torch.tensor([1 + 2j])) == [("$", Kind.DTYPE), ("$", Kind.VALUE)]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_leaves_are_compared_dense_and_the_layout_is_told() -> None:
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    assert kinds(dense.to_sparse(), dense.to_sparse()) == []
    assert kinds(dense.to_sparse_csr(), dense) == [("$", Kind.DTYPE)]
    assert kinds(dense.to_sparse(), (dense * 2).to_sparse()) == [("$", Kind.VALUE)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_smallest_step_of_every_float_dtype_is_found(dtype: torch.dtype) -> None:
    reference = torch.zeros(3).to(dtype)
    target = reference.clone()
    target.view(torch.uint8)[-1 if dtype.itemsize == 1 else -dtype.itemsize] = 1  # the smallest subnormal
    found = check(reference, target)
    assert [(d.kind, d.index) for d in found.differences] == [(Kind.VALUE, (2,))]
    assert found.stats[0].max_ulp == 1


def test_values_at_scale_1e_30_are_found_without_a_tolerance() -> None:
    difference = only(torch.tensor([1e-30, 2e-30]), torch.tensor([1e-30, 3e-30]))
    assert (difference.kind, difference.index) == (Kind.VALUE, (1,))


def test_empty_leaves_compare_nothing() -> None:
    found = check(torch.ones(0, 4), torch.ones(0, 4))
    assert (found.differences, found.compared, found.stats[0].norm_ok) == ([], 0, {})
    assert kinds(torch.ones(0, 4), torch.ones(0, 5)) == [("$", Kind.SHAPE)]
    assert kinds(torch.ones(0), torch.ones(0, dtype=torch.float16)) == [("$", Kind.DTYPE)]


def test_a_0d_leaf_has_an_empty_index() -> None:
    assert only(torch.tensor(1.0), torch.tensor(2.0)).index == ()
    assert only(torch.tensor(1), torch.tensor(2)).index == ()


def test_signed_zeros_count_only_where_asked() -> None:
    reference, target = torch.tensor([0.0, 1.0, -0.0]), torch.tensor([0.0, 1.0, 0.0])
    assert kinds(reference, target) == []
    difference = only(reference, target, signed_zero=True)
    assert (difference.kind, difference.index, difference.reference) == (Kind.SIGNED_ZERO, (2,), "-0.0")


@pytest.mark.filterwarnings("ignore")
def test_quantised_leaves_are_compared_as_a_whole() -> None:
    values = torch.tensor([1.0, 2.0])
    quantised = torch.quantize_per_tensor(values, 0.1, 0, torch.quint8)
    assert kinds(quantised, quantised.clone()) == []
    assert kinds(quantised, torch.quantize_per_tensor(values, 0.2, 0, torch.quint8)) == [("$", Kind.OBJECT)]
    assert kinds(quantised, values) == [("$", Kind.OBJECT)]


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_readable_values_are_differences_not_errors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for odd in (nested, torch.ones(2, device="meta"), torch.empty(2, dtype=torch.bits8)):
        assert kinds(odd, torch.ones(2))[-1] == ("$", Kind.OBJECT)
    assert kinds(torch.ones(2, device="meta"), torch.ones(2, device="meta")) == [("$", Kind.OBJECT)]


# Tolerances, screens, statistics.


def test_a_tolerance_decides_element_by_element() -> None:
    reference = torch.tensor([100.0, 0.001])
    target = torch.tensor([100.09, 0.051])
    found = check(reference, target, tolerance=Tolerance(atol=0.0, rtol=1e-3))
    assert found.masks["$"].tolist() == [False, True]
    assert found.differences[0].index == (1,)  # the one past its allowance, not the largest gap
    assert found.stats[0].norm_ok["seed"]  # 0.09 ≤ 1e-3 · 100: the norm lets it pass, the element does not


def test_the_worst_element_is_the_one_furthest_past_its_allowance() -> None:
    """Gaps of 0.3 and 0.26, allowances of 0.2 and nothing: the smaller gap is the worse."""
    reference, target = torch.tensor([200.0, 0.0]), torch.tensor([200.3, 0.26])
    difference = only(reference, target, tolerance=Tolerance(rtol=1e-3))
    assert (difference.mismatched, difference.index) == (2, (1,))


def test_the_norm_criterion_is_recorded_at_the_tolerances_of_the_study() -> None:
    reference = torch.tensor([0.0, 10.0], dtype=torch.float64)
    target = reference + torch.tensor([5e-4, 0.0], dtype=torch.float64)
    assert stats(reference, target).norm_ok == {"1e-6": False, "1e-5": False, "1e-4": False, "1e-3": True}
    assert stats(reference, reference.clone()).norm_ok == dict.fromkeys(["1e-6", "1e-5", "1e-4", "1e-3"], True)
    assert stats(reference, target).largest == 10.0


class Absolute:
    """A screen that allows the same everywhere."""

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed

    def allowance(self, path: str, reference: Tensor) -> Tensor | None:
        return torch.full(reference.shape, self.allowed, dtype=torch.float64)


def test_a_screen_allows_what_it_says_and_a_tolerance_outranks_it() -> None:
    reference, target = torch.tensor([1.0, 2.0]), torch.tensor([1.25, 2.75])
    assert check(reference, target, screen=Absolute(0.5)).masks["$"].tolist() == [False, True]
    assert kinds(reference, target, screen=Absolute(0.75)) == []
    assert kinds(reference, target, screen=Absolute(math.nan)) == [("$", Kind.VALUE)]
    assert kinds(reference, target, screen=Absolute(0.75), tolerance=Tolerance()) == [("$", Kind.VALUE)]


def test_a_broken_screen_is_an_error_not_a_difference() -> None:
    class Broken:
        def allowance(self, path: str, reference: Tensor) -> Tensor | None:
            raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivisionError"):
        check(torch.ones(1), torch.zeros(1), screen=Broken())


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1, max_size=60))
def test_statistics_are_those_of_numpy(pairs: list[tuple[float, float]]) -> None:
    r, t = np.array(pairs).T
    gap = np.abs(t - r)
    found = stats(torch.from_numpy(r.copy()), torch.from_numpy(t.copy()))
    assert found.max_abs == gap.max()
    assert found.mean_abs == pytest.approx(gap.mean(), rel=1e-12, abs=1e-300)
    assert found.p95_abs == np.percentile(gap, 95, method="inverted_cdf")
    with np.errstate(all="ignore"):
        assert found.max_rel == np.where(gap == 0, 0.0, gap / np.abs(r)).max()


def test_the_95th_percentile_is_the_nearest_rank() -> None:
    """Of the gaps 0 to 19, 95 % are at most 18."""
    assert stats(torch.zeros(20), torch.arange(20.0)).p95_abs == 18.0


def test_statistics_of_the_largest_numbers_are_never_nan() -> None:
    huge = torch.tensor([1e308, 1e308, 0.0], dtype=torch.float64)
    found = stats(huge, -huge)
    assert (found.max_abs, found.mean_abs, found.max_rel) == (math.inf, math.inf, math.inf)
    assert kinds(huge, -huge, tolerance=Tolerance(rtol=1e10)) == [("$", Kind.VALUE)]
    many = torch.full((4,), 1e308, dtype=torch.float64)
    assert stats(many, torch.zeros_like(many)).mean_abs == 1e308


def test_text_of_both_sides_tells_neighbouring_values_apart() -> None:
    one = torch.tensor([1.0])
    difference = only(one, torch.nextafter(one, torch.tensor(2.0)))
    assert (difference.reference, difference.target) == ("1.0", "1.0000001192092896")


# Any tensors at all.


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype], least: int = 0) -> Tensor:
    """Any bits of any dtype in a small shape, at times transposed."""
    dtype = draw(st.sampled_from(dtypes))
    shape: list[int] = draw(st.lists(st.integers(least, 3), max_size=3))
    transposed: bool = draw(st.booleans())
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    raw = torch.frombuffer(data, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    raw = raw & 1 if dtype == torch.bool else raw
    value = raw.clone().view(dtype).reshape(shape)
    return value.transpose(0, -1) if shape and transposed else value


numbers = tensors([*FORMATS, *INTEGERS, *COMPLEX, torch.bool])
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
leaves = st.dictionaries(st.sampled_from(["$", ".a", "[0]"]), st.one_of(numbers, scalars))


@given(leaves)
def test_anything_agrees_with_itself(value: Leaves) -> None:
    same = {path: leaf.clone() if isinstance(leaf, Tensor) else leaf for path, leaf in value.items()}
    assert compare(value, same, signed_zero=True).differences == []
    assert compare(value, same, tolerance=Tolerance()).differences == []


@given(leaves, leaves, st.sampled_from([None, LOOSE, Tolerance()]), st.booleans())
@settings(max_examples=300)
def test_no_pair_raises_and_no_statistic_is_nan(
    reference: Leaves, target: Leaves, tolerance: Tolerance | None, signed_zero: bool
) -> None:
    found = compare(reference, target, tolerance=tolerance, signed_zero=signed_zero)
    for entry in found.stats:
        assert not any(math.isnan(x) for x in (entry.max_abs, entry.mean_abs, entry.p95_abs, entry.max_rel))
        assert entry.finite <= entry.elements
    assert {d.path for d in found.differences if d.kind is Kind.VALUE} == set(found.masks)
    assert {d.path for d in found.differences if d.kind is Kind.NONFINITE} == set(found.nonfinite)
    missing = {d.path for d in found.differences if d.kind is Kind.ARITY}
    assert missing == reference.keys() ^ target.keys()
    assert not any("cannot be compared" in d.message for d in found.differences)


@given(tensors([*FLOATS, *INTEGERS], least=1), st.data())
@settings(max_examples=300)
def test_any_change_of_any_one_element_is_found_there(reference: Tensor, data: st.DataObject) -> None:
    """The lowest bit of an element flips: one step of its dtype, or of NaN's payload, or NaN against infinity."""
    reference = reference.contiguous()
    size = reference.dtype.itemsize
    i = data.draw(st.integers(0, reference.numel() - 1))
    target = reference.clone()
    target.view(-1).view(torch.uint8)[i * size] ^= 1
    before, after = (float(x.view(-1)[i].to(torch.float64)) for x in (reference, target))
    if math.isnan(before) and math.isnan(after):
        assert compare({"$": reference}, {"$": target}).differences == []
        return
    (difference,) = compare({"$": reference}, {"$": target}).differences
    assert difference.mismatched == 1
    assert difference.index == tuple(int(k) for k in np.unravel_index(i, tuple(reference.shape)))
