"""Random rounding moves what was rounded and nothing else; the float64 mode answers what the module says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.known_cases import Function
from benchmarks.local import Local, named, seed_for
from fuzzer.backends.operators import EXACT, MANY_ROUNDINGS, ONE_ROUNDING, RANDOM
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.rounding import Float64, RandomRounding, formulas
from fuzzer.verify.examine import ask_oracle
from fuzzer.verify.ulp import ulp_distance

torch.set_num_threads(1)

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def runs(function: Any, *args: Tensor, amplitude: int = 1, count: int = 8) -> list[Any]:
    found = []
    for seed in range(count):
        with RandomRounding(seed, amplitude):
            found.append(function(*args))
    return found


# The move of one value.


@pytest.mark.parametrize("dtype", FLOATS)
@given(amplitude=st.integers(1, 200), seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=20)
def test_no_element_moves_further_than_the_amplitude(
    dtype: torch.dtype, amplitude: int, seed: int, scale: float
) -> None:
    x = (normal(5, 7, seed=seed) * scale).to(dtype)
    moved = RandomRounding(seed, amplitude).move(x)
    assert (moved.dtype, moved.shape) == (x.dtype, x.shape)
    assert int(ulp_distance(x, moved).max()) <= amplitude
    assert torch.equal(torch.signbit(moved), torch.signbit(x))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("amplitude", [1, 5])
def test_every_step_up_to_the_amplitude_occurs_on_either_side(dtype: torch.dtype, amplitude: int) -> None:
    x = torch.full((2000,), 1.5, dtype=dtype)
    moved = RandomRounding(0, amplitude).move(x)
    steps = (torch.sign(moved.double() - x.double()) * ulp_distance(x, moved)).int()
    assert set(steps.tolist()) == set(range(-amplitude, amplitude + 1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_infinities_nan_and_the_ends_of_the_range_do_not_move(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, info.max, -info.max], dtype=dtype).repeat(50)
    moved = RandomRounding(0, 1).move(x)
    assert torch.equal(moved.view(torch.uint8), x.view(torch.uint8))


def test_zeros_move_to_subnormals_of_both_signs_where_that_is_asked_for() -> None:
    moved = RandomRounding(0, 5, move_zeros=True).move(torch.zeros(1000))
    smallest = 2.0**-149
    assert sorted(set((moved.double() / smallest).int().tolist())) == list(range(-5, 6))


def test_what_is_no_float_does_not_move() -> None:
    mode = RandomRounding(0)
    for value in (torch.arange(5), torch.tensor([True]), "text", None, 3.5, torch.zeros(0)):
        assert mode.move(value) is value


def test_complex_numbers_move_in_both_parts() -> None:
    x = torch.complex(torch.ones(500), torch.full((500,), -2.0))
    moved = RandomRounding(0).move(x)
    assert moved.real.unique().numel() == 3
    assert moved.imag.unique().numel() == 3


def test_a_view_is_not_written_to() -> None:
    base = normal(4, 4)
    kept = base.clone()
    RandomRounding(0, 5).move(base.t()[1:])
    assert torch.equal(base, kept)


def test_the_same_seed_moves_alike_and_another_one_does_not() -> None:
    x = normal(100)
    assert torch.equal(RandomRounding(3).move(x), RandomRounding(3).move(x))
    assert not torch.equal(RandomRounding(3).move(x), RandomRounding(4).move(x))


# Operators.


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu(),
        lambda x: x.abs().amax(-1),
        lambda x: x.sort(-1).values,
        lambda x: x.t().contiguous().flip(0)[1:],
        lambda x: torch.cat([x, -x]),
        lambda x: F.max_pool2d(x[None, None], 2),
        lambda x: x.half().float(),
        lambda x: x.clamp(-1, 1).masked_fill(x > 0, 3.0),
        lambda x: x.topk(3).values,
        lambda x: x * 2,
        lambda x: x * 0.5,
        lambda x: x.round() + 1.0,
        lambda x: x - x,
        lambda x: (x.round() * x.round()).sqrt(),
    ],
)
def test_what_is_exact_does_not_move(function: Any) -> None:
    x = normal(8, 6)
    assert all(torch.equal(run, function(x)) for run in runs(function, x))


@pytest.mark.parametrize("function", [torch.exp, lambda x: x / 3, lambda x: x * x, lambda x: x + 0.1, torch.sigmoid])
def test_a_rounded_result_moves_by_one_place(function: Any) -> None:
    x = normal(8, 6).abs() + 0.1
    plain = function(x)
    distances = torch.stack([ulp_distance(plain, run) for run in runs(function, x)])
    assert int(distances.max()) == 1


def test_sums_are_taken_in_another_order() -> None:
    x = torch.tensor([1e8, 1.0, -1e8, 1.0] * 64)
    assert len({float(run) for run in runs(torch.sum, x)}) > 3


def test_contractions_keep_their_value_up_to_rounding() -> None:
    x, w = normal(4, 300), normal(300, 5, seed=1)
    exact = x.double() @ w.double()
    for run in runs(torch.mm, x, w):
        assert float((run - exact).abs().max()) < 1e-4
    image, kernel = normal(2, 6, 9, 9), normal(4, 6, 3, 3, seed=1)
    exact = F.conv2d(image.double(), kernel.double())
    for run in runs(F.conv2d, image, kernel):
        assert float((run - exact).abs().max()) < 1e-4


def test_the_cancellation_inside_gelu_is_seen() -> None:
    x = torch.full((200,), -5.0)
    spread = torch.stack(runs(F.gelu, x)).std(0)
    assert float(spread.mean()) > 0.01 * float(F.gelu(x).abs().mean())


RESIZES = {"linear": (2, 3, 17), "bilinear": (1, 3, 9, 13), "trilinear": (1, 2, 5, 6, 7), "bicubic": (1, 3, 9, 13)}


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("mode", RESIZES)
def test_where_resizing_takes_its_values_from_rounds_too(mode: str, align_corners: bool) -> None:
    shape = RESIZES[mode]
    huge = (normal(*shape) * 10).exp() * normal(*shape, seed=1).sign()  # neighbours cancel, so that weights matter

    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=align_corners)

    answer = resized(huge).double()
    moves = torch.stack([run.double() for run in runs(resized, huge)]) - answer
    floor = moves.abs().amax(0).clamp(min=float(moves.abs().amax(0).median()))
    assert float(((answer - resized(huge.double())).abs() / floor).max()) < 3


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("mode", RESIZES)
@pytest.mark.parametrize("size", [{"scale_factor": 0.6}, {"scale_factor": 2.5}, {"size": 1}, {"size": 19}])
def test_resizing_by_formula_is_what_the_kernel_does(mode: str, align_corners: bool, size: dict[str, Any]) -> None:
    x = normal(*RESIZES[mode]).double()

    def resized() -> Tensor:
        return F.interpolate(x, **size, mode=mode, align_corners=align_corners)

    answer = resized()
    for run in runs(resized, count=2):
        torch.testing.assert_close(run, answer, rtol=1e-13, atol=1e-13)


def test_a_grid_near_the_middle_rounds_as_the_middle_does() -> None:
    row = torch.zeros(1, 1, 1, 256)
    row[..., 127], row[..., 128] = -1e8, 1e8
    grid = torch.tensor([1e-9, 0.0]).view(1, 1, 1, 2)  # (x + 1)·128 − 0.5 rounds by 8e-6, of 2e8
    moved = [float(run) for run in runs(lambda: F.grid_sample(row, grid, align_corners=False))]
    assert max(moved) - min(moved) > 500.0


def test_in_place_operators_change_their_operand() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.clone()
        y.add_(0.1).mul_(1.3)
        return y

    x = normal(50)
    for run in runs(function, x):
        assert float((run - function(x)).abs().max()) < 1e-5
    assert len({tuple(run.tolist()) for run in runs(function, x)}) > 1


@pytest.mark.parametrize(
    "write",
    [
        lambda to, x: to.index_add_(0, torch.tensor([0, 1, 1]), x),
        lambda to, x: to.scatter_add_(0, torch.tensor([0, 1, 1]), x),
        lambda to, x: torch.mv(torch.eye(4)[:, :3], x, out=to),
        lambda to, x: torch.cumsum(torch.cat([x, x[:1]]), 0, out=to),
    ],
)
def test_what_an_operator_writes_over_its_operand_stays_written(write: Any) -> None:
    def function(x: Tensor) -> Tensor:
        to = torch.zeros(4)
        write(to, x)
        return to

    x = normal(3)
    answer = function(x)
    assert bool(answer.any())
    for run in runs(function, x):
        torch.testing.assert_close(run, answer, rtol=1e-6, atol=1e-6)


def test_operators_stand_in_one_list_only() -> None:
    for a, b in ((EXACT, MANY_ROUNDINGS), (EXACT, ONE_ROUNDING), (ONE_ROUNDING, MANY_ROUNDINGS)):
        assert not a & b
    assert RANDOM - {"normal"} <= EXACT


def test_listed_operators_exist() -> None:
    """A misspelt name would never match, and its operator would be taken for one that rounds once."""
    import torchvision  # noqa: F401  (registers roi_align)

    listed = EXACT | ONE_ROUNDING | MANY_ROUNDINGS | RANDOM
    spaces = (torch.ops.aten, torch.ops.torchvision)
    assert sorted(name for name in listed if not any(hasattr(space, name) for space in spaces)) == []


def test_formulas_are_of_forward_operators_that_write_nothing() -> None:
    assert {op.overloadpacket.__name__ for op in formulas()} >= {"gelu", "silu", "mish", "hardswish"}
    assert not any("backward" in str(op) or op._schema.is_mutable for op in formulas())


# Float64.


def wide(function: Any, *args: Tensor) -> Tensor:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            return function(*(arg.double() if arg.is_floating_point() else arg for arg in args))
    finally:
        torch.set_default_dtype(before)


@given(seed=st.integers(0, 2**31), scale=st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=20)
def test_float32_made_on_the_way_is_float64(seed: int, scale: float) -> None:
    def function(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[0], dtype=torch.float32) / 3
        return torch.sin(x.float()).to(torch.float32) + steps + torch.zeros(x.shape[0], dtype=torch.float32)

    x = (normal(9, seed=seed) * scale).double()
    found = wide(function, x)
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.sin(x) + torch.arange(9, dtype=torch.float64) / 3)


def test_an_explicit_cast_to_half_rounds_and_what_follows_is_float64() -> None:
    found = wide(lambda x: x.half() + 1e-9, torch.tensor([0.1, 0.2, 0.3]))
    rounded = torch.tensor([0.1, 0.2, 0.3]).half().double()
    assert torch.equal(found, rounded + 1e-9)


def test_random_numbers_are_those_of_the_module() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.rand_like(x) + torch.randn(3) + torch.rand(3, dtype=torch.float32)

    torch.manual_seed(5)
    plain = function(torch.zeros(3))
    torch.manual_seed(5)
    assert float((wide(function, torch.zeros(3)) - plain).abs().max()) < 1e-6


# The oracle.


class Counter(nn.Module):
    """A parameter, a buffer that each call changes, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(normal(4, 4))
        self.tied = self.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x @ self.weight + x @ self.tied


