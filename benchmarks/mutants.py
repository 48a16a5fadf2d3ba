"""Faults put into real outputs, each of which the whole verdict (screen, judge, task) must notice.

`plant` gives every mutant that applies to an output. `Synthetic` and `Large` are modules whose outputs have what the
seeds' lack: a leaf of scale 1e-4, integers of 5000, NaN, a tuple, a list, four million elements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harmless import call
from benchmarks.local import Local
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Answer
from fuzzer.inputs import base_sample
from fuzzer.models import Model
from fuzzer.seeds import Seed, Tolerance
from fuzzer.trees import Leaves, flatten
from fuzzer.verify.compare import compare
from fuzzer.verify.corruptions import BEYOND_ERROR, distance
from fuzzer.verify.examine import Bench, examine
from fuzzer.verify.noise import OracleAnswer
from fuzzer.verify.verdict import Outcome

LARGE = 2**22
#: The width of a vector register's worth of float32, and of a tile of its kernels.
TILE = 16


@dataclass
class Caught:
    """How many mutants were planted and caught, by name, and those that were missed."""

    planted: dict[str, int] = field(default_factory=dict)
    caught: dict[str, int] = field(default_factory=dict)
    missed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Caught) -> None:
        """Count those of another hunt in."""
        for mine, more in ((self.planted, other.planted), (self.caught, other.caught)):
            for name, count in more.items():
                mine[name] = mine.get(name, 0) + count
        self.missed += other.missed


class Synthetic(nn.Module):
    """A dict with a tuple and a list in it."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        square = x[:4, :4] @ x[:4, :4].t()
        return {
            "small": torch.sin(x) * 1e-4,
            "count": 5000 + (x * 100).round().long(),
            "pair": (torch.exp(x), square[:, :1].expand(4, 4).contiguous()),
            "zeros": torch.relu(x) * 0.5,
            "roots": x.sqrt(),
            "rows": [x[i] * 2 for i in range(3)],
        }


class Large(nn.Module):
    """Four million elements."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * 1.5)


Fault = Callable[[Tensor], Tensor | None]


def _one_moved(leaf: Tensor, error: float = 0.0, tolerance: Tolerance | None = None) -> Tensor | None:
    """One element by a thousandth of the spread, or by `BEYOND_ERROR` times the leaf's own `error` where that is more.

    A smaller step is what the model's rounding does by itself: no fault. Of a seed with its own `tolerance` it is at
    least twice what that allows.
    """
    spread = float(leaf.double().std()) if leaf.numel() > 1 else 0.0
    row = leaf.flatten().clone()
    middle = len(row) // 2
    allowed = 0.0 if tolerance is None else tolerance.atol + tolerance.rtol * abs(float(row[middle]))
    row[middle] += max(1e-3 * spread, BEYOND_ERROR * error, 2 * allowed)
    return row.view_as(leaf) if spread > 0 and bool(row[middle] != leaf.flatten()[middle]) else None


def _two_swapped(leaf: Tensor) -> Tensor | None:
    row = leaf.flatten().clone()
    inf = float("inf")
    low, high = int(row.nan_to_num(inf, inf, -inf).argmin()), int(row.nan_to_num(-inf, inf, -inf).argmax())
    row[[low, high]] = row[[high, low]]
    return row.view_as(leaf) if bool(row[low] != row[high]) else None


def _zeroed(leaf: Tensor) -> Tensor | None:
    return torch.zeros_like(leaf) if bool(leaf.any()) else None


def _nan_moved(leaf: Tensor) -> Tensor | None:
    """Asks for a leaf that has a NaN: its neighbour's place."""
    row = leaf.flatten().clone()
    at = row.isnan().nonzero().flatten()
    if len(at) == 0 or len(row) < 2 or bool(row.isnan().all()):
        return None
    there = int((~row.isnan()).nonzero()[0])
    row[[int(at[0]), there]] = row[[there, int(at[0])]]
    return row.view_as(leaf)


