"""Reduction: what it comes to on faults whose smallest input is known, and that it never loses the fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from campaign_runs import TARGET, xbfuzz
from crash_samples import builder_seed, pool_crash
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.crashes.notebook import Notebook
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.reduce import Axes, Sample, Search, Space, Values, passes, size_of, space_of
from fuzzer.reduce import reduced as reduced_sample
from fuzzer.reduce.bits import at_ordinals, ordinals
from fuzzer.tensors import content_hash

NAN, INF = float("nan"), float("inf")
ROWS = Space((Axes("n", (("x", 0),), 1),))
Fault = Callable[[Tensor], object]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def reduced(fault: Fault, start: Tensor, space: Space | None = None) -> list[object]:
    """The smallest x on which `fault` holds, as a list."""
    found: list[object] = reduced_sample(lambda s: bool(fault(s["x"])), {"x": start}, space)["x"].tolist()
    return found


def with_value(value: float, at: int, count: int = 40) -> Tensor:
    x = drawn(count)
    x[at] = value
    return x


@pytest.mark.parametrize("at", [0, 7, 39])
def test_one_nan_of_many_numbers_stays_alone(at: int) -> None:
    assert str(reduced(lambda x: x.isnan().any(), with_value(NAN, at), ROWS)) == "[nan]"


def test_where_the_shape_is_fixed_all_else_becomes_zero() -> None:
    expected = [0.0] * 40
    expected[7] = 1.0
    assert reduced(lambda x: x[7] > 0.5, with_value(3.7, 7)) == expected


def test_an_infinity_that_need_not_be_one_becomes_finite() -> None:
    assert reduced(lambda x: x.abs().max() > 3.3, with_value(-INF, 3), ROWS) == [4.0]


def test_a_number_loses_the_mantissa_bits_that_it_does_not_need() -> None:
    assert reduced(lambda x: (x > 1.24) & (x < 1.26), torch.tensor([1.2541])) == [1.25]
    assert reduced(lambda x: (x > 2.6) & (x < 3.4), torch.tensor([2.71828])) == [3.0]
    assert reduced(lambda x: (x * 3e38).isinf(), torch.tensor([17.3])) == [2.0]


def test_two_tied_boxes_stay_two_tied_boxes() -> None:
    boxes = drawn(20, 4).abs() + 0.1
    boxes[13] = boxes[4]

    def tied(x: Tensor) -> bool:
        return any(torch.equal(x[i], x[j]) and bool((x[i] > 0).all()) for i in range(len(x)) for j in range(i))

    assert reduced(tied, boxes, ROWS) == [[1.0] * 4, [1.0] * 4]


def test_near_equal_numbers_keep_their_distance() -> None:
    first = torch.tensor(0.7351)
    x = torch.stack([first, torch.nextafter(first, torch.tensor(1.0)), drawn(1)[0]])
    found = reduced(lambda x: ((ordinals(x).diff() == 1) & (x[1:] > 0.1)).any(), x)
    assert found == [1.0, 1.0 + 2.0**-23, 0.0]


def test_a_tie_that_is_not_needed_is_not_kept() -> None:
    assert reduced(lambda x: x.sum() > 0.5, torch.full((4,), 0.7)) in ([0.0, 0.0, 0.0, 1.0], [1.0] * 4)


def test_a_mask_keeps_the_one_row_that_matters() -> None:
    mask = drawn(4, 6) > -0.5
    mask[2] = False
    found = torch.tensor(reduced(lambda x: (~x).all(1).any() and x.any(), mask))
    assert int(found.sum()) == 1


def test_integers_stay_in_the_range_that_the_seed_allows() -> None:
    tokens = torch.randint(3, 1000, (40,), generator=torch.Generator().manual_seed(0))
    assert reduced(lambda x: x.max() > 500, tokens, replace(ROWS, values={"x": Values(3, 999)})) == [512]
    assert reduced(lambda x: len(x) > 2, tokens, replace(ROWS, values={"x": Values(2, 999)})) == [2, 2, 2]


def test_an_input_that_must_not_be_zero_gets_the_value_nearest_to_it() -> None:
    assert reduced(lambda x: True, drawn(4).abs() + 2, Space((), {"x": Values(2.0, 5.0)})) == [2.0] * 4


def test_complex_numbers_are_reduced_by_their_parts() -> None:
    x = torch.complex(drawn(5), drawn(5) + 2)
    assert reduced(lambda x: (x.imag > 1.5).any(), x, ROWS) == [2j]


def test_a_dimension_shrinks_in_all_inputs_that_share_it() -> None:
    space = Space((Axes("n", (("boxes", 0), ("scores", 0)), 1), Axes("c", (("scores", 1),), 2)))
    start = {"boxes": drawn(30, 4), "scores": drawn(30, 7)}
    start["scores"][11, 5] = NAN
    found = reduced_sample(lambda s: bool(s["scores"].isnan().any()), start, space)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"boxes": (1, 4), "scores": (1, 2)}


def test_the_space_of_a_seed_has_its_dimensions_and_what_it_allows(tmp_path: Path) -> None:
    seed = builder_seed(
        tmp_path,
        inputs={
            "x": {"kind": "floats", "shape": ["n", 3, "n"], "range": [1, 3]},
            "t": {"kind": "tokens", "shape": ["m"], "range": [2, 9]},
            "b": {"kind": "boxes", "shape": [2, 4], "range": [0, 9]},
        },
        dims={"n": {"size": 4}, "m": {"size": 4, "min": 0}},
        allow={"beyond_range": False},
    )
    space = space_of(seed)
    assert space.axes == (Axes("n", (("x", 0), ("x", 2)), 1), Axes("m", (("t", 0),), 1))
    assert space.values == {"x": Values(1, 3, 2), "t": Values(2, 8), "b": Values(0, 9, 4.5)}
    assert space.disordered({"b": torch.tensor([[0, 0, 1, 1], [0, 2, 1, 1.0]])}) == 1


FAULTS: dict[str, Fault] = {
    "holds NaN": lambda x: x.isnan().any(),
    "has a value over 2": lambda x: (x > 2).any(),
    "sums to more than 3": lambda x: x.nan_to_num(0, 0, 0).sum() > 3,
    "has two equal values": lambda x: len(x.unique()) < x.numel(),
    "is longer than 3": lambda x: len(x) > 3,
    "rises somewhere": lambda x: (x.diff() > 0).any(),
}


@given(st.lists(st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, 2.5]), max_size=24), st.sampled_from([*FAULTS]))
def test_the_fault_stays_and_the_input_never_grows(numbers: list[float], name: str) -> None:
    x = torch.tensor(numbers)
    if FAULTS[name](x):
        found = reduced_sample(lambda s: bool(FAULTS[name](s["x"])), {"x": x}, ROWS)
        assert FAULTS[name](found["x"])
        assert size_of(found) <= size_of({"x": x})
        again = reduced_sample(lambda s: bool(FAULTS[name](s["x"])), found, ROWS)
        assert content_hash(again) == content_hash(found), "nothing smaller is left"


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20), st.integers(1, 2**30))
def test_integers_end_at_the_least_power_of_two_that_fails(numbers: list[int], limit: int) -> None:
    x = torch.tensor(numbers, dtype=torch.int32)
    if int(x.max()) >= limit:
        assert reduced(lambda x: x.max() >= limit, x, ROWS) == [2 ** (limit - 1).bit_length()]


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1))
def test_places_in_the_order_of_floats_lead_back(numbers: list[float]) -> None:
    x = torch.tensor(numbers) + 0.0  # −0 has the place of +0
    assert torch.equal(at_ordinals(ordinals(x), x.dtype), x)
    assert torch.equal(ordinals(x).argsort(stable=True), x.argsort(stable=True))


def search(start: Sample, fails: Callable[[Sample], bool], **more: object) -> Search:
    return Search(start, fails, **({"clock": lambda: 0.0} | more))  # type: ignore[arg-type]


def test_no_input_is_asked_about_twice_and_a_second_search_asks_nothing_that_the_first_did() -> None:
    asked: list[str] = []

    def fails(sample: Sample) -> bool:
        asked.append(content_hash(sample))
        return bool(sample["x"].sum() > 3)

    start = {"x": drawn(30).abs()}
    first = search(start, fails)
    assert first.run(passes(ROWS, ["x"]))
    assert len(asked) == len(set(asked)) == first.tests
    second = search(first.best, fails, tried=first.tried)
    assert second.run(passes(ROWS, ["x"]))
    assert second.tests == 0


def test_time_and_tests_bound_a_search_and_the_best_so_far_is_told_at_once() -> None:
    now, kept = [0.0], []

    def fails(sample: Sample) -> bool:
        now[0] += 1.0
        return bool(sample["x"].sum() > 3)

    start = {"x": drawn(30).abs()}
    short = search(start, fails, clock=lambda: now[0], ends=5.0, kept=kept.append)
    assert not short.run(passes(ROWS, ["x"]))
    assert (now[0], short.tests) == (5.0, 5)
    assert kept[-1] is short.best
    assert not search(start, fails, most_tests=3).run(passes(ROWS, ["x"]))


def test_the_same_search_is_made_twice() -> None:
    orders = []
    for _ in range(2):
        asked: list[str] = []
        search({"x": drawn(20)}, lambda s, asked=asked: asked.append(content_hash(s)) or bool(s["x"].max() > 1)).run(
            passes(ROWS, ["x"])
        )
        orders.append(asked)
    assert orders[0] == orders[1]


DIMS = {"h": {"size": 8, "min": 2, "max": 16}, "w": {"size": 8, "min": 2, "max": 16}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a crash: max_pool2d drops a NaN, on an input of 64 numbers."""
    seed = builder_seed(tmp_path / "code", inputs={"x": {"kind": "floats", "shape": [1, 1, "h", "w"]}}, dims=DIMS)
    x = drawn(1, 1, 8, 8)
    x[0, 0, 4, 5] = x[0, 0, 1, 1] = NAN
    crash = replace(pool_crash(seed), inputs={"x": x}, original={"x": x}, sizes={"original": 64, "reduced": 64})
    write_crash(tmp_path / "crashes", crash)
    return tmp_path


