"""The judge forgives rounding, whatever the order of the terms, and catches what is wrong, however small its share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.known_cases import Function
from benchmarks.local import seed_for, verdict_on
from fuzzer.seeds import Tolerance
from fuzzer.trees import Leaves
from fuzzer.verify.compare import compare
from fuzzer.verify.judge import THRESHOLD, Judgement, OracleAnswer, judge, noise_floor
from fuzzer.verify.noise import growth
from fuzzer.verify.verdict import Blame, Kind, Outcome, Verdict

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 1, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def verdict(first: Any, second: Any, *inputs: Tensor, **how: Any) -> Verdict:
    """Tier 1 of one function or module against another that should do the same."""
    modules = [side if isinstance(side, nn.Module | str) else Function(side) for side in (first, second)]
    return verdict_on(modules[0], inputs, modules[1], **how).verdict


def assert_silent(found: Verdict) -> None:
    assert (found.outcome, found.differences) == (Outcome.PASS, [])


def in_float64(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args: function(*(arg.double() for arg in args)).float()


# What must stay silent: the same mathematics in another order, or more precisely.


def reversed_sum(x: Tensor) -> Tensor:
    return x.flip(-1).sum(-1, keepdim=True)


def softmax_by_hand(x: Tensor) -> Tensor:
    grown = (x - x.amax(-1, keepdim=True)).exp()
    return grown / reversed_sum(grown)


def layer_norm_by_hand(x: Tensor) -> Tensor:
    centred = x - reversed_sum(x) / x.shape[-1]
    return centred * (reversed_sum(centred.square()) / x.shape[-1] + 1e-5).rsqrt()


def variance_by_hand(x: Tensor) -> Tensor:
    centred = x - reversed_sum(x) / x.shape[-1]
    return centred.square().sum(-1) / (x.shape[-1] - 1)


def attention_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def gelu_by_hand(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * 2**-0.5))


def three_times(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: activation(activation(activation(x) * 3) * 3)


def convolution_by_hand(x: Tensor, w: Tensor) -> Tensor:
    columns = F.unfold(x, 3).transpose(1, 2) @ w.reshape(w.shape[0], -1).T
    return columns.transpose(1, 2).reshape(x.shape[0], w.shape[0], x.shape[2] - 2, x.shape[3] - 2)


def half_product(x: Tensor, w: Tensor) -> Tensor:
    return (x.half() @ w.half()).float()


CANCELLING = torch.cat([normal(4, 500, scale=1e6), -normal(4, 500, scale=1e6), normal(4, 8)], 1)
HILBERT = torch.tensor([[1 / (i + j + 1) for j in range(6)] for i in range(6)])
HEADS = [normal(1, 2, 17, 16, seed=seed) for seed in (1, 2, 3)]

REORDERED: dict[str, tuple[Any, Any, list[Tensor]]] = {
    "sum": (lambda x: x.sum(-1, keepdim=True), reversed_sum, [normal(4, 5000)]),
    "sum that cancels": (lambda x: x.sum(-1, keepdim=True), reversed_sum, [CANCELLING]),
    "65536 terms one by one": (lambda x: x.sum(-1), lambda x: x.cumsum(-1)[..., -1], [normal(4, 65536).abs()]),
    "product of 65536 terms": (
        torch.mm,
        lambda x, w: x.flip(1) @ w.flip(0),
        [normal(2, 65536), normal(65536, 3, seed=2)],
    ),
    "softmax over 1e5": (lambda x: x.softmax(-1), softmax_by_hand, [normal(1, 100_000)]),
    "softmax of huge scores": (lambda x: x.softmax(-1), softmax_by_hand, [normal(4, 64, scale=1e5)]),
    "solve": (
        torch.linalg.solve,
        lambda a, b: torch.linalg.inv(a) @ b,
        [normal(8, 8) + 1e4, normal(8, 2, seed=2)],
    ),
    "solve, near-singular": (
        torch.linalg.solve,
        lambda a, b: torch.linalg.solve(a.flip(0), b.flip(0)),
        [HILBERT, normal(6, 2)],
    ),
    "variance around 1e5": (lambda x: x.var(-1), variance_by_hand, [normal(4, 256) + 1e5]),
    "variance of a constant": (lambda x: x.var(-1), variance_by_hand, [torch.full((4, 257), 1e5 + 0.1)]),
    "layer norm": (lambda x: F.layer_norm(x, (64,)), layer_norm_by_hand, [normal(4, 64)]),
    "layer norm around 1e4": (lambda x: F.layer_norm(x, (64,)), layer_norm_by_hand, [normal(4, 64) + 1e4]),
    "layer norm of a constant": (lambda x: F.layer_norm(x, (64,)), layer_norm_by_hand, [torch.full((4, 64), 3.3)]),
    "attention": (F.scaled_dot_product_attention, attention_by_hand, HEADS),
    "attention, sharp": (F.scaled_dot_product_attention, attention_by_hand, [HEADS[0] * 30, HEADS[1] * 30, HEADS[2]]),
    "gelu chain": (three_times(F.gelu), three_times(gelu_by_hand), [normal(4, 64, scale=3)]),
    "sigmoid": (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x)), [normal(4, 64, scale=5)]),
    "tanh": (torch.tanh, lambda x: 1 - 2 / (torch.exp(2 * x) + 1), [normal(4, 64)]),
    "convolution": (F.conv2d, convolution_by_hand, [normal(2, 4, 8, 8), normal(5, 4, 3, 3, seed=2)]),
    "float16 product": (
        half_product,
        lambda x, w: half_product(x.flip(1), w.flip(0)),
        [normal(4, 64), normal(64, 8, seed=2)],
    ),
    "fourier": (torch.fft.rfft, lambda x: torch.fft.rfft(x.double()).to(torch.complex64), [normal(4, 64)]),
}


@pytest.mark.parametrize("name", REORDERED)
def test_the_same_terms_in_another_order_are_rounding(name: str) -> None:
    function, other, inputs = REORDERED[name]
    assert_silent(verdict(function, other, *inputs))


@pytest.mark.parametrize("name", [n for n in REORDERED if "float16" not in n and n != "fourier"])
def test_float64_rounded_at_the_end_is_rounding(name: str) -> None:
    function, _, inputs = REORDERED[name]
    assert_silent(verdict(function, in_float64(function), *inputs))


class Digits(nn.Module):
    """A small convolutional classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("target", ["eager:cpu", "eager:cpu?layout=channels_last", "eager:cpu?threads=2"])