def _last_tile(leaf: Tensor) -> Tensor | None:
    """The last places of the last dimension hold those of the tile before."""
    width = min(TILE, leaf.shape[-1] // 2) if leaf.dim() else 0
    if width == 0:
        return None
    wrong = leaf.clone()
    wrong[..., -width:] = leaf[..., -2 * width : -width]
    return None if torch.equal(wrong, leaf) else wrong


def _one_column(leaf: Tensor) -> Tensor | None:
    """(n, 1) for (n, n)."""
    return leaf[:, :1].clone() if leaf.dim() == 2 and leaf.shape[1] > 1 else None


ONE_MOVED = "one element moved"
FLOAT_FAULTS: dict[str, Fault] = {
    "two elements swapped": _two_swapped,
    "a leaf zeroed": _zeroed,
    "NaN moved": _nan_moved,
    "last tile wrong": _last_tile,
    "(n, 1) for (n, n)": _one_column,
}


def plant(
    outputs: Leaves, truth: Leaves | None = None, tolerance: Tolerance | None = None
) -> Iterator[tuple[str, str, Leaves]]:
    """Name, path and the outputs with each fault in each leaf that can have it; `truth` is what float64 answers.

    What a seed's own `tolerance` lets pass is no fault there, and is left out.
    """
    for name, path, wrong in _planted(outputs, truth, tolerance):
        if tolerance is None or compare(outputs, wrong, tolerance=tolerance).differences:
            yield name, path, wrong


def _planted(outputs: Leaves, truth: Leaves | None, tolerance: Tolerance | None) -> Iterator[tuple[str, str, Leaves]]:
    for path, leaf in outputs.items():
        if not isinstance(leaf, Tensor) or leaf.numel() == 0:
            continue
        if leaf.is_floating_point():
            error = distance(leaf, (truth or {}).get(path))
            faults = {ONE_MOVED: partial(_one_moved, error=error, tolerance=tolerance)} | FLOAT_FAULTS
            for name, fault in faults.items():
                wrong = fault(leaf)
                if wrong is not None:
                    yield name, path, {**outputs, path: wrong}
        elif leaf.dtype == torch.int64:
            for step in (1, 4):
                wrong = leaf.clone()
                wrong.view(-1)[-1] += step
                yield f"an integer {step} more", path, {**outputs, path: wrong}
        if leaf.dim() and len(leaf) > 1:
            yield "a row less", path, {**outputs, path: leaf[:-1]}
        if len(outputs) > 1:
            yield "a leaf dropped", path, {key: value for key, value in outputs.items() if key != path}
        renamed = {(f"{key}_" if key == path else key): value for key, value in outputs.items()}
        yield "a key renamed", path, renamed
    lists = [path for path in outputs if path.endswith("[2]")]
    if lists:
        yield "a list one shorter", lists[-1], {key: value for key, value in outputs.items() if key != lists[-1]}


def signs_flipped(outputs: Leaves) -> Iterator[tuple[str, str, Leaves]]:
    """−0 for +0, where the seed asks for it."""
    for path, leaf in outputs.items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and bool(((leaf == 0) & ~leaf.signbit()).any()):
            row = leaf.flatten().clone()
            row[int((row == 0).nonzero()[0])] = -0.0
            yield "−0 for +0", path, {**outputs, path: row.view_as(leaf)}


def in_half(model: Model, sample: dict[str, Tensor]) -> Leaves | None:
    """The whole model in float16, its answers as float32; None where it has no float16 kernels, or overflows."""
    assert model.module is not None
    half = Model(model.seed, copy.deepcopy(model.module).half())
    narrow = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in sample.items()}
    try:
        found = flatten(call(half, narrow))
    except (RuntimeError, NotImplementedError):
        return None
    return {p: x.float() if isinstance(x, Tensor) and x.dtype == torch.float16 else x for p, x in found.items()}


def hunt(model: Model, draws: int, found: Caught, only: Collection[str] | None = None) -> None:
    """Plant every mutant in the model's outputs on the first `draws` base inputs, and count what is caught.

    `only` names the mutants that are wanted, where not all are.
    """
    seed = model.seed
    assert model.module is not None
    oracle = Local(seed, ORACLE, copy.deepcopy(model.module), base_sample(seed, 0))
    for draw in range(draws):
        sample = base_sample(seed, draw)
        outputs = flatten(call(model, sample))
        answers: dict[str, Answer] = {}
        truth = OracleAnswer.from_leaves(oracle.run(sample, rng_seed=0, kind="truth").leaves or {}).truth
        mutants = [*plant(outputs, truth, seed.tolerance), *(signs_flipped(outputs) if seed.signed_zero else ())]
        half = in_half(model, sample)
        if half is not None and any(isinstance(x, Tensor) and x.is_floating_point() for x in half.values()):
            mutants.append(("float16 inside", "$", half))
        for name, path, leaves in mutants:
            if only is not None and name not in only:
                continue
            found.planted[name] = found.planted.get(name, 0) + 1
            if notices(seed, sample, outputs, leaves, oracle, answers):
                found.caught[name] = found.caught.get(name, 0) + 1
            else:
                found.missed.append({"seed": seed.name, "draw": draw, "mutant": name, "path": path})


def notices(
    seed: Seed, sample: dict[str, Tensor], outputs: Leaves, wrong: Leaves, oracle: Local, answers: dict[str, Answer]
) -> bool:
    """Whether the verdict on `wrong` beside `outputs` is a mismatch that is no near-tie."""
    known = _Known(oracle, answers)
    bench = Bench(seed, _Given("reference", outputs), _Given("target", wrong), known)  # type: ignore[arg-type]
    verdict = examine(bench, sample, Answer(outputs), Answer(wrong), rng_seed=0, vacuity=None, screen=None).verdict
    return verdict.outcome is Outcome.MISMATCH and not all(d.near_tie for d in verdict.differences)


class _Given(Local):
    """A side that always gives these leaves."""

    def __init__(self, name: str, leaves: Leaves) -> None:
        super(Local, self).__init__(name, lambda sample: None)
        self._leaves = leaves

    def run(self, sample: Any, *, rng_seed: int, check: bool = False, **variant: Any) -> Answer:
        return Answer(self._leaves)


class _Known(_Given):
    """An oracle that is asked once for each question about one sample."""

    def __init__(self, oracle: Local, answers: dict[str, Answer]) -> None:
        super().__init__(ORACLE, {})
        self._oracle, self._answers = oracle, answers

    def run(self, sample: Any, *, rng_seed: int, check: bool = False, **variant: Any) -> Answer:
        key = repr(sorted(variant.items()))
        if key not in self._answers:
            self._answers[key] = self._oracle.run(sample, rng_seed=rng_seed, **variant)
        return self._answers[key]
