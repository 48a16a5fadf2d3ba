"""What the table of noise floors measures with."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.floor import Apart, Tf32, floors_apart, report, ten_bits, top_two_swapped
from fuzzer.verify.noise import OracleAnswer


@given(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False))
def test_ten_bits_of_fraction_are_kept_and_the_error_is_at_most_half_of_the_last(value: float) -> None:
    x = torch.tensor([value])
    short = ten_bits(x)
    assert torch.equal(ten_bits(short), short)
    assert int(short.view(torch.int32)) & 0x1FFF == 0
    assert abs(float(short) - float(x)) <= abs(float(x)) * 2.0**-11


def test_a_product_in_tf32_is_that_of_the_shortened_operands() -> None:
    a = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    with Tf32():  # type: ignore[no-untyped-call]
        found = a @ a.t()
    torch.testing.assert_close(found, ten_bits(a) @ ten_bits(a).t(), rtol=1e-6, atol=1e-6)
    assert float((found - a @ a.t()).abs().max()) > 1e-4


def test_the_top_two_change_places_and_nothing_else_moves() -> None:
    row = torch.tensor([[1.0, 9.0, 3.0, 7.0]])
    assert torch.equal(top_two_swapped(row), torch.tensor([[1.0, 7.0, 3.0, 9.0]]))


def test_distances_are_in_floors_and_the_smaller_of_gap_and_drift_counts() -> None:
    """Around 1 the ulp of float32 is 2^-23; the draws move by 9 of them: one floor is 10."""
    step = 2.0**-23
    one = torch.ones(4)
    draw = one + 9 * step
    oracle = OracleAnswer({"$": one}, {"$": one.double()}, [{"$": draw}])
    target = one + torch.tensor([0.0, 10, 50, 100]) * step
    torch.testing.assert_close(floors_apart(one, target, oracle), torch.tensor([0.0, 1, 5, 10]).double())
    far = OracleAnswer({"$": one}, {"$": one.double() + 20 * step}, [{"$": draw}])
    assert float(floors_apart(one, one + 30 * step, far)[0]) == pytest.approx(2.0, rel=1e-6)


def test_the_margin_is_told_on_both_sides() -> None:
    row = Apart(
        "m", 1, {8: {"strides": 0.5, "threads": 1.0}}, {8: {"TF32": 50.0}}, {1e-3: [torch.tensor([2.0, 8.0, 9.0])]}
    )
    told = report([row])
    assert told["margin"] == {"above_benign": 5.0, "below_faults": 10.0}
    assert told["models"][0]["moved"] == {"0.001": {"least": 2.0, "median": 8.0, "over": 0.6667}}
