"""ULP distances and spacings, against the standard library, numpy, and enumeration of the small formats."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.verify.ulp import FORMATS, INT64_MAX, ulp, ulp_distance

EIGHT_BITS = [dtype for dtype in FORMATS if dtype.itemsize == 1]
doubles = st.floats(allow_nan=False)


def distance(a: float, b: float, dtype: torch.dtype = torch.float64) -> int:
    return int(ulp_distance(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)))


def spacing(y: float, dtype: torch.dtype) -> float:
    return float(ulp(torch.tensor(y, dtype=torch.float64), dtype))


@given(doubles, st.integers(0, 50))
def test_distance_counts_the_steps_of_nextafter(start: float, steps: int) -> None:
    end, taken = start, 0
    while taken < steps and end != math.inf:
        end = math.nextafter(end, math.inf)
        taken += 1
    assert distance(start, end) == distance(end, start) == taken


@given(st.integers(1, 2**31 - 2**23), st.integers(1, 2**31 - 2**23))
def test_distance_across_zero_is_the_sum_of_both_sides(above: int, below: int) -> None:
    """The n-th positive float32 has the bits n."""
    up, down = struct.unpack("<ff", struct.pack("<II", above, below))
    assert distance(up, -down, torch.float32) == above + below


@pytest.mark.parametrize("dtype", list(FORMATS)[:-1])
def test_zeros_of_both_signs_are_no_step_apart(dtype: torch.dtype) -> None:
    assert distance(0.0, -0.0, dtype) == 0


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_nan_is_as_far_as_can_be_from_numbers_and_no_step_from_nan(dtype: torch.dtype) -> None:
    assert distance(math.nan, 1.0, dtype) == distance(1.0, math.nan, dtype) == INT64_MAX
    assert distance(math.nan, math.nan, dtype) == 0


def test_nan_payloads_do_not_count() -> None:
    quiet = torch.tensor([0x7FC00000, 0x7FC00001 - 2**31, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert ulp_distance(quiet, quiet.flip(0)).tolist() == [0, 0, 0]


def test_distance_saturates() -> None:
    assert distance(-math.inf, math.inf) == INT64_MAX  # 2 · 0x7FF0000000000000 > 2^63
    assert distance(-1.0, 1.0) == 2 * 0x3FF0000000000000
    assert distance(0.0, math.inf) == 0x7FF0000000000000


def test_infinity_is_one_step_past_the_largest_number() -> None:
    assert distance(65504.0, math.inf, torch.float16) == 1


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_distance_of_eight_bit_floats_is_the_place_among_all_their_values(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype)
    every = every[~every.to(torch.float32).isnan()]
    values = sorted(set(every.to(torch.float64).tolist()))
    place = torch.tensor([values.index(value) for value in every.to(torch.float64).tolist()])
    count = len(place)
    row, column = torch.arange(count).repeat_interleave(count), torch.arange(count).repeat(count)
    a, b = (every.view(torch.uint8)[index] for index in (row, column))
    expected = (place[row] - place[column]).abs()
    assert torch.equal(ulp_distance(a.view(dtype), b.view(dtype)), expected)


@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_spacing_of_eight_bit_floats_is_the_gap_to_the_next_one(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float64)
    values = sorted({value for value in every.tolist() if math.isfinite(value) and value >= 0})
    for low, high in itertools.pairwise(values):
        assert spacing(low, dtype) == spacing(-low, dtype) == high - low
        assert spacing(low + 0.75 * (high - low), dtype) == high - low


@given(st.integers(0, 2**16 - 1))
def test_bfloat16_steps_like_the_upper_half_of_float32(bits: int) -> None:
    value, following = (struct.unpack("<f", struct.pack("<I", (b & 0xFFFF) << 16))[0] for b in (bits, bits + 1))
    if math.isfinite(value) and math.isfinite(following) and (bits + 1) & 0x7FFF:
        assert distance(value, following, torch.bfloat16) == 1
        assert spacing(value, torch.bfloat16) == abs(following - value)


@given(doubles.filter(math.isfinite))
def test_spacing_of_float64_is_the_ulp_of_the_standard_library(y: float) -> None:
    assert spacing(y, torch.float64) == math.ulp(y)


def test_spacing_is_right_in_every_binade_of_float64() -> None:
    powers = [math.ldexp(1.0, exponent) for exponent in range(-1074, 1024)]
    spacings = ulp(torch.tensor(powers, dtype=torch.float64), torch.float64)
    assert spacings.tolist() == [math.ulp(power) for power in powers]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_spacing_of_float32_is_that_of_numpy(y: float) -> None:
    with np.errstate(all="ignore"):
        expected = float(np.spacing(np.float32(abs(y))))
    assert spacing(y, torch.float32) == (expected if math.isfinite(expected) else 2.0**104)


@given(st.floats(width=16, allow_nan=False, allow_infinity=False))
def test_spacing_of_float16_is_that_of_numpy(y: float) -> None:
    with np.errstate(all="ignore"):
        expected = float(np.spacing(np.float16(abs(y))))
    assert spacing(y, torch.float16) == (expected if math.isfinite(expected) else 32.0)


@given(doubles, st.sampled_from(list(FORMATS)))
def test_spacing_is_finite_and_positive_wherever_there_is_a_number(y: float, dtype: torch.dtype) -> None:
    assert 0 < spacing(y, dtype) < math.inf


def test_spacing_between_numbers_is_that_of_their_binade() -> None:
    assert spacing(1.9999999999, torch.float16) == 2.0**-10
    assert spacing(0.0, torch.float32) == 2.0**-149
    assert spacing(1e300, torch.float32) == 2.0**104
    assert math.isnan(spacing(math.nan, torch.float32))


def test_a_process_that_flushes_subnormals_counts_the_same() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert distance(5e-324, 0.0) == 1
        assert int(ulp(torch.zeros((), dtype=torch.float64), torch.float64).view(torch.int64)) == 1
    finally:
        torch.set_flush_denormal(False)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError):
        ulp_distance(torch.tensor(1), torch.tensor(2))
    with pytest.raises(TypeError):
        ulp_distance(torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64))
    with pytest.raises(TypeError):
        ulp(torch.tensor(1.0), torch.float32)