def test_the_reference_agrees_with_itself_in_other_layouts_and_on_more_threads(target: str) -> None:
    try:
        assert_silent(verdict(Digits(), target, normal(2, 3, 16, 16)))
    finally:
        torch.set_num_threads(1)


@given(seed=st.integers(0, 2**31), exponent=st.floats(-3, 3), width=st.integers(1, 40), deep=st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_random_networks_with_their_terms_reversed_are_rounding(
    seed: int, exponent: float, width: int, deep: int
) -> None:
    scale = 10**exponent
    weights = [normal(width, width, seed=seed + i, scale=scale / math.sqrt(width)) for i in range(deep)]

    def straight(x: Tensor) -> Tensor:
        for w in weights:
            x = torch.tanh(x @ w) + x
        return x

    def reverse(x: Tensor) -> Tensor:
        for w in weights:
            x = torch.tanh(x.flip(1) @ w.flip(0)) + x
        return x

    assert_silent(verdict(straight, reverse, normal(3, width, seed=seed + 9, scale=scale)))


@given(seed=st.integers(0, 2**31), exponent=st.floats(-3, 3), channels=st.integers(1, 6))
@settings(deadline=None, max_examples=15)
def test_random_convolutions_as_matrix_products_are_rounding(seed: int, exponent: float, channels: int) -> None:
    x, w = normal(2, channels, 7, 7, seed=seed, scale=10**exponent), normal(3, channels, 3, 3, seed=seed + 1)
    assert_silent(verdict(F.conv2d, convolution_by_hand, x, w))


# What must be caught.


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))

    def between(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden)


class InHalf(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden).half().float()


