"""A table of tiny modules and inputs on which backends are known to differ, and of some on which they must not.

A case that *diverges* gives a different answer than eager PyTorch on each of its `targets`. A *control* agrees, though
it is often reported not to. A *benign* one differs by rounding that the model itself amplifies. Seen with torch 2.14,
torchvision 0.29 and ONNX Runtime 1.32 on x86-64 with AVX-512.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
import torchvision.ops as ops
from torch import Tensor, nn

from fuzzer.errors import InputError

INDUCTOR = "inductor:cpu?fullgraph=true"
ORT = "onnxruntime:cpu"
ORT_PLAIN = "onnxruntime:cpu?opt=none"
EAGER = "eager:cpu"
BOTH_ORT = (ORT, ORT_PLAIN)
ALL = (INDUCTOR, ORT, ORT_PLAIN)

INF, NAN = math.inf, math.nan


class Kind(StrEnum):
    """What is expected of a case."""

    DIVERGES = "diverges"
    CONTROL = "control"
    BENIGN = "benign"


@dataclass(frozen=True)
class Case:
    """One module, the `inputs` in question, and `ordinary` inputs of the same shapes on which all targets agree.

    `label` is the taxonomy's. `right` says what the answer should be and who gives it. `refused`: targets that do not
    take the module at all. `kills`: targets whose process dies. `dynamic`: the first dimension of the first input
    varies. `exporter`: the one that accepts the module.
    """

    name: str
    kind: Kind
    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    ordinary: Callable[[], tuple[Tensor, ...]]
    targets: tuple[str, ...]
    label: str
    right: str
    refused: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    dynamic: bool = False
    exporter: str = "dynamo"


class Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 2)
        self.table.weight.data = torch.arange(10.0).view(5, 2) * 10

    def forward(self, index: Tensor) -> Tensor:
        return cast(Tensor, self.table(index))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.lstm(x)[0])


def uniform(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 1) -> Tensor:
    """Float32 values in [low, high)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) * (high - low) + low


