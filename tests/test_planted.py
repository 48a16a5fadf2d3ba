"""Each planted fault answers wrongly on its minimal input, rightly on an ordinary one, and the canary says which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.planted.backend import Planted
from benchmarks.planted.fault import Mechanism
from benchmarks.planted.faults import CONTROLS, FAULTS
from benchmarks.planted.modules import Linear
from fuzzer.backends.registry import parse
from fuzzer.inputs import base_sample, sample_with_dims
from fuzzer.models import build_model
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seed

SEEDS = Path(__file__).resolve().parent.parent / "benchmarks" / "planted" / "seeds"
NAN = float("nan")


def seed_of(name: str) -> Seed:
    return load_seed(SEEDS / f"{name}.yaml")


def prepared(name: str) -> Planted:
    seed = seed_of(name)
    backend = Planted(parse(seed.backends[0]))
    backend.prepare(build_model(seed, None), base_sample(seed, 0))
    return backend


def spread(count: int) -> Tensor:
    return torch.linspace(0.1, 0.9, count)


def first_two_equal(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x.view(-1)[:2] = value
    return x


#: fault → an input that shows it, and the answer's first leaf that is wrong, worked out by hand
MINIMAL: dict[str, tuple[dict[str, Tensor], Any]] = {
    "sort_ties": ({"x": torch.tensor([2.0, 1.0, 1.0])}, (torch.tensor([1.0, 1.0, 2.0]), torch.tensor([2, 1, 0]))),
    "argmax_last": ({"x": torch.tensor([[3.0, 3.0, 1.0]])}, torch.tensor([1])),
    "pool_indices": (
        {"x": torch.tensor([[[[5.0, 5.0], [1.0, 2.0]]]])},
        (torch.tensor([[[[5.0]]]]), torch.tensor([[[[1]]]])),
    ),
    "nms_ge": (
        {"boxes": torch.tensor([[0.0, 0, 2, 1], [0.0, 0, 1, 1]]), "scores": torch.tensor([0.9, 0.8])},
        (torch.tensor([0]), torch.tensor([0.9])),
    ),
    "nms_unordered": (
        {"boxes": torch.tensor([[0.0, 0, 1, 1], [5.0, 5, 6, 6]]), "scores": torch.tensor([0.5, 0.5])},
        (torch.tensor([1, 0]), torch.tensor([0.5, 0.5])),
    ),
    "flush_subnormal": ({"x": torch.tensor([1e-7, 1.0])}, torch.tensor([0.0, 1.0])),
    "amax_drops_nan": ({"x": torch.tensor([[-1.0, 0.25]])}, torch.tensor([0.5])),
    "clamp_drops_nan": ({"x": torch.tensor([-1.0, 1.0])}, torch.tensor([-5.0, 0.0])),
    "positive_zero": ({"x": torch.tensor([-0.5, 2.5])}, torch.tensor([0.0, 2.0])),
    "last_tile": ({"x": torch.ones(1, 9)}, torch.tensor([8.0])),
    "round_half_away": ({"x": torch.tensor([2.5, -0.5, 1.5])}, torch.tensor([3.0, -1.0, 2.0])),
    "fast_exp": ({"x": torch.tensor([0.0, 16.0])}, torch.tensor([1.0, (1 + 2.0**-12) ** 65536])),
    "fast_tanh": ({"x": torch.tensor([0.0, -4.5])}, torch.tensor([0.0, -1.0])),
    "log1p_small": ({"x": torch.tensor([2.0**-25])}, torch.tensor([0.0])),
    "floor_division": ({"a": torch.tensor([-7, 7]), "b": torch.tensor([2, 2])}, torch.tensor([-4, 3])),
    "shift_wraps": (
        {"x": torch.tensor([3, 3], dtype=torch.int32), "by": torch.tensor([32, 33], dtype=torch.int32)},
        torch.tensor([3, 6], dtype=torch.int32),
    ),
    "saturating_cast": ({"x": torch.tensor([2.0**31, 7.0])}, torch.tensor([2**31 - 1, 7], dtype=torch.int32)),
    "empty_product": ({"x": torch.ones(0, 3)}, torch.zeros(3)),
    "stale_size": ({"x": torch.ones(18, 4)}, torch.full((4,), 18 / 16)),
    "first_call": ({"x": torch.ones(57)}, torch.tensor([*range(1, 57), 0.0])),
    "batch_maximum": ({"x": torch.tensor([[200.0, 0.0], [0.0, 0.0]])}, torch.tensor([[1.0, 0.0], [NAN, NAN]])),
}


@pytest.mark.parametrize("name", MINIMAL)
def test_a_fault_gives_its_own_wrong_answer_on_a_minimal_input(name: str) -> None:
    sample, expected = MINIMAL[name]
    backend = prepared(name)
    torch.testing.assert_close(backend.run(sample), expected, rtol=0, atol=0, equal_nan=True)
    assert backend.canary is not None
    assert backend.canary.triggered == 1


def test_top_k_takes_the_last_of_equal_values() -> None:
    backend = prepared("topk_ties")
    x = torch.arange(256.0)
    x[[10, 20]] = 500.0
    assert backend.run({"x": x})[1][:2].tolist() == [20, 10]


def test_a_product_of_small_numbers_is_summed_in_float16() -> None:
    backend = prepared("half_accumulation")
    x = torch.full((4, 16), 0.8)
    right, wrong = Linear()(x), backend.run({"x": x})
    assert torch.equal(wrong, wrong.half().float())
    assert 0 < float((wrong - right).abs().max()) < 16 * 2.0**-9


def test_of_two_terms_for_one_index_the_last_alone_is_added() -> None:
    sample = {"index": torch.tensor([3, 3]), "weight": torch.tensor([1.0, 2.0])}
    assert prepared("duplicate_index").run(sample)[:5].tolist() == [0, 0, 0, 2, 0]


def test_a_running_sum_over_columns_of_eight_rows_reads_memory_in_order() -> None:
    x = torch.arange(16.0).reshape(8, 2)
    wrong = prepared("strides_ignored").run({"x": x})
    assert torch.equal(wrong, torch.arange(16.0).reshape(2, 8).cumsum(-1))


def test_relu_overwrites_what_it_was_given() -> None:
    x = torch.tensor([-1.0, 2.0])
    backend = prepared("writes_input")
    assert backend.run({"x": x}).tolist() == [0.0, 2.0]
    assert x.tolist() == [0.0, 2.0]
    assert backend.canary is not None
    assert backend.canary.triggered == 1


IN_PROCESS = [name for name, fault in FAULTS.items() if fault.mechanism not in (Mechanism.PROCESS, Mechanism.INDUCTOR)]


@pytest.mark.parametrize("name", IN_PROCESS)
def test_on_an_ordinary_input_the_operator_is_reached_and_right(name: str) -> None:
    seed = seed_of(name)
    backend = prepared(name)
    sample = base_sample(seed, 1)
    expected = backend._inside.run({key: value.clone() for key, value in sample.items()})
    torch.testing.assert_close(backend.run(sample), expected, rtol=0, atol=0, equal_nan=True)
    assert backend.canary is not None
    assert backend.canary.reached >= 1
    assert backend.canary.triggered == 0


def test_the_first_call_of_a_shape_alone_is_wrong() -> None:
    seed, backend = seed_of("first_call"), prepared("first_call")
    sample = sample_with_dims(seed, 0, {"n": 60})
    assert float(backend.run(sample)[-1]) == 0.0
    assert float(backend.run(sample)[-1]) == pytest.approx(float(sample["x"].sum()))


def test_every_fault_has_a_seed_that_names_it_and_a_label_of_the_taxonomy() -> None:
    from fuzzer.diagnose.label import TAXONOMY

    assert {path.stem for path in SEEDS.glob("*.yaml")} == {*FAULTS, *CONTROLS}
    for name, fault in FAULTS.items():
        assert fault.label in TAXONOMY, name
        assert seed_of(name).backends == [f"planted:cpu?fault={name}"]
    assert len(FAULTS) >= 24


@pytest.mark.parametrize(
    ("name", "strikes", "spares"),
    [
        ("crash", {"x": torch.tensor([1.0, -1e-4])}, {"x": torch.tensor([1.0, 0.0])}),
        ("hang", {"x": torch.tensor([2.0]), "y": torch.tensor([2.0**-6])}, {"x": torch.ones(1), "y": torch.ones(1)}),
        ("memory", {"x": torch.tensor([995])}, {"x": torch.tensor([994])}),
    ],
)
def test_a_fault_of_the_process_can_be_counted_without_harm(
    name: str, strikes: dict[str, Tensor], spares: dict[str, Tensor]
) -> None:
    seed = seed_of(name)
    backend = Planted(parse(f"planted:cpu?fault={name}&dry=true"))
    backend.prepare(build_model(seed, None), base_sample(seed, 0))
    counted = []
    for sample in (strikes, spares):
        backend.run(sample)
        assert backend.canary is not None
        counted.append((backend.canary.reached, backend.canary.triggered))
    assert counted == [(1, 1), (1, 0)]
