"""Faulty backends of many kinds, each one operator of eager mode that is wrong, and the label that reruns prove."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.ops import nms

from benchmarks.local import RNG_SEED, named, seed_for
from benchmarks.local_rerun import LocalReruns
from fuzzer.backends.eager import Eager
from fuzzer.backends.registry import register
from fuzzer.diagnose import provisional
from fuzzer.diagnose.engine import Diagnosed, diagnose
from fuzzer.diagnose.finding import Finding

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
Wrong = Callable[..., Any]


class Replaced(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One operator, by its ATen name, computed by a function that gets its arguments and the operator itself."""

    def __init__(self, operator: str, wrong: Wrong) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator, self._wrong = operator, wrong

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == self._operator:
            return self._wrong(lambda *a, **k: func(*a, **{**(kwargs or {}), **k}), *args)
        return func(*args, **(kwargs or {}))


@register
class Faulty(Eager):
    runtime = "test_faulty"
    fault: ClassVar[tuple[str, Wrong]]

    def run(self, sample: Any) -> Any:
        with Replaced(*self.fault):
            return super().run(sample)


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Tensor) -> Any:
        return self._function(*args)


def caused(function: Callable[..., Any], inputs: tuple[Tensor, ...], operator: str, wrong: Wrong) -> Diagnosed:
    Faulty.fault = operator, wrong
    sample, target = named(inputs), "test_faulty:cpu"
    rerun = LocalReruns(seed_for(inputs), "eager:cpu", target, lambda: Of(function), sample)
    seen = rerun(sample)
    truth = None if seen.oracle is None else seen.oracle.truth
    symptom = provisional(seen.verdict, seen.reference.leaves, seen.target.leaves, truth, sample, target)
    finding = Finding(sample, seen, symptom.label, target, sample, RNG_SEED)
    return diagnose(finding, rerun, clock=time.monotonic, budget_s=60.0, mitigate=False)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tf32(x: Tensor) -> Tensor:
    """To the nearest number with ten bits after the first."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def quake(op: Wrong, x: Tensor) -> Tensor:
    y = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
    return y * (1.5 - 0.5 * x * y * y)


def last_first(op: Wrong, x: Tensor, *more: Any, **how: Any) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x.flip(-1), stable=True)
    return values, x.shape[-1] - 1 - indices


BIASED_NORM = nn.LayerNorm(8, eps=1e-4)
nn.init.normal_(BIASED_NORM.bias, generator=torch.Generator().manual_seed(1))
CASES: dict[str, tuple[str, Callable[..., Any], tuple[Tensor, ...], str, Wrong]] = {
    "an epsilon left out": (
        "numeric/wrong-value",
        lambda x: F.layer_norm(x, (8,), BIASED_NORM.weight, BIASED_NORM.bias, 1e-4),
        (normal(4, 8) * 0.3,),
        "native_layer_norm",
        lambda op, x, shape, weight, bias, eps: op(x, shape, weight, bias, 0.0),
    ),
    "an epsilon too many": (
        "numeric/wrong-value",
        lambda x: F.normalize(x, dim=-1),
        (normal(3, 4),),
        "linalg_vector_norm",
        lambda op, *args: op(*args) + 1e-3,
    ),
    "another way to count the last terms": (
        "numeric/wrong-value",
        lambda x: x.std(-1),
        (normal(4, 8),),
        "std",
        lambda op, *args: op(*args, correction=0),
    ),
    "variance by squares": (
        "numeric/approximation",
        lambda x: x.var(-1, correction=0),
        (normal(4, 64) * 0.1 + 100,),
        "var",
        lambda op, x, *more: x.square().mean(-1) - x.mean(-1).square(),
    ),
    "a fast reciprocal root": ("numeric/approximation", torch.rsqrt, (normal(16).abs() + 0.1,), "rsqrt", quake),
    "a product of operands in bfloat16": (
        "numeric/reduced-precision",
        lambda a, b: a @ b,
        (normal(8, 32), normal(32, 8, seed=4)),
        "mm",
        lambda op, a, b: op(a.bfloat16().float(), b.bfloat16().float()),
    ),
    "a product of operands in TF32": (
        "numeric/reduced-precision",
        lambda a, b: a @ b,
        (normal(8, 32), normal(32, 8, seed=4)),
        "mm",
        lambda op, a, b: op(tf32(a), tf32(b)),
    ),
    "a sine that is rounded to bfloat16": (
        "numeric/reduced-precision",
        lambda x: (x.sin() + 2).log(),
        (normal(32),),
        "sin",
        lambda op, x: op(x).bfloat16().float(),
    ),
    "float64 through float32": (
        "numeric/reduced-precision",
        lambda x: x.exp() * 3,
        (normal(16).double(),),
        "exp",
        lambda op, x: op(x.float()).double(),
    ),
    "a softmax that takes no maximum off": (
        "numeric/overflow",
        lambda x: x.softmax(-1),
        (torch.tensor([[100.0, 99], [1, 2]]),),
        "_softmax",
        lambda op, x, *more: x.exp() / x.exp().sum(-1, keepdim=True),
    ),
    "a product in float16 with too little room": (
        "numeric/overflow",
        lambda x: (x * 100).log(),
        (torch.tensor([1e3, 5.3, 2.1]),),
        "mul",
        lambda op, x, by: op(x.half(), by).float(),
    ),
    "a factor that float16 does not hold": (
        "numeric/overflow",
        lambda x: x.half() * 1e5,
        (torch.tensor([0.0, -0.9, 0.0]),),
        "mul",
        lambda op, x, by: op(x, torch.tensor(by).half()) if x.dtype == torch.float16 else op(x, by),
    ),
    "a complement that loses its tail": (
        "numeric/approximation",
        torch.special.erfc,
        (torch.tensor([4.2, 4.9, 4.5, 4.1]),),
        "erfc",
        lambda op, x: 1 - x.erf(),
    ),
    "a logarithm that loses tiny numbers, beside NaN": (
        "numeric/approximation",
        lambda x: x.log1p() / x,
        (torch.tensor([NAN, 1e-9, NAN, 1e-12, 2e-38]),),
        "log1p",
        lambda op, x: (1 + x).log(),
    ),
    "a special function of another slope below zero": (
        "numeric/wrong-value",
        F.elu,
        (torch.tensor([3.0, -1e-3, 2.0, -2e-3]),),
        "elu",
        lambda op, x, *more: torch.where(x < 0, 2 * op(x, *more), x),
    ),
    "a pooling that is no choice of boxes, over four columns": (
        "numeric/nonfinite",
        lambda x: F.max_pool2d(x[None, None], 2, return_indices=True)[1],
        (torch.tensor([[1.0, NAN, 2, 5], [3, 4, NAN, 8]]),),
        "max_pool2d_with_indices",
        lambda op, x, *more: op(x.nan_to_num(-9.0), *more),
    ),
    "memory read in another order, up to an infinity": (
        "numeric/wrong-value",
        lambda x: x.t().cumsum(-1),
        (torch.zeros(16, 2).index_put((torch.tensor([11, 15]), torch.tensor([0, 1])), torch.tensor(1.7e38)),),
        "cumsum",
        lambda op, x, dim: op(x.as_strided(x.shape, (x.shape[1], 1)), dim),
    ),
    "infinities that are equal, in another order": (
        "order/tie",
        lambda x: tuple(x.sort(stable=True)),
        (torch.tensor([NAN, INF, 1.0, INF]),),
        "sort",
        last_first,
    ),
    "the angle of minus zero": (
        "numeric/signed-zero",
        torch.atan2,
        (torch.tensor([-0.0, 1.0]), torch.tensor([-1.0, 1.0])),
        "atan2",
        lambda op, y, x: op(y + 0.0, x),
    ),
    "an overlap that is the threshold, taken for more": (
        "order/nms",
        lambda boxes, scores: nms(boxes, scores, 0.5),
        (torch.tensor([[16.0, 16, 32, 32], [16, 16, 48, 32]]), torch.zeros(2)),
        "nms",
        lambda op, boxes, scores, threshold: op(boxes, scores, threshold - 1e-3),
    ),
    "an overlap that another rounding takes over the threshold": (
        "order/near-tie",
        lambda boxes, scores: nms(boxes, scores, 0.7),
        (torch.tensor([[0.0, 0, 10, 7], [0, 0, 10, 10]]), torch.tensor([0.5, 0.4])),
        "nms",
        lambda op, boxes, scores, threshold: op(boxes, scores, threshold - 1e-7 * (boxes.dtype == torch.float32)),
    ),
}


@pytest.mark.parametrize("fault", CASES)
def test_a_fault_gets_its_label_and_a_proof(fault: str) -> None:
    label, *how = CASES[fault]
    found = caused(*how)  # type: ignore[arg-type]
    assert str(found.label) == label, found.evidence
    assert found.trials[-1].gone


def test_an_operator_that_always_raises_is_found() -> None:
    def raises(op: Wrong, x: Tensor) -> Tensor:
        raise RuntimeError("no")

    found = caused(lambda x: x.sigmoid() + 1, (normal(4),), "sigmoid", raises)
    assert str(found.label) == "execution/exception"
    assert found.operator == "aten.sigmoid"