def shuffled(n: int) -> Tensor:
    """0 to n − 1 as floats, in a fixed random order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(1)).float()


def boxes(n: int) -> Tensor:
    corner = uniform(n, 2, low=0, high=60, seed=5)
    return torch.cat([corner, corner + uniform(n, 2, low=5, high=30, seed=6)], 1)


def floats(*values: float, times: int = 1) -> Tensor:
    return torch.tensor(values * times, dtype=torch.float32)


def longs(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def bools(*values: bool) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def bytes_(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


CASES: list[Case] = []

Given = Callable[[], Tensor | tuple[Tensor, ...]]


def _tuple(given: Given) -> Callable[[], tuple[Tensor, ...]]:
    def build() -> tuple[Tensor, ...]:
        value = given()
        return value if isinstance(value, tuple) else (value,)

    return build


def _add(
    kind: Kind,
    name: str,
    function: Callable[..., Any] | type[nn.Module],
    inputs: Given,
    ordinary: Given,
    targets: tuple[str, ...],
    label: str,
    right: str,
    **more: Any,
) -> None:
    is_module = isinstance(function, type) and issubclass(function, nn.Module)
    module: Callable[[], nn.Module] = function if is_module else lambda: Function(function)
    CASES.append(Case(name, kind, module, _tuple(inputs), _tuple(ordinary), targets, label, right, **more))


def _diverges(name: str, function: Any, inputs: Given, ordinary: Given, *rest: Any, **more: Any) -> None:
    _add(Kind.DIVERGES, name, function, inputs, ordinary, *rest, **more)


def _control(name: str, function: Any, inputs: Given, ordinary: Given, right: str) -> None:
    _add(Kind.CONTROL, name, function, inputs, ordinary, ALL, "", right)


def _benign(name: str, function: Any, inputs: Given, ordinary: Given, right: str) -> None:
    _add(Kind.BENIGN, name, function, inputs, ordinary, ALL, "numeric/rounding", right)


def _tied(times: int = 1) -> Tensor:
    return floats(1, 5, 5, 5, 2, 5, 0, 5, times=times)


def _grid(x: float, y: float) -> tuple[Tensor, Tensor]:
    """A 4×4 image and a 2×2 grid whose first point is (x, y)."""
    grid = torch.tensor([[x, y], [0.2, 0.3], [0.5, 0.5], [-0.2, 0.3]])
    return torch.arange(16.0).view(1, 1, 4, 4), grid.view(1, 2, 2, 2)


def _sample_zeros(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _sample_border(x: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _one_infinite_pixel() -> Tensor:
    x = torch.arange(64.0).view(1, 1, 8, 8)
    return x.masked_fill(x == 50, INF)


def _attention(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def _above_mean(x: Tensor) -> Tensor:
    return F.conv2d(x, torch.ones(1, 1, 3, 3) / 9) - x.mean() > 0


def _factors(bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    return uniform(1, 2, 2, seed=3) if bias is None else bias, uniform(1, 2, 2), uniform(1, 2, 2, seed=2)


def _four_boxes(*scores: float) -> tuple[Tensor, Tensor]:
    return boxes(4), floats(*scores)


def _overlapping_by_half() -> tuple[Tensor, Tensor]:
    corners = [[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 5, 10], [0, 0, 10, 20]]
    return torch.tensor(corners), floats(0.9, 0.8, 0.7, 0.6)


def _divisions(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return a % b, torch.div(a, b, rounding_mode="floor"), torch.fmod(a, b)


def _floor_divided(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _suppressed(b: Tensor, s: Tensor) -> Tensor:
    return cast(Tensor, ops.nms(b, s, 0.5))


# A row takes as few lines as it needs.
# fmt: off

# Ties and order.

_diverges("topk_ties", lambda x: torch.topk(x, 3), _tied, lambda: shuffled(8), BOTH_ORT, "order/tie",
    "unspecified for equal keys; ONNX promises the lower index first")
_diverges("sort_ties", lambda x: torch.sort(x), lambda: _tied(4), lambda: shuffled(32), BOTH_ORT, "order/tie",
    "unspecified: the sort is not stable")
_diverges("nms_nan_score", _suppressed, lambda: _four_boxes(0.9, NAN, 0.7, 0.6),
    lambda: _four_boxes(0.9, 0.8, 0.7, 0.6), BOTH_ORT, "order/nms", "unspecified: where NaN sorts")
_diverges("floor_division_of_floats", _floor_divided, lambda: (floats(1, 6, -1, 0.5), floats(0.1, times=4)),
    lambda: (uniform(4, low=1), floats(0.7, 0.6, 0.9, 0.8)), ALL, "order/near-tie",
    "eager, as Python: float32(0.1) is above 0.1")
_diverges("sigmoid_gate", lambda x: torch.sigmoid(x) > 0.5, lambda: floats(1e-7, 1.2e-7, -1, 2, times=16),
    lambda: uniform(64), BOTH_ORT, "order/near-tie", "eager is correctly rounded")
_diverges("mean_threshold", _above_mean, lambda: torch.full((1, 1, 6, 6), 0.1), lambda: uniform(1, 1, 6, 6),
    (INDUCTOR,), "order/near-tie", "unspecified: one unit in the last place decides")

# NaN and infinities.

_diverges("argmax_nan", lambda x: x.argmax(-1), lambda: floats(1, 5, NAN, 0, 9, NAN, 3, 5, times=2).view(2, 8),
    lambda: uniform(2, 8), BOTH_ORT, "numeric/nonfinite", "eager: NaN counts as the largest, as in numpy")
_diverges("maxpool_nan", lambda x: F.max_pool2d(x, 2), lambda: floats(0, NAN, *range(1, 15)).view(1, 1, 4, 4),
    lambda: uniform(1, 1, 4, 4), BOTH_ORT, "numeric/nonfinite", "eager: NaN propagates")
_diverges("maxpool_minus_infinity", lambda x: F.max_pool2d(x, 3, 2, 1), lambda: torch.full((1, 1, 4, 4), -INF),
    lambda: uniform(1, 1, 4, 4), BOTH_ORT, "numeric/nonfinite", "eager: the largest of −∞ is −∞")
_diverges("unique_nan", torch.unique, lambda: floats(3, NAN, 1, 3, NAN, 2), lambda: floats(3, 1, 1, 3, 2, 2),
    BOTH_ORT, "structure/shape", "eager: NaN differs from NaN")
_diverges("heaviside_nan", lambda x: torch.heaviside(x, torch.tensor([0.5])), lambda: floats(NAN, -1, 0, 2),
    lambda: uniform(4), BOTH_ORT, "numeric/nonfinite", "neither: NaN")
_diverges("xlogy_nan", torch.xlogy, lambda: (floats(0, 0, 1, 2), floats(NAN, 2, 3, 4)),
    lambda: (uniform(4), uniform(4, low=0.1)), BOTH_ORT, "numeric/nonfinite", "eager, as documented: NaN")
_diverges("grid_sample_nan", _sample_zeros, lambda: _grid(NAN, -1), lambda: _grid(-0.6, -0.3), ALL,
    "numeric/nonfinite", "eager: a NaN weight propagates")
_diverges("root_of_minus_infinity", lambda x: x**0.5, lambda: floats(-INF, 4, 9, 1), lambda: uniform(4, low=0.1),
    BOTH_ORT, "numeric/nonfinite", "ONNX Runtime, by IEEE 754: pow(−∞, ½) = +∞")
_diverges("bilinear_infinity", lambda x: F.interpolate(x, size=(15, 15), mode="bilinear", align_corners=True),
    _one_infinite_pixel, lambda: uniform(1, 1, 8, 8), (INDUCTOR,), "numeric/nonfinite", "eager: no 0·∞")
_diverges("remainder_infinity", torch.remainder, lambda: (floats(3, -3, 5, 7), floats(INF, INF, 3, 2)),
    lambda: (uniform(4, low=1), floats(0.7, 0.6, 0.9, 0.8)), ALL, "numeric/nonfinite", "eager: 3 % ∞ = 3")
_diverges("empty_variance", lambda x: x.var(0), lambda: torch.zeros(0, 4), lambda: uniform(3, 4), BOTH_ORT,
    "numeric/nonfinite", "eager: NaN", dynamic=True)
_diverges("attention_without_keys", _attention, lambda: (uniform(1, 1, 4, 8), torch.full((4, 4), -INF)),
    lambda: (uniform(1, 1, 4, 8), torch.zeros(4, 4)), BOTH_ORT, "numeric/nonfinite", "eager: zero")
_diverges("ignored_nan_bias", lambda b, x, y: torch.baddbmm(b, x, y, beta=0),
    lambda: _factors(torch.full((1, 2, 2), NAN)), _factors, BOTH_ORT, "numeric/nonfinite",
    "eager, as documented: with beta 0 the first operand is ignored")

# Overflow, subnormals, signed zeros.

_diverges("logaddexp_large", torch.logaddexp, lambda: (floats(100, -200, 1), floats(100, -200, 2)),
    lambda: (uniform(3), uniform(3, seed=2)), BOTH_ORT, "numeric/overflow", "eager")
_diverges("product_order", lambda x: x.prod(), lambda: floats(1e20, 1e20, 1e-20, 1e-20, times=4),
    lambda: uniform(16, low=0.5, high=1.5), ALL, "numeric/overflow", "neither: 1")
_diverges("float16_times_1e5", lambda x: x.half() * 1e5, lambda: floats(0.5, 0.1, 1e-3),
    lambda: floats(-INF, INF, -INF), BOTH_ORT, "numeric/overflow", "eager keeps the scalar in float32")
_diverges("float16_log_exp", lambda x: torch.log(torch.exp(x)), lambda: floats(12, 11.5, -20, 5, times=4).half(),
    lambda: floats(1, 2, 4, 8, times=4).half(), ALL, "numeric/overflow", "eager rounds between the two")
_diverges("fourier_large", lambda x: torch.fft.rfft(x).abs(), lambda: floats(1e20, 1, 2, 3, -1e20),
    lambda: uniform(5), BOTH_ORT, "numeric/overflow", "eager")
_diverges("sigmoid_subnormal", torch.sigmoid, lambda: floats(-88, -87.5, -87.4, 0, times=10), lambda: uniform(40),
    BOTH_ORT, "numeric/subnormal", "eager")
_diverges("reciprocal_of_zero_sum", lambda x: 1 / (x + 0.0), lambda: floats(-0.0, 1, 2, 4, times=5),
    lambda: uniform(20, low=0.1), ALL, "numeric/signed-zero", "eager: −0 + 0 = +0")
_diverges("sum_of_minus_zero", lambda x: 1 / x.sum(0), lambda: torch.full((1, 20), -0.0),
    lambda: uniform(1, 20, low=0.1), (INDUCTOR,), "numeric/signed-zero", "eager: 0 + −0 = +0")

# Precision and formulas.

_diverges("bfloat16_and_back", lambda x: x.bfloat16().float(),
    lambda: floats(1.00390625, 1.01171875, 3.4e38, 0.1, times=4), lambda: floats(1, 2, 4, 8, times=4), (INDUCTOR,),
    "numeric/reduced-precision", "eager")
_diverges("float16_absorbs", lambda x: ((x.half() + 1000.0) - 1000.0).float(),
    lambda: floats(0.1, 0.2, 0.3, 0.26, times=4), lambda: floats(1, 2, 4, 8, times=4), ALL,
    "numeric/reduced-precision", "eager rounds each result to float16; the others are nearer the exact value")
_diverges("expm1_tiny", lambda x: torch.expm1(x) / x, lambda: floats(1e-8, 1e-10, -1e-9, 1e-7, times=10),
    lambda: uniform(40, low=0.1), BOTH_ORT, "numeric/approximation", "eager: 1")
_diverges("elu_tiny", lambda x: F.elu(x) / x, lambda: floats(-1e-8, -1e-10, -1e-9, -1e-7, times=10),
    lambda: uniform(40, low=0.1), BOTH_ORT, "numeric/approximation", "eager: 1")
_diverges("sigmoid_tail", lambda x: torch.sigmoid(x) * torch.exp(-x), lambda: floats(-17, -20, -40, -80, times=10),
    lambda: uniform(40), BOTH_ORT, "numeric/approximation", "eager: 1")

# Plainly wrong.

_diverges("grid_sample_far", _sample_border, lambda: _grid(1e10, 0.9), lambda: _grid(-0.6, -0.3), BOTH_ORT,
    "numeric/wrong-value", "eager: the border pixel")
_diverges("average_pool_divisor", lambda x: F.avg_pool2d(x, 2, 2, divisor_override=3), lambda: torch.ones(1, 1, 4, 4),
    lambda: torch.zeros(1, 1, 4, 4), BOTH_ORT, "numeric/wrong-value", "eager: 4/3")
_diverges("manhattan_distance", lambda x: torch.cdist(x, x, p=1.0), lambda: uniform(5, 4), lambda: torch.zeros(5, 4),
    BOTH_ORT, "numeric/wrong-value", "eager", exporter="torchscript")
_diverges("integer_power", torch.pow, lambda: (longs(3, 5, 7, 2), longs(39, 24, 20, 10)),
    lambda: (longs(1, 2, 3, 4), longs(1, 2, 3, 4)), BOTH_ORT, "numeric/integer", "eager is exact")
_diverges("truncated_division", lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    lambda: (longs(2**24 + 1, 2**53 + 1, 2**25 + 3, 5), longs(1, 1, 1, 2)),
    lambda: (longs(7, 8, 9, 6), longs(2, 2, 2, 2)), BOTH_ORT, "numeric/integer", "eager is exact")
_diverges("nan_to_int8", lambda x: x.to(torch.int8), lambda: floats(NAN, INF, -INF, 1e20, 3, -3, 5, 7, times=4),
    lambda: torch.arange(32.0) - 16, (INDUCTOR,), "numeric/integer", "unspecified: undefined in C++")
_diverges("random_numbers", lambda x: x * torch.rand_like(x), lambda: torch.ones(64), lambda: torch.zeros(64), ALL,
    "state/rng", "unspecified")

# One side raises, refuses or dies.

_diverges("embedding_minus_two", Embedding, lambda: longs(2, -2, 4), lambda: longs(2, 1, 4), BOTH_ORT,
    "execution/exception", "eager raises")
_diverges("index_add_minus_one", lambda x, i: torch.zeros(5).index_add(0, i, x),
    lambda: (uniform(3), longs(0, -1, 2)), lambda: (uniform(3), longs(0, 1, 2)), ALL, "execution/exception",
    "eager raises")
_diverges("one_hot_out_of_range", lambda i: F.one_hot(i, 4), lambda: longs(0, 4, 1), lambda: longs(0, 3, 1), BOTH_ORT,
    "execution/exception", "eager raises")
_diverges("clamp_beyond_uint8", lambda x: x.clamp(-5, 300), lambda: bytes_(1, 200, 30), lambda: bytes_(1, 100, 30),
    ALL, "execution/exception", "eager raises on every input",
    refused=BOTH_ORT)
_diverges("sum_of_bools", lambda a, b: a + b, lambda: (bools(True, True, False), bools(True, False, False)),
    lambda: (bools(True, False, False), bools(False, False, True)), BOTH_ORT, "execution/unsupported", "eager: or",
    refused=BOTH_ORT)
_diverges("stable_sort", lambda x: torch.sort(x, stable=True)[1], lambda: floats(3, 1, 1, 2),
    lambda: floats(3, 1, 0, 2), BOTH_ORT, "execution/unsupported", "eager", refused=BOTH_ORT)
_diverges("lstm_of_nothing", Lstm, lambda: torch.zeros(0, 2, 4), lambda: uniform(3, 2, 4), ALL, "execution/crash",
    "eager: an empty result", refused=(INDUCTOR,), kills=BOTH_ORT, dynamic=True)
_diverges("roi_align_nan", lambda x, b: ops.roi_align(x, b, (2, 2), 1.0, 2, aligned=True),
    lambda: (torch.arange(64.0).view(1, 1, 8, 8), torch.tensor([[0, NAN, 0, 8, 8]])),
    lambda: (torch.arange(64.0).view(1, 1, 8, 8), torch.tensor([[0, 1.0, 1, 4, 4]])), (EAGER,), "execution/crash",
    "neither: a process must not die", kills=(EAGER, INDUCTOR))

# Rounding that the model amplifies.

_benign("sum_that_cancels", lambda x: x.sum(), lambda: floats(1e8, 1, -1e8, 1, times=64),
    lambda: uniform(256, low=0.5), "128, with a condition number of 1e8")
_benign("running_sum_that_cancels", lambda x: x.cumsum(0), lambda: floats(1e8, 1, -1e8, 1, times=64),
    lambda: uniform(256, low=0.5), "eager adds up in float64")
_benign("instance_norm_offset", F.instance_norm, lambda: uniform(2, 4, 8, 8) + 1e4, lambda: uniform(2, 4, 8, 8),
    "rounding of the mean, over the deviation")
_benign("naive_variance", lambda x: (x * x).mean(-1) - x.mean(-1) ** 2, lambda: uniform(2, 64) + 1e4,
    lambda: uniform(2, 64), "neither: the model itself cancels")
_benign("gelu_tail", lambda x: F.gelu(x) * 1e6, lambda: floats(-4, -4.5, -5, -3, times=10),
    lambda: uniform(40, low=0), "neither: 1 + erf cancels")

# Often reported, and yet they agree.

_control("clamp_nan", lambda x: x.clamp(-1, 1), lambda: floats(NAN, -2, 1, NAN, times=5), lambda: uniform(20),
    "NaN is kept" )
_control("argmax_of_a_transpose", lambda x: torch.sin(x).t().argmax(), lambda: uniform(5, 7, seed=9),
    lambda: uniform(5, 7), "the same index")
_control("signs_of_division", _divisions, lambda: (longs(-7, 7, -7, 7, -1, 0), longs(2, -2, -2, 2, 5, 3)),
    lambda: (longs(7, 8, 9, 6, 5, 4), longs(2, 2, 2, 2, 5, 3)), "as Python")
_control("ceiling_of_max_pool", lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda: -uniform(1, 1, 6, 6).abs(), lambda: uniform(1, 1, 6, 6), "padding is never the largest")
_control("round_half_to_even", torch.round,
    lambda: floats(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.2, times=2), lambda: uniform(16),
    "to even, with −0")
_control("antialiased_resize", lambda x: F.interpolate(x, size=(3, 5), mode="bilinear", antialias=True),
    lambda: uniform(1, 1, 8, 8, seed=3), lambda: uniform(1, 1, 8, 8), "rounding only")
_control("scatter_twice", lambda x, i: torch.zeros(5).scatter(0, i, x), lambda: (uniform(6), longs(1, 1, 1, 2, 2, 2)),
    lambda: (uniform(6), longs(0, 1, 2, 3, 4, 4)), "the last write wins")
_control("nan_to_long", lambda x: torch.nan_to_num(x, posinf=9.3e18, neginf=-9.3e18).long(),
    lambda: floats(NAN, -0.0, INF, -INF, times=4), lambda: uniform(16), "saturated")
_control("nms_at_its_threshold", _suppressed, _overlapping_by_half, lambda: _four_boxes(0.9, 0.8, 0.7, 0.6),
    "an overlap of exactly the threshold is kept")
_control("int32_wraps", lambda x: x * x + 1, lambda: torch.tensor([46341, 2**31 - 1, -(2**31), 65536]).int(),
    lambda: torch.tensor([1, 2, 3, 4]).int(), "modulo 2³²")

# fmt: on


def cases(*kinds: Kind) -> list[Case]:
    """The cases of these kinds, in the table's order."""
    return [case for case in CASES if case.kind in kinds]


def module_of(name: str) -> nn.Module:
    """The module of a case, for a seed's `builder`."""
    return by_name(name).module()


def by_name(name: str) -> Case:
    """Raises KeyError where there is no such case."""
    found = {case.name: case for case in CASES}
    return found[name]


def table(file: str = "") -> dict[str, Case]:
    """The cases by name: those of this module, or of the Python file that has a list of them, `CASES`.

    Raises InputError where the file cannot be read or has no such list.
    """
    if not file:
        return {case.name: case for case in CASES}
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise InputError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = getattr(module, "CASES", None)
    if not isinstance(given, list) or not given or not all(isinstance(case, Case) for case in given):
        raise InputError(f"{file} has no list CASES of benchmarks.known_cases.Case")
    return {case.name: case for case in given}