class Squares(nn.Module):
    """By an exponent that is a buffer, as ONNX files have it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("exponent", torch.tensor(2.0))
        self.register_buffer("mean", torch.tensor([0.1]))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) ** self.exponent


def test_buffers_of_whole_numbers_do_not_move() -> None:
    x = torch.linspace(-2, 2, 9)
    answer = ask_oracle(Local(seed_for([x]), ORACLE, Squares(), [x]), {"a": x}, rng_seed=1)  # type: ignore[arg-type]
    moved = torch.stack([draw["$"] for draw in answer.draws])  # type: ignore[misc]
    assert bool(moved.isfinite().all())
    assert bool((moved != answer.plain["$"]).any())


def test_the_oracle_leaves_parameters_inputs_and_default_dtype_as_they_were() -> None:
    module, x = Counter(), normal(3, 4)
    oracle = Local(seed_for([x]), ORACLE, module, [x])
    state = {name: value.clone() for name, value in module.state_dict().items() if name != "calls"}
    given_ = {"a": x.clone()}
    answer = ask_oracle(oracle, given_, rng_seed=1)  # type: ignore[arg-type]
    assert torch.equal(given_["a"], x)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in state.items())
    assert torch.get_default_dtype() == torch.float32
    assert len(answer.draws) == 8


def test_the_oracle_answers_alike_when_asked_twice() -> None:
    x = normal(3, 4)
    oracle = Local(seed_for([x]), ORACLE, nn.Linear(4, 2), [x])
    first, second = (ask_oracle(oracle, {"a": x}, rng_seed=1) for _ in range(2))  # type: ignore[arg-type]
    assert all(torch.equal(a["$"], b["$"]) for a, b in zip(first.draws, second.draws, strict=True))


def test_an_exact_input_does_not_move() -> None:
    x = torch.tensor([0.1, 0.7])
    module = Function(lambda a, b: (a * 1, b * 1))
    oracle = Local(seed_for([x, x], exact=["a"]), ORACLE, module, [x, x])
    answer = ask_oracle(oracle, named([x, x]), rng_seed=1)  # type: ignore[arg-type]
    assert all(torch.equal(draw["[0]"], x) for draw in answer.draws)
    assert not all(torch.equal(draw["[1]"], x) for draw in answer.draws)


def test_without_float64_the_reason_is_told() -> None:
    def function(x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("no float64 here")
        return x * 3

    x = normal(3)
    answer = ask_oracle(Local(seed_for([x]), ORACLE, Function(function), [x]), {"a": x}, rng_seed=1)  # type: ignore[arg-type]
    assert answer.truth is None
    assert answer.no_truth == "TypeError: no float64 here"


def test_truth_is_what_float64_gives() -> None:
    module, x = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 2)), normal(3, 6)
    answer = ask_oracle(Local(seed_for([x]), ORACLE, module, [x]), {"a": x}, rng_seed=1)  # type: ignore[arg-type]
    assert answer.truth is not None
    assert torch.equal(answer.truth["$"], module.double()(x.double()))
