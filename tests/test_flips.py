"""A difference hangs on a decision where the perturbed runs themselves fall apart; noise alone fills its space."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.known_cases import Function
from benchmarks.local import Local, named, seed_for, verdict_on
from fuzzer.backends.protocol import ORACLE
from fuzzer.verify.examine import ask_oracle
from fuzzer.verify.flips import integers_flip, jumps, rows_move, takes_an_alternative
from fuzzer.verify.noise import OracleAnswer, aligned, noise_floor, row_noise


def runs_of(*values: float) -> list[Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


ONE = torch.ones(1, dtype=torch.float64)
HERE = torch.ones(1, dtype=torch.bool)


@given(st.integers(0, 2**32 - 1), st.floats(9.0, 1e6))
def test_noise_does_not_jump_whatever_the_target(seed: int, gap: float) -> None:
    """24 runs over ten floors, evenly spread: two neighbours are never two floors apart but at the ends."""
    spread = torch.linspace(-5, 5, 24, dtype=torch.float64)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(seed))
    assert not jumps(torch.tensor([gap]).double(), [spread[i : i + 1] for i in order], ONE, 5.0)


def test_two_answers_with_the_targets_among_them_are_a_jump() -> None:
    runs = runs_of(*[0.0] * 12, *[40.0] * 12)
    assert jumps(torch.tensor([41.0]).double(), runs, ONE, 5.0)
    assert not jumps(torch.tensor([20.0]).double(), runs, ONE, 5.0)


def test_one_outlier_is_no_second_answer() -> None:
    assert not jumps(torch.tensor([40.0]).double(), runs_of(*[0.0] * 23, 40.0), ONE, 5.0)


def test_an_answer_that_comes_again_is_an_alternative_and_a_spread_is_none() -> None:
    near = torch.tensor(0.01)
    target = torch.tensor([1.0], dtype=torch.float64)
    few = runs_of(*[0.0, 1.0] * 12)
    many = runs_of(*[i / 23 for i in range(24)])
    assert takes_an_alternative(target, few[:8], few, HERE, near)
    assert not takes_an_alternative(target, many[:8], many, HERE, near)


ROWS = torch.tensor([[0.0, 1], [10, 11], [20, 21]], dtype=torch.float64)
NEAR = torch.full((3,), 0.5, dtype=torch.float64)


def test_rows_that_change_places_in_a_run_may_do_so_in_the_target() -> None:
    target = ROWS[[1, 0, 2]]
    over = target != ROWS
    assert rows_move(target, ROWS, [ROWS[[1, 0, 2]]], over, NEAR)
    assert rows_move(target, ROWS, [ROWS[[1, 0]]], over, NEAR)  # another number of rows
    assert not rows_move(target, ROWS, [ROWS], over, NEAR)  # rows that stay where they are in every run


def test_a_row_of_nan_may_move_and_a_row_of_zeros_is_none() -> None:
    rows = torch.tensor([[torch.nan, torch.nan], [10, 11], [20, 21]], dtype=torch.float64)
    over = torch.tensor([[True], [True], [False]]).expand(3, 2)
    assert rows_move(rows[[1, 0, 2]], rows, [rows[[1, 0, 2]]], over, NEAR)
    zeros = rows[[1, 0, 2]].nan_to_num(0.0)
    assert not rows_move(zeros, rows, [rows[[1, 0, 2]]], over, NEAR)


def test_a_row_that_no_run_has_does_not_only_move() -> None:
    target = ROWS.clone()
    target[0, 0] = 5.0
    assert not rows_move(target, ROWS, [ROWS[[1, 0, 2]]], target != ROWS, NEAR)


def test_one_row_that_wanders_among_rows_alike_need_not_reach_each_place() -> None:
    """The target has it at place 2; the only run that moves it, at place 4. A row that stays is no such wanderer."""
    alike, odd, solid = [5.0, 5.0], [1.0, 2.0], [8.0, 9.0]
    plain = torch.tensor([odd, alike, alike, solid, alike], dtype=torch.float64)
    run = torch.tensor([alike, alike, alike, solid, odd], dtype=torch.float64)
    near = torch.full((5,), 0.1, dtype=torch.float64)
    target = torch.tensor([alike, alike, odd, solid, alike], dtype=torch.float64)
    assert rows_move(target, plain, [run], target != plain, near)
    assert not rows_move(target, plain, [plain], target != plain, near)
    swapped = torch.tensor([solid, alike, alike, odd, alike], dtype=torch.float64)
    assert not rows_move(swapped, plain, [run], swapped != plain, near)


@pytest.mark.parametrize(
    ("runs", "tie"),
    [
        ([[2, 1, 3, 4], [2, 1, 3, 4]], False),  # one of three flips
        ([[2, 1, 3, 4], [1, 3, 3, 4]], True),  # two of three, and the third's value is seen
        ([[2, 9, 4, 4]], True),  # all three
        ([[2, 1], [1, 1]], True),  # another shape: everything hangs on it
    ],
)
def test_integers_flip_where_most_do_in_some_run(runs: list[list[int]], tie: bool) -> None:
    plain, target = torch.tensor([1, 1, 3, 4]), torch.tensor([2, 3, 4, 4])
    found = integers_flip(target, plain, [torch.tensor(run) for run in runs], plain != target)
    assert found is tie


def test_a_value_that_no_run_has_is_no_flip() -> None:
    plain, target = torch.tensor([1, 1, 3, 4]), torch.tensor([2, 3, 7, 4])
    runs = [torch.tensor([2, 1, 3, 4]), torch.tensor([1, 3, 3, 4])]
    assert not integers_flip(target, plain, runs, plain != target)


def test_rows_are_matched_before_their_noise_is_measured() -> None:
    """Every run drops the second row, and the others move by a tenth."""
    moved = ROWS[[0, 2]] + 0.1
    oracle = OracleAnswer({"$": ROWS}, None, [{"$": moved}])
    floor = noise_floor("$", oracle)
    assert floor is not None
    torch.testing.assert_close(floor, torch.full((3, 2), 0.1, dtype=torch.float64))


@given(st.permutations(range(6)), st.integers(1, 6))
def test_aligned_puts_rows_back(order: list[int], kept: int) -> None:
    rows = torch.arange(6.0).double()[:, None] * 10
    found = aligned(rows, rows[order[:kept]])
    there = torch.zeros(6, dtype=torch.bool)
    there[order[:kept]] = True
    assert torch.equal(found[there], rows[there])
    assert bool(found[~there].isnan().all())


def test_distances_by_a_product_have_the_noise_of_what_cancels_in_them() -> None:
    """Points near 100: |x|² is 1e4·8, so that its rounding, 4e-3, is some 5 % of the squared distance of near ones."""
    x = torch.rand(30, 8, generator=torch.Generator().manual_seed(0)) * 0.2 + 100
    module = Function(lambda a: torch.cdist(a, a, compute_mode="use_mm_for_euclid_dist"))
    answer = ask_oracle(Local(seed_for([x]), ORACLE, module, [x]), named([x]), rng_seed=0)
    floor = noise_floor("$", answer)
    assert floor is not None
    exact = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert float((module(x) - exact).abs().max()) < 5 * float(floor.max())
    assert float(floor.median()) > 1e-3


def test_what_cancels_in_float32_leaves_few_bits_and_no_16_bit_dtype() -> None:
    """(x·x).mean − mean² around 1000 answers in steps of 1/16, which float16 has too; float64 leaves that grid."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) + 1e3

    def naive(a: Tensor) -> Tensor:
        return (a * a).mean(-1) - a.mean(-1) ** 2

    steps = naive(x) * 16
    assert torch.equal(steps, steps.round())
    found = verdict_on(Function(naive), [x], Function(lambda a: naive(a.double()).float()))
    assert found.verdict.differences == []
    assert found.oracle is not None
    assert not found.oracle.narrow