@pytest.mark.slow
def test_a_nan_that_max_pool_drops_is_reduced_to_one_window(place: Path, cache: Path) -> None:
    (home,) = (path for path in (place / "crashes").iterdir() if path.is_dir())
    found = load_crash(home)
    notes = Notebook(place / "crashes", found, {})
    notes.keep({"x": torch.zeros(1, 1, 2, 2)})  # an input that shows nothing: a notebook is not believed
    done = xbfuzz("reduce", "pool", "--json", "--cache", cache, cwd=place)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["finished"], said["slips"]) == ("reduced", True, {})
    assert (said["after"]["elements"], said["after"]["filled"]) == (4, 1)
    crash = load_crash(home)
    x = crash.inputs["x"]
    assert x.shape == (1, 1, 2, 2)
    assert int(x.isnan().sum()) == 1
    assert float(x.nan_to_num(0).abs().sum()) == 0
    assert crash.signature == found.signature
    assert (crash.recipe, crash.found["recipe"]["draw"]) == (None, 0)
    assert crash.sizes == {"original": 64, "reduced": 4, "filled": 1}
    assert (said["nodes"], said["whole"]) == (None, "no smaller graph shows the crash"), "it is one operator already"
    assert crash.original is not None
    assert crash.original["x"].numel() == 64
    assert crash.difference["compared"] == 1, "the verdict is that of the smaller input"
    assert not any(path.name.startswith(".reduce") for path in (place / "crashes").iterdir())


