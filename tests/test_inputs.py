"""Base inputs: deterministic, in range, of the right shape, and read from files without surprises."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fuzzer.errors import InputError
from fuzzer.inputs import base_sample, oversized, sample_with_dims, valid_sample
from fuzzer.inputs.dtypes import DTYPES, cast_within
from fuzzer.seeds import Seed
from fuzzer.seeds.fields import DTYPES_OF_KIND
from fuzzer.tensors import content_hash


def seed_of(dims: dict[str, Any] | None = None, base: Path | None = None, name: str = "s", **inputs: Any) -> Seed:
    model = {"source": "builder", "builder": "m:f"}
    data = {"name": name, "model": model, "inputs": inputs, "dims": dims or {}}
    return Seed.model_validate(data).at(base or Path("."))


def one(draw: int = 0, base: Path | None = None, **spec: Any) -> torch.Tensor:
    return base_sample(seed_of(base=base, x=spec), draw)["x"]


def exact(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float64)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(DTYPES_OF_KIND)))
    dtype = draw(st.sampled_from(sorted(DTYPES_OF_KIND[kind])))
    lead = draw(st.lists(st.integers(0, 3), max_size=2))
    tail = {"image": [st.integers(0, 9)] * 2, "boxes": [st.integers(0, 9), st.just(4)]}.get(kind, [st.integers(0, 9)])
    spec = {"kind": kind, "dtype": dtype, "shape": lead + [draw(size) for size in tail]}
    if kind not in ("mask", "boxes") and draw(st.booleans()):
        low = draw(st.integers(0, 100))
        spec["range"] = [low, low + draw(st.integers(1, 27))]
    if kind == "boxes" and draw(st.booleans()):
        spec["extent"] = [draw(st.floats(0.5, 1000)), draw(st.floats(0.5, 1000))]
    return spec


@given(specs(), st.integers(0, 2**40))
@settings(deadline=None, max_examples=150)
def test_a_base_input_is_deterministic_and_as_its_spec_says(spec: dict[str, Any], draw: int) -> None:
    value = one(draw, **spec)
    assert list(value.shape) == spec["shape"]
    assert value.dtype == DTYPES[spec["dtype"]]
    assert value.is_contiguous()
    assert content_hash({"x": value}) == content_hash({"x": one(draw, **spec)})
    if value.numel() == 0:
        return
    parts = exact(torch.view_as_real(value) if value.is_complex() else value)
    assert torch.isfinite(parts).all()
    if "range" in spec:
        low, high = spec["range"]
        assert parts.min() >= low
        assert parts.max() <= (high - 1 if spec["kind"] in ("tokens", "integers") else high)
    if spec["kind"] == "boxes":
        width, height = spec.get("extent", (320, 320))
        x1, y1, x2, y2 = parts.unbind(-1)
        assert (x1 >= 0).all()
        assert (y1 >= 0).all()
        assert (x1 < x2).all()
        assert (y1 < y2).all()
        assert (x2 <= width).all()
        assert (y2 <= height).all()
    if spec["kind"] == "mask":
        assert set(parts.unique().tolist()) <= {0.0, 1.0}
        assert parts.any()
    assert valid_sample(seed_of(x=spec), {"x": value}) == []


def test_the_bits_do_not_change_between_versions_and_machines() -> None:
    """Recorded once: a change here breaks every recipe that is stored."""
    seed = seed_of(
        image={"kind": "image", "shape": [1, 3, 8, 8]},
        boxes={"kind": "boxes", "shape": [5, 4]},
        scores={"kind": "scores", "shape": [5]},
        floats={"kind": "floats", "shape": [7]},
        tokens={"kind": "tokens", "shape": [7]},
        mask={"kind": "mask", "shape": [2, 7]},
    )
    assert content_hash(base_sample(seed, 3)) == "a7deb10436a0477b"


def test_the_name_of_the_seed_plays_no_part_and_that_of_the_input_does() -> None:
    spec = {"kind": "floats", "shape": [5]}
    first, second = (base_sample(seed_of(name=name, x=spec, y=spec), 0) for name in ("a", "b"))
    assert torch.equal(first["x"], second["x"])
    assert not torch.equal(first["x"], first["y"])


def test_drawing_leaves_torchs_own_generator_alone() -> None:
    before = torch.get_rng_state()
    one(kind="scores", shape=[5])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", sorted(DTYPES_OF_KIND))
def test_draws_differ(kind: str) -> None:
    shape = {"image": [3, 16, 16], "boxes": [9, 4]}.get(kind, [9, 20])
    assert len({content_hash({"x": one(draw, kind=kind, shape=shape)}) for draw in range(20)}) == 20


def test_floats_are_standard_normal_without_a_range() -> None:
    value = one(kind="floats", shape=[100_000])
    assert abs(float(value.mean())) < 0.02  # six standard errors: 6 / sqrt(100000)
    assert abs(float(value.std()) - 1) < 0.02
    assert 0.67 < float((value.abs() < 1).double().mean()) < 0.70  # 0.683 for a normal


def test_scores_are_distinct_and_not_in_order() -> None:
    value = one(kind="scores", shape=[50, 20])
    assert value.unique().numel() == 1000
    assert not torch.equal(value.flatten().sort().values, value.flatten())
    assert value.min() < 0.01
    assert value.max() > 0.99


def test_boxes_overlap_in_clusters_and_differ_in_size() -> None:
    from torchvision.ops import box_area, box_iou

    areas = []
    for draw in range(5):
        value = one(draw, kind="boxes", shape=[40, 4])
        overlaps = box_iou(value, value).fill_diagonal_(0)
        assert int((overlaps.max(dim=1).values > 0.3).sum()) >= 10
        assert int((overlaps == 0).sum()) > 400
        areas.append(box_area(value))
    assert torch.cat(areas).max() > 16 * torch.cat(areas).min()


def test_an_image_is_smooth_with_texture_and_fills_its_range() -> None:
    for draw in range(10):
        value = exact(one(draw, kind="image", shape=[1, 3, 64, 64]))
        assert value.max() - value.min() > 0.55
        step = (value[..., 1:] - value[..., :-1]).abs()
        assert step.mean() < 0.25 * value.std()  # white noise: 1.13 standard deviations
        assert (step > 0).double().mean() > 0.99


def test_an_image_is_normalised_by_channel() -> None:
    plain = one(kind="image", shape=[2, 3, 5, 5], dtype="float64")
    value = one(kind="image", shape=[2, 3, 5, 5], dtype="float64", mean=[0.1, 0.2, 0.3], std=[1, 2, 4])
    for channel, (mean, std) in enumerate([(0.1, 1), (0.2, 2), (0.3, 4)]):
        assert torch.equal(value[:, channel], (plain[:, channel] - mean) / std)


def test_integers_reach_every_value_of_their_range_and_no_other() -> None:
    assert set(one(kind="integers", shape=[2000]).tolist()) == set(range(-8, 8))
    assert set(one(kind="integers", shape=[2000], dtype="uint8").tolist()) == set(range(8))
    assert set(one(kind="tokens", shape=[400], range=[3, 6]).tolist()) == {3, 4, 5}
    assert int(one(kind="tokens", shape=[4000], dtype="int8").max()) == 127


def test_the_widest_range_of_int64_is_drawn_from_evenly() -> None:
    value = one(kind="integers", shape=[4000], range=[-(2.0**63), 2.0**63])
    assert 1800 < int((value > 0).sum()) < 2200  # six standard deviations of a fair coin
    assert value.unique().numel() > 3990


@pytest.mark.parametrize("shape", [[2**20, 2**20], [10**20, 3], [0, 10**20]])
def test_an_input_larger_than_the_seeds_memory_is_an_input_error(shape: list[int]) -> None:
    with pytest.raises(InputError, match=r"input 'x': .* MiB, more than the seed's memory_mb"):
        one(kind="floats", shape=shape)


def test_a_range_without_a_number_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"input 'x': range .* holds no whole number of dtype uint8"):
        one(kind="tokens", shape=[4], dtype="uint8", range=[300, 400])
    with pytest.raises(InputError, match="holds no whole number"):
        one(kind="integers", shape=[4], range=[0.2, 0.8])


@given(
    st.sampled_from(["float16", "bfloat16", "float32"]),
    st.floats(-6e4, 6e4),
    st.floats(1e-2, 1e4),
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
)
def test_rounding_never_leaves_the_range(name: str, low: float, span: float, parts: list[float]) -> None:
    high = min(low + span, 6.5e4)
    values = torch.tensor([low * (1 - part) + high * part for part in parts], dtype=torch.float64)
    got = exact(cast_within(values, DTYPES[name], low, high))
    if torch.tensor(low, dtype=torch.float64).to(DTYPES[name]) == torch.tensor(high, dtype=torch.float64).to(
        DTYPES[name]
    ):
        return  # perhaps no number of the dtype lies in the range
    assert ((got >= low) & (got <= high)).all()


BATCHED = {"kind": "floats", "shape": ["batch", 3]}


class TestDims:
    def test_named_dimensions_have_their_size_or_the_one_asked_for(self) -> None:
        seed = seed_of(dims={"batch": {"size": 2}}, x=BATCHED, y={"kind": "mask", "shape": ["batch"]})
        assert [tuple(value.shape) for value in base_sample(seed, 0).values()] == [(2, 3), (2,)]
        assert [tuple(value.shape) for value in sample_with_dims(seed, 0, {"batch": 5}).values()] == [(5, 3), (5,)]
        assert [tuple(value.shape) for value in sample_with_dims(seed, 0, {"batch": 0}).values()] == [(0, 3), (0,)]
        assert content_hash(sample_with_dims(seed, 4, {"batch": 2})) == content_hash(base_sample(seed, 4))

    def test_an_unknown_dimension_or_a_negative_size_is_an_input_error(self) -> None:
        seed = seed_of(dims={"batch": {"size": 2}}, x=BATCHED)
        with pytest.raises(InputError, match="'n' is no dimension"):
            sample_with_dims(seed, 0, {"n": 1})
        with pytest.raises(InputError, match="cannot be -1"):
            sample_with_dims(seed, 0, {"batch": -1})

    def test_an_array_from_a_file_is_repeated_or_cut(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
        seed = seed_of(dims={"batch": {"size": 2}}, base=tmp_path, x={**BATCHED, "files": ["a.npy"]})
        assert sample_with_dims(seed, 0, {"batch": 3})["x"].tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
        assert sample_with_dims(seed, 0, {"batch": 1})["x"].tolist() == [[0, 1, 2]]


class TestFiles:
    def test_an_image_is_resized_and_scaled(self, tmp_path: Path) -> None:
        pixels = np.zeros((8, 8, 3), dtype=np.uint8)
        pixels[..., 0], pixels[..., 1] = 255, 51
        Image.fromarray(pixels).save(tmp_path / "a.png")
        value = one(base=tmp_path, kind="image", shape=[2, 3, 4, 5], files=["a.png"])
        assert value.shape == (2, 3, 4, 5)
        assert [value[:, i].unique().tolist() for i in range(3)] == [[1.0], [pytest.approx(0.2)], [0.0]]
        raw = one(base=tmp_path, kind="image", shape=[3, 4, 5], files=["a.png"], dtype="uint8")
        assert [raw[i].unique().tolist() for i in range(3)] == [[255], [51], [0]]
        gray = one(base=tmp_path, kind="image", shape=[1, 4, 5], files=["a.png"], dtype="uint8")
        assert gray.unique().tolist() == [round(0.299 * 255 + 0.587 * 51)]  # ITU-R 601 luma

    def test_the_draw_picks_the_file(self, tmp_path: Path) -> None:
        for i in range(3):
            np.save(tmp_path / f"{i}.npy", np.full(2, i, dtype=np.float32))
        files = [f"{i}.npy" for i in range(3)]
        firsts = [float(one(draw, base=tmp_path, kind="floats", shape=[2], files=files)[0]) for draw in range(5)]
        assert firsts == [0, 1, 2, 0, 1]

    @pytest.mark.parametrize("suffix", ["npz", "safetensors"])
    def test_the_key_picks_the_array(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"a.{suffix}"
        first, second = np.array([1, 2], dtype=">i4"), np.array([3.5, 4], dtype=np.float64)
        if suffix == "npz":
            np.savez(path, first=first, second=second)
        else:
            safetensors.torch.save_file({"first": torch.tensor([1, 2]), "second": torch.from_numpy(second)}, path)
        spec = {"shape": [2], "files": [path.name]}
        assert one(base=tmp_path, kind="tokens", key="first", **spec).tolist() == [1, 2]
        assert one(base=tmp_path, kind="floats", key="second", **spec).tolist() == [3.5, 4]
        with pytest.raises(InputError, match="no array 'third'; it holds first, second"):
            one(base=tmp_path, kind="floats", key="third", **spec)
        with pytest.raises(InputError, match="`key` must say which"):
            one(base=tmp_path, kind="floats", **spec)

    @pytest.mark.parametrize(
        ("array", "spec", "said"),
        [
            (np.zeros(3, np.float32), {"kind": "floats"}, r"shape \[3\], the seed asks for \[2\]"),
            (np.array([0.5, 1]), {"kind": "tokens"}, "dtype float64 do not fit int64"),
            (np.array([np.nan, 1]), {"kind": "tokens"}, "do not fit int64"),
            (np.array([1, 300]), {"kind": "tokens", "dtype": "uint8"}, "dtype int64 do not fit uint8"),
            (np.array([1j, 2]), {"kind": "floats"}, "do not fit float32"),
            (np.array(["a", "b"]), {"kind": "floats"}, "not a readable array"),
            (np.array([{}, 2], dtype=object), {"kind": "floats"}, "not a readable array"),
        ],
    )
    def test_an_array_that_does_not_fit_is_an_input_error(
        self, tmp_path: Path, array: Any, spec: dict[str, Any], said: str
    ) -> None:
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        with pytest.raises(InputError, match=said):
            one(base=tmp_path, shape=[2], files=["a.npy"], **spec)

    @pytest.mark.parametrize("name", ["a.png", "a.npy", "a.npz", "a.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"rubbish", b"\x93NUMPY\x01\x00\xff", b"PK\x03\x04zz", pickle.dumps([1])])
    def test_a_damaged_or_missing_file_is_an_input_error(self, tmp_path: Path, name: str, content: bytes) -> None:
        with pytest.raises(InputError):
            one(base=tmp_path, kind="image", shape=[1, 2, 2], files=[name])
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            one(base=tmp_path, kind="image", shape=[1, 2, 2], files=[name])

    def test_an_image_file_of_another_kind_or_channel_count_is_an_input_error(self, tmp_path: Path) -> None:
        Image.new("L", (4, 4)).save(tmp_path / "a.png")
        with pytest.raises(InputError, match="goes with `kind: image`"):
            one(base=tmp_path, kind="floats", shape=[1, 4, 4], files=["a.png"])
        with pytest.raises(InputError, match="the shape asks for 2"):
            one(base=tmp_path, kind="image", shape=[2, 4, 4], files=["a.png"])


class TestValid:
    SEED = seed_of(
        dims={"n": {"size": 2, "max": 3}},
        x={"kind": "floats", "shape": ["n", 3]},
        y={"kind": "tokens", "shape": ["n"]},
    )

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"x": None}, "input 'x' is missing"),
            ({"z": torch.zeros(1)}, "'z' is no input of the seed"),
            ({"x": torch.zeros(2, 3, dtype=torch.float64)}, "input 'x' has dtype float64, not float32"),
            ({"x": torch.zeros(2, 3, 1)}, "input 'x' has 3 dimensions, not 2"),
            ({"x": torch.zeros(2, 4)}, "input 'x' has size 4 in dimension 1, not 3"),
            ({"x": torch.zeros(1, 3)}, "dimension 'n' is 1 in input 'x' and 2 in 'y'"),
            ({"x": torch.zeros(4, 3), "y": torch.zeros(4).long()}, "dimension 'n' is 4, outside 1 to 3"),
            ({"x": torch.zeros(0, 3), "y": torch.zeros(0).long()}, "dimension 'n' is 0, outside 1 to 3"),
            ({"x": 3}, "input 'x' is of type int, not a tensor"),
        ],
    )
    def test_each_misfit_is_named(self, changes: dict[str, Any], said: str) -> None:
        sample = {**base_sample(self.SEED, 0), **changes}
        assert valid_sample(self.SEED, {name: value for name, value in sample.items() if value is not None}) == [said]

    def test_out_of_range_values_are_valid(self) -> None:
        sample = {"x": torch.full((2, 3), math.nan), "y": torch.tensor([-1, 10**9])}
        assert valid_sample(self.SEED, sample) == []


def test_a_dimension_that_may_grow_beyond_the_memory_limit_is_told_before_anything_runs() -> None:
    given = {"name": "n", "model": {"source": "builder", "builder": "m:M"}, "memory_mb": 512}
    given |= {"inputs": {"x": {"kind": "floats", "shape": ["n", 3]}}}
    wide = Seed.model_validate(given | {"dims": {"n": {"size": 4, "max": 10**12}}})
    assert oversized(wide).startswith("input 'x' with n at 1000000000000 is [1000000000000, 3]: 22888183 MiB")
    assert not oversized(Seed.model_validate(given | {"dims": {"n": {"size": 4, "max": 10**7}}}))