class InTf32(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return (F.gelu(hidden).view(torch.int32) & ~0x1FFF).view(torch.float32)


class ByTanh(Net):
    def between(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden, approximate="tanh")


ROWS = normal(16, 64)


def corrupted(function: Any, fault: Callable[[Any], Any], *inputs: Tensor, **how: Any) -> Verdict:
    module = function if isinstance(function, nn.Module) else Function(function)
    return verdict(module, Function(lambda *args: fault(module(*args))), *inputs, **how)


def put(index: int, change: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """Changes one element."""

    def fault(y: Tensor) -> Tensor:
        flat = y.clone().reshape(-1)
        flat[index] = change(flat[index])
        return flat.reshape(y.shape)

    return fault


def kinds(found: Verdict) -> set[Kind]:
    return {difference.kind for difference in found.differences}


@pytest.mark.parametrize("wrong", [InHalf, InTf32, ByTanh])
def test_less_precision_inside_is_the_targets_fault(wrong: type[Net]) -> None:
    found = verdict(Net(), wrong(), ROWS)
    assert (found.outcome, found.blame, kinds(found)) == (Outcome.MISMATCH, Blame.TARGET, {Kind.VALUE})


@pytest.mark.parametrize("share", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("module", [Net(), Digits(), Function(torch.sigmoid), Function(lambda x: x.softmax(-1))])
def test_one_element_moved_by_a_share_of_the_spread_is_caught(module: nn.Module, share: float) -> None:
    x = normal(2, 3, 16, 16) if isinstance(module, Digits) else ROWS
    found = corrupted(module, lambda y: put(7, lambda v: v + share * y.std())(y), x)
    assert (found.outcome, found.blame) == (Outcome.MISMATCH, Blame.TARGET)
    assert found.differences[0].mismatched == 1


@pytest.mark.slow
def test_one_element_in_four_million_is_caught() -> None:
    found = corrupted(lambda x: x * 1.7 + 0.3, put(1_234_567, lambda v: v * 1.001), normal(2048, 2048))
    assert (found.differences[0].mismatched, found.blame) == (1, Blame.TARGET)
    assert found.differences[0].index == (1_234_567 // 2048, 1_234_567 % 2048)


def test_two_elements_swapped_are_caught() -> None:
    def swapped(y: Tensor) -> Tensor:
        y = y.clone()
        y[0, [3, 9]] = y[0, [9, 3]]
        return y

    assert corrupted(Net(), swapped, ROWS).differences[0].mismatched == 2


def test_a_small_leaf_zeroed_beside_a_large_one_is_caught() -> None:
    found = corrupted(lambda x: (x.tanh(), x.tanh() * 1e-4), lambda y: (y[0], y[1] * 0), ROWS)
    assert [(d.path, d.kind) for d in found.differences] == [("[1]", Kind.VALUE)]


@pytest.mark.parametrize("off", [1, 4])
def test_an_integer_that_is_off_is_caught(off: int) -> None:
    found = corrupted(lambda x: (x.abs().sum() * 0).long() + 5000, lambda y: y + off, ROWS)
    assert (kinds(found), found.blame) == ({Kind.INTEGER}, Blame.TARGET)
    assert (found.differences[0].reference, found.differences[0].truth) == ("5000", "5000")


def test_a_nan_at_another_place_is_caught() -> None:
    found = corrupted(lambda x: x.masked_fill(x == x.amax(), math.nan), lambda y: y.roll(1, 0).clone(), ROWS)
    assert Kind.NONFINITE in kinds(found)


def test_a_shape_that_would_broadcast_is_caught() -> None:
    found = corrupted(lambda x: x[:4, :4].tanh(), lambda y: y[:, :1], ROWS)
    assert (kinds(found), found.blame) == ({Kind.SHAPE}, Blame.TARGET)


@pytest.mark.parametrize("tile", [1, 4])
def test_a_wrong_last_tile_is_caught(tile: int) -> None:
    def fault(y: Tensor) -> Tensor:
        y = y.clone()
        y[:, -tile:] = y[:, -tile:].flip(0)
        return y

    assert corrupted(Net(), fault, ROWS).differences[0].mismatched >= tile


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (lambda x: (x, x + 1), lambda y: y[:1]),
        (lambda x: {"a": x, "b": x}, lambda y: {"a": y["a"], "c": y["b"]}),
        (lambda x: [{"boxes": x[:, :4]}], lambda y: []),
    ],
)
def test_leaves_that_are_dropped_or_renamed_are_caught(function: Any, fault: Any) -> None:
    found = corrupted(function, fault, ROWS)
    assert (kinds(found), found.blame) == ({Kind.ARITY}, Blame.TARGET)


def test_a_list_of_boxes_that_is_one_shorter_is_caught() -> None:
    found = corrupted(lambda x: [{"boxes": x[:, :4]}], lambda y: [{"boxes": y[0]["boxes"][:-1]}], ROWS)
    assert [(d.path, d.kind, d.near_tie) for d in found.differences] == [("[0].boxes", Kind.SHAPE, False)]


def test_a_zero_of_the_other_sign_is_caught_where_the_seed_asks_and_the_wrong_side_is_named() -> None:
    def flipped(y: Tensor) -> Tensor:
        return torch.where(y == 0, -y, y)

    assert_silent(corrupted(torch.relu, flipped, ROWS))
    found = corrupted(torch.relu, flipped, ROWS, seed=seed_for([ROWS], signed_zero=True))
    assert (kinds(found), found.blame) == ({Kind.SIGNED_ZERO}, Blame.TARGET)


@given(index=st.integers(0, 511), share=st.floats(1e-3, 10), sign=st.sampled_from([-1, 1]), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_any_element_moved_by_a_thousandth_of_the_spread_is_caught(
    index: int, share: float, sign: int, seed: int
) -> None:
    found = corrupted(Net(), lambda y: put(index, lambda v: v + sign * share * y.std())(y), normal(16, 64, seed=seed))
    assert [d.mismatched for d in found.differences] == [1]
    assert found.differences[0].index == (index // 32, index % 32)


def test_a_python_float_that_is_off_is_caught_and_one_that_rounds_is_not() -> None:
    assert_silent(verdict(lambda x: (x, float(x.sum())), lambda x: (x, float(x.flip(-1).sum())), ROWS))
    found = corrupted(lambda x: (x, float(x.sum())), lambda y: (y[0], y[1] * 1.01), ROWS)
    assert [(d.path, d.kind, d.blame) for d in found.differences] == [("[1]", Kind.VALUE, Blame.TARGET)]


def test_a_python_integer_that_is_off_is_blamed_by_float64() -> None:
    found = corrupted(lambda x: (x, int((x > 0).sum())), lambda y: (y[0], y[1] + 1), ROWS)
    assert [(d.kind, d.blame) for d in found.differences] == [(Kind.INTEGER, Blame.TARGET)]


# Which side, and what hangs on a near-tie.


def test_a_reference_that_is_wrong_is_blamed_and_a_cast_that_the_model_makes_is_not() -> None:
    def right_in_float64_only(x: Tensor) -> Tensor:
        return x * (1.001 if x.dtype == torch.float32 else 1.0)

    assert verdict(right_in_float64_only, lambda x: x * 1.0, ROWS).blame is Blame.REFERENCE
    assert verdict(lambda x: x.half().float() * 1.0, lambda x: x * 1.0, ROWS).blame is Blame.TARGET


def test_an_argmax_between_equal_scores_is_a_near_tie_and_one_with_a_margin_is_not() -> None:
    tied = torch.tensor([[0.3, 0.7, 0.7, 0.1]])
    clear = torch.tensor([[0.3, 0.7, 0.6, 0.1]])
    other = put(0, lambda v: 2)
    for x, blame, near in ((tied, Blame.NEITHER, True), (clear, Blame.TARGET, False)):
        found = corrupted(lambda x: (x * 1).argmax(-1), other, x)
        assert [(d.blame, d.near_tie) for d in found.differences] == [(blame, near)]


def test_a_kept_set_at_its_threshold_is_a_near_tie_only_within_what_rounding_reaches() -> None:
    x = torch.tensor([0.1, 0.5, 0.5000001, 0.9, 0.8])

    def kept(x: Tensor) -> Tensor:
        return x[x * 1.0 > 0.5]

    shorter = corrupted(kept, lambda y: y[1:], x)
    assert [(d.kind, d.near_tie, d.blame) for d in shorter.differences] == [(Kind.SHAPE, True, Blame.NEITHER)]
    empty = corrupted(kept, lambda y: y[:0], x)
    assert [(d.kind, d.near_tie, d.blame) for d in empty.differences] == [(Kind.SHAPE, False, Blame.TARGET)]


def test_a_step_that_flips_is_a_near_tie_and_not_rounding() -> None:
    x = torch.tensor([0.5, 6.0, -1.0, 0.25])
    y = torch.tensor([0.1, 0.1, 0.1, 0.25])
    found = verdict(lambda a, b: torch.div(a, b, rounding_mode="floor"), lambda a, b: torch.floor(a / b), x, y)
    assert found.outcome is Outcome.MISMATCH
    assert (found.differences[0].near_tie, found.blame) == (True, Blame.NEITHER)


# Pure: hand-made answers of an oracle.


def answer(plain: Tensor, truth: Tensor | None, draws: list[Tensor]) -> OracleAnswer:
    return OracleAnswer({"$": plain}, None if truth is None else {"$": truth}, [{"$": draw} for draw in draws])


def judged(
    reference: Leaves, target: Leaves, oracle: OracleAnswer, wide: OracleAnswer | None = None, **how: Any
) -> Judgement:
    return judge(reference, target, compare(reference, target), oracle, lambda: wide, **how)


ONES = torch.ones(4)
STEP = 2.0**-20


def test_the_floor_is_the_largest_move_but_at_least_the_median_of_the_leaf() -> None:
    draws = [torch.tensor([1.0, 1.1, 1.2, 1.3]), torch.tensor([1.0, 0.6, 1.1, 1.0])]
    floor = noise_floor("$", answer(ONES, None, draws))
    assert floor is not None
    assert floor.tolist() == pytest.approx([0.2, 0.4, 0.2, 0.3])


def test_runs_of_another_shape_and_elements_that_are_not_finite_tell_nothing() -> None:
    draws = [torch.ones(3) * 9, torch.tensor([math.nan, math.inf, 1.5, 1.5])]
    floor = noise_floor("$", answer(ONES, None, draws))
    assert floor is not None
    assert floor.tolist() == [0.0, 0.0, 0.5, 0.5]  # median of an even number: the lower one
    assert noise_floor("absent", answer(ONES, None, draws)) is None


@given(floors=st.floats(0, 100))
@settings(deadline=None)
def test_a_gap_stands_beyond_the_threshold_and_is_rounding_within(floors: float) -> None:
    oracle = answer(ONES, ONES.double(), [ONES + STEP, ONES - STEP])
    target = ONES.clone()
    target[2] += floors * STEP
    gap = (float(target[2]) - 1) / (STEP + 2.0**-23)
    found = judged({"$": ONES}, {"$": target}, oracle, oracle)
    assert bool(found.standing) == (gap > THRESHOLD)
    if found.standing:
        assert found.standing[0].blame is Blame.TARGET
        assert found.standing[0].drift_target == pytest.approx(gap)
        assert found.standing[0].drift_reference == 0


@pytest.mark.parametrize(
    ("reference", "target", "blame"),
    [(0.0, 50.0, Blame.TARGET), (50.0, 0.0, Blame.REFERENCE), (50.0, -50.0, Blame.BOTH)],
)
def test_the_side_that_is_far_from_float64_is_blamed(reference: float, target: float, blame: Blame) -> None:
    oracle = answer(ONES, ONES.double(), [ONES + STEP, ONES - STEP])
    sides = [{"$": ONES + floors * STEP} for floors in (reference, target)]
    assert [d.blame for d in judged(sides[0], sides[1], oracle, oracle).standing] == [blame]


def test_two_sides_that_are_far_from_float64_together_are_rounding() -> None:
    oracle = answer(ONES, ONES.double() * 2, [ONES + STEP, ONES - STEP])
    assert judged({"$": ONES}, {"$": ONES + STEP}, oracle, oracle).standing == []


def test_without_float64_nobody_is_blamed_and_a_note_says_so() -> None:
    oracle = answer(ONES, None, [ONES + STEP, ONES - STEP])
    found = judged({"$": ONES}, {"$": ONES * 2}, oracle, oracle)
    assert [d.blame for d in found.standing] == [Blame.UNKNOWN]
    assert found.notes == ["no float64 answer: the oracle gave none"]


def test_where_no_run_is_finite_nobody_is_blamed_and_a_note_says_so() -> None:
    oracle = answer(ONES, ONES.double(), [ONES * math.nan] * 8)
    found = judged({"$": ONES}, {"$": ONES * 1.1}, oracle, oracle)
    assert [d.blame for d in found.standing] == [Blame.UNKNOWN]
    assert judged({"$": ONES}, {"$": ONES + 50 * STEP}, oracle, oracle).standing == []
    assert found.notes == ["no run under random rounding is finite at $: its noise is not known"]


def test_over_the_seeds_own_tolerance_rounding_stands_with_nobody_to_blame() -> None:
    oracle = answer(ONES, ONES.double(), [ONES + STEP, ONES - STEP])
    found = judged({"$": ONES}, {"$": ONES + STEP}, oracle, oracle, own_tolerance=True)
    assert [(d.blame, d.near_tie) for d in found.standing] == [(Blame.NEITHER, False)]


def test_decisions_are_asked_for_at_most_once_and_not_for_rounding() -> None:
    oracle = answer(ONES, ONES.double(), [ONES + STEP, ONES - STEP])
    calls: list[int] = []

    def decide() -> OracleAnswer:
        calls.append(1)
        return oracle

    for target, expected in (({"$": ONES + STEP}, 0), ({"$": ONES * 2, "b": torch.tensor([1])}, 1)):
        reference: Leaves = {"$": ONES, "b": torch.tensor([0])}
        target.setdefault("b", torch.tensor([0]))
        judge(reference, target, compare(reference, target), oracle, decide)
        assert len(calls) == expected


def test_growth_tells_noise_from_decisions() -> None:
    def runs(*values: list[float]) -> OracleAnswer:
        return answer(torch.zeros(2), None, [torch.tensor(row) for row in zip(*values, strict=True)])

    narrow = runs([1.0, -1.0, 0.5, 0.0], [0.0, 1.0, 0.0, 1.0])
    wide = runs([5.0, -4.0, 2.0, 0.0, 99.0], [1.0, 0.0, 1.0, 1.0, 99.0])
    assert growth("$", narrow, wide).tolist() == [4.5, 1.0]  # type: ignore[union-attr]
    assert growth("$", narrow, answer(torch.zeros(3), None, [torch.zeros(3)] * 4)) is None


def test_an_answer_is_sorted_from_flat_leaves() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    found = OracleAnswer.from_leaves(
        {".plain": one, ".truth.a[0]": one, ".draws[0]": one, ".draws[10].x": two, ".draws[2]": one}
    )
    assert found.plain == {"$": one}
    assert found.truth == {".a[0]": one}
    assert found.draws == [{"$": one}, {"$": one}, {".x": two}]
    assert OracleAnswer.from_leaves({".truth.no_truth": "why"}).no_truth == "why"


@given(
    reference=st.sampled_from([None, 3, 2.5, "x", True, ONES, ONES.int(), ONES[:0], ONES * math.nan, ONES + 1j]),
    target=st.sampled_from([None, 4, 2.0, "y", False, -ONES * 0, ONES.to(torch.uint64), ONES[:0], ONES.half() * 2]),
    truth=st.sampled_from([None, 3, 2.5, ONES.double(), ONES.long(), ONES[:2], ONES.double() * math.inf]),
)
@settings(deadline=None, max_examples=200)
def test_the_judge_takes_leaves_of_any_kind(reference: Any, target: Any, truth: Any) -> None:
    oracle = OracleAnswer({"$": reference}, {"$": truth}, [{"$": target}, {}])
    sides: list[Leaves] = [{"$": reference}, {"$": target}]
    comparison = compare(sides[0], sides[1], signed_zero=True)
    found = judge(sides[0], sides[1], comparison, oracle, lambda: oracle)
    assert len(found.standing) + len(found.rounding) == len(comparison.differences)
    assert all(isinstance(d.blame, Blame) for d in found.standing)


def test_a_seeds_tolerance_passes_what_is_beyond_the_noise() -> None:
    wide = seed_for([ROWS], tolerance=Tolerance(atol=1e-2))
    fault = put(7, lambda v: v + 5e-3)
    assert_silent(corrupted(Net(), fault, ROWS, seed=wide))
    assert corrupted(Net(), fault, ROWS).outcome is Outcome.MISMATCH


class TestNoiseWithoutRoomToGrow:
    def test_a_layer_norm_of_nearly_equal_values_decides_nothing_and_is_rounding(self) -> None:
        """Noise of one ULP already spreads the answers over their whole range: it cannot grow, and is no near-tie."""
        torch.manual_seed(3)
        module = nn.Sequential(nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16))
        large = torch.tensor(131072.0)
        x = large.expand(4, 32).clone()
        x[:, ::3] = torch.nextafter(large, 2 * large)
        x[:, ::7] = torch.nextafter(large, torch.tensor(0.0))
        reordered = nn.Sequential(Centred(32), nn.GELU(), module[2])
        found = verdict_on(module, [x], reordered)
        assert found.verdict.differences == []


class Centred(nn.Module):
    """A layer norm that takes the mean of the values less the first one: the same in exact arithmetic."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        x = x - x[..., :1]
        x = x - x.mean(-1, keepdim=True)
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize(("answer", "blame"), [(0.3, Blame.REFERENCE), (0.9, Blame.BOTH)])
def test_a_finite_answer_beside_a_nan_must_have_the_right_value_to_be_right(answer: float, blame: Blame) -> None:
    """x²/x² overflows in float32 and is 1 in float64; another leaf's worth of 1e20 must not make 0.9 look like 0.3."""
    x = torch.tensor([1e30, 2.0])

    def overflows(x: Tensor) -> Tensor:
        return torch.cat([x * x / (x * x) * 0.3, torch.full_like(x, 1e20)])

    def answers(x: Tensor) -> Tensor:
        return torch.cat([torch.where(x > 1e20, answer, 0.3), torch.full_like(x, 1e20)])

    assert verdict(overflows, answers, x).blame is blame


def naive_variance(x: Tensor) -> Tensor:
    return (x * x).mean(-1) - x.mean(-1) ** 2


def test_an_overflow_that_hangs_on_the_order_of_a_sum_is_a_near_tie_even_where_every_run_has_it() -> None:
    """1e30, 1, −1e30, 1 and so on: in this order the mean is small and ∞ − mean² is ∞; in others ∞ − ∞ is NaN."""
    x = torch.tensor([1e30, 1.0, -1e30, 1.0] * 16)
    assert torch.isinf(naive_variance(x))
    found = verdict(naive_variance, lambda a: naive_variance(a) * torch.nan, x)
    assert [(d.kind, d.near_tie, d.blame) for d in found.differences] == [(Kind.NONFINITE, True, Blame.NEITHER)]


def test_a_nan_that_no_run_has_is_the_targets_fault() -> None:
    x = torch.full((64,), 1e30)
    found = verdict(lambda a: (a * a).mean(-1), lambda a: a.sum(-1) * torch.nan, x)
    assert [(d.kind, d.near_tie, d.blame) for d in found.differences] == [(Kind.NONFINITE, False, Blame.TARGET)]


def test_a_shape_that_one_run_at_one_place_has_is_a_near_tie() -> None:
    """Also where none of the wider runs, whose zeros move as well, comes to it."""
    plain, target = torch.ones(5), torch.ones(4)
    wide = answer(plain, None, [plain] * 3)
    for seen, tie in (([plain, target], True), ([plain, plain], False)):
        found = judged({"$": plain}, {"$": target}, answer(plain, target, seen), wide)
        assert [(d.kind, d.near_tie) for d in found.standing] == [(Kind.SHAPE, tie)]
        assert found.standing[0].blame is (Blame.NEITHER if tie else Blame.REFERENCE)