@pytest.mark.parametrize("cast", [Tensor.half, Tensor.bfloat16])
def test_the_oracle_tells_that_a_16_bit_float_was_seen(cast: Callable[[Tensor], Tensor]) -> None:
    x = torch.rand(4)
    oracle = Local(seed_for([x]), ORACLE, Function(lambda a: cast(a).float()), [x])
    assert ask_oracle(oracle, named([x]), rng_seed=0).narrow


@pytest.mark.parametrize(("function", "seen"), [(torch.nn.functional.gelu, True), (torch.relu, False)])
def test_the_oracle_tells_that_a_formula_stood_in_for_a_kernel(
    function: Callable[[Tensor], Tensor], seen: bool
) -> None:
    x = torch.rand(4)
    oracle = Local(seed_for([x]), ORACLE, Function(lambda a: function(a).sum(-1)), [x])
    assert ask_oracle(oracle, named([x]), rng_seed=0).formulas is seen


@given(st.permutations(range(5)), st.floats(0.001, 0.4))
def test_rows_that_change_places_have_the_noise_of_their_values(order: list[int], moved: float) -> None:
    """Rows ten apart: whatever their order in a run, each moves by `moved`; element by element it is tens."""
    rows = torch.arange(5.0).double()[:, None] * 10 + torch.tensor([0.0, 1.0]).double()
    noise = row_noise("$", OracleAnswer({"$": rows}, None, [{"$": rows[list(order)] + moved}]))
    assert noise is not None
    torch.testing.assert_close(noise, torch.full((5,), moved, dtype=torch.float64))


def test_a_few_rows_beyond_the_noise_move_as_part_of_all_rows_that_do() -> None:
    """Ten tied rows in another order each run: only the one far from all others is beyond the floor of its place."""
    rows = torch.tensor([[300.0 + i, 310.0] for i in range(9)] + [[0.0, 0.0]], dtype=torch.float64)
    runs = [rows.roll(shift, 0) for shift in (2, 3, 4)]
    target = rows.roll(1, 0)
    over = torch.zeros_like(rows, dtype=torch.bool)
    over[0] = True  # where the target has the row of zeros, and no run has it
    near = torch.full((10,), 0.5, dtype=torch.float64)
    assert rows_move(target, rows, runs, over, near)
    torn = target.clone()
    torn[4] += 0.7  # a row of another place, and not as any run has it
    assert not rows_move(torn, rows, runs, over, near)