@pytest.mark.slow
def test_a_crash_that_does_not_happen_here_is_left_as_it_is(place: Path, cache: Path) -> None:
    (home,) = (path for path in (place / "crashes").iterdir() if path.is_dir())
    crash = load_crash(home)
    write_crash(place / "crashes", replace(crash, inputs={"x": torch.ones(1, 1, 4, 4)}))
    before = (home / "crash.yaml").read_bytes()
    done = xbfuzz("reduce", "pool", "--cache", cache, cwd=place)
    assert done.returncode == 1
    assert "impossible" in done.stdout
    assert "its own input does not show it here" in done.stdout
    assert (home / "crash.yaml").read_bytes() == before


FRAGILE = """import os

import torch


class Fragile(torch.nn.Module):
    def forward(self, x):
        if torch.get_num_threads() == 2:  # the target
            if x.nan_to_num(0).count_nonzero() < 3:
                os.abort()
            return x.nan_to_num(0) * 2
        return x * 2
"""


@pytest.mark.slow
def test_a_death_on_the_way_does_not_stand_in_for_a_wrong_answer(tmp_path: Path, cache: Path) -> None:
    inputs = {"x": {"kind": "floats", "shape": ["n"]}}
    seed = builder_seed(tmp_path / "code", FRAGILE, "fragile:Fragile", inputs=inputs, dims={"n": {"size": 6}})
    x = with_value(NAN, 5, 6)
    crash = replace(pool_crash(seed, TARGET), inputs={"x": x}, original={"x": x})
    home = write_crash(tmp_path / "crashes", crash)
    done = xbfuzz("reduce", "pool", "--json", "--budget", "4m", "--cache", cache, cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (said["outcome"], said["after"]["elements"], said["after"]["filled"]) == ("reduced", 4, 1)
    assert said["slips"].keys() == {"execution (crash) at $, blame target"}
    assert load_crash(home).kind == "nonfinite"
