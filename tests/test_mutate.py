"""Mutators and recipes: everything is rebuilt bit for bit, stays in its bounds, and refuses hostile recipes."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou

from fuzzer.errors import InputError
from fuzzer.inputs import base_sample, valid_sample
from fuzzer.mutate import (
    Recipe,
    Step,
    Where,
    apply_recipe,
    find_mutator,
    mutator_names,
    mutators_for,
    positions,
    propose_recipe,
    propose_where,
    register,
    shapes_after,
)
from fuzzer.mutate.floats import ulp_step
from fuzzer.mutate.patterns import kept
from fuzzer.mutate.randomness import draws
from fuzzer.mutate.values import EDGE_GROUPS
from fuzzer.seeds import Seed
from fuzzer.tensors import content_hash

torch.set_num_threads(1)

CATALOG: dict[str, dict[str, Any]] = {
    "photo": {"kind": "image", "shape": ["b", 3, 8, "w"], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.25]},
    "pixels": {"kind": "image", "shape": [3, 6, "w"], "dtype": "uint8"},
    "plane": {"kind": "image", "shape": [6, 5]},
    "boxes": {"kind": "boxes", "shape": ["n", 4], "extent": [100.0, 80.0]},
    "scores": {"kind": "scores", "shape": ["n"]},
    "tokens": {"kind": "tokens", "shape": ["b", 7], "range": [0.0, 50.0]},
    "keep": {"kind": "mask", "shape": ["b", 7]},
    "bias": {"kind": "mask", "shape": [4, 4], "dtype": "float32"},
    "x": {"kind": "floats", "shape": ["n", 5]},
    "y": {"kind": "floats", "shape": ["n", 5], "range": [0.5, 2.0]},
    "half": {"kind": "floats", "shape": [9], "dtype": "float16"},
    "brain": {"kind": "floats", "shape": [2, 8], "dtype": "bfloat16"},
    "double": {"kind": "floats", "shape": [], "dtype": "float64"},
    "wave": {"kind": "floats", "shape": ["w", 3], "dtype": "complex64"},
    "counts": {"kind": "integers", "shape": ["n"], "range": [0.0, 9.0], "exact": True},
    "offsets": {"kind": "integers", "shape": [4, 3], "dtype": "int32"},
    "exact": {"kind": "floats", "shape": [6], "exact": True},
}
DIMS = {"b": {"size": 2, "max": 5}, "n": {"size": 6, "min": 0, "max": 12}, "w": {"size": 9, "min": 3, "max": 17}}


def seed_of(*names: str, **more: Any) -> Seed:
    inputs = {name: CATALOG[name] for name in names or CATALOG}
    raw = {"name": "s", "model": {"source": "library", "name": "none"}, "inputs": inputs, "dims": DIMS, **more}
    return Seed.model_validate_json(json.dumps(raw))


@st.composite
def seeds(draw: st.DrawFn) -> Seed:
    names = draw(st.lists(st.sampled_from(sorted(CATALOG)), min_size=1, max_size=4, unique=True))
    flags = ("nonfinite", "out_of_range_integers", "empty")
    return seed_of(*names, allow={flag: draw(st.booleans()) for flag in flags})


def chain(seed: Seed, rng: random.Random, length: int) -> list[Recipe]:
    """Recipes each of which descends from the ones before, as in a campaign."""
    recipes = [Recipe(rng.randrange(3))]
    for _ in range(length):
        recipes.append(propose_recipe(seed, rng, rng.choice([None, *recipes]), rng.choice([None, *recipes])))
    return recipes


def bits(sample: dict[str, Tensor]) -> str:
    return content_hash(sample)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return content_hash({"t": a}) == content_hash({"t": b})


def apply_one(seed: Seed, mutator: str, sample: dict[str, Tensor] | None = None, **params: Any) -> dict[str, Tensor]:
    return find_mutator(mutator).apply(seed, base_sample(seed, 0) if sample is None else sample, params)


EVERYWHERE = {"place": "all", "key": 0}


# ---------------------------------------------------------------- recipes


@settings(max_examples=60, deadline=None)
@given(seeds(), st.integers(0, 2**32))
def test_a_recipe_rebuilds_its_input_bit_for_bit_and_the_input_fits_the_seed(seed: Seed, entropy: int) -> None:
    for recipe in chain(seed, random.Random(entropy), 4):
        sample = apply_recipe(seed, recipe)
        assert bits(apply_recipe(seed, recipe)) == bits(sample)
        assert list(sample) == list(seed.inputs)
        assert valid_sample(seed, sample) == []
        assert all(tensor.is_contiguous() for tensor in sample.values())
        shapes = {name: tuple(tensor.shape) for name, tensor in sample.items()}
        assert shapes_after(seed, recipe.dims, recipe.steps) == shapes


def test_recipes_rebuild_bit_for_bit_in_another_process() -> None:
    seed = seed_of(allow={"empty": True, "out_of_range_integers": True})
    recipes = chain(seed, random.Random(3), 80)
    assert {step.mutator for recipe in recipes for step in recipe.steps} > {"ties", "shape"}
    code = (
        "import json, sys; from fuzzer.seeds import Seed; from fuzzer.mutate import Recipe, apply_recipe;"
        "from fuzzer.tensors import content_hash; given = json.load(sys.stdin);"
        "seed = Seed.model_validate_json(given['seed']);"
        "print(json.dumps([content_hash(apply_recipe(seed, Recipe.from_json(r))) for r in given['recipes']]))"
    )
    given_ = json.dumps({"seed": seed.model_dump_json(), "recipes": [recipe.to_json() for recipe in recipes]})
    done = subprocess.run([sys.executable, "-c", code], input=given_, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [bits(apply_recipe(seed, recipe)) for recipe in recipes]


@settings(max_examples=60, deadline=None)
@given(seeds(), st.integers(0, 2**32))
def test_a_recipe_survives_strict_json(seed: Seed, entropy: int) -> None:
    for recipe in chain(seed, random.Random(entropy), 4):
        text = json.dumps(recipe.to_json(), allow_nan=False)
        again = Recipe.from_json(json.loads(text))
        assert again == recipe
        assert again.id == recipe.id
        assert hash(again) == hash(recipe)


@settings(max_examples=40, deadline=None)
@given(seeds(), st.integers(0, 2**32))
def test_proposing_is_a_function_of_the_random_generator(seed: Seed, entropy: int) -> None:
    assert chain(seed, random.Random(entropy), 5) == chain(seed, random.Random(entropy), 5)


def test_an_id_is_twelve_hex_digits_that_do_not_depend_on_the_order_of_keys() -> None:
    recipe = Recipe(4, {"b": 1, "n": 2}, (Step("shape", {"dim": "w", "size": 4}),))
    turned = Recipe(4, {"n": 2, "b": 1}, (Step("shape", {"size": 4, "dim": "w"}),))
    assert recipe.id == turned.id
    assert len(recipe.id) == 12
    assert int(recipe.id, 16) >= 0
    others = [Recipe(5, recipe.dims, recipe.steps), Recipe(4, {"b": 1}, recipe.steps), Recipe(4, recipe.dims)]
    assert len({recipe.id, *(other.id for other in others)}) == 4


def test_recipes_never_grow_past_eight_steps() -> None:
    seed, rng = seed_of("x", "boxes", "scores"), random.Random(0)
    recipe, lengths = Recipe(0), []
    for _ in range(60):
        recipe = propose_recipe(seed, rng, recipe, recipe)
        lengths.append(len(recipe.steps))
    assert max(lengths) == 8


def test_a_seed_that_no_mutator_fits_gets_plain_base_inputs() -> None:
    seed = seed_of("exact", dims={})
    assert mutators_for(seed) == []
    recipes = [propose_recipe(seed, random.Random(i), Recipe(1)) for i in range(5)]
    assert all(recipe.steps == () and recipe.dims == {} for recipe in recipes)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "mapping"),
        ({"draw": 0, "extra": 1}, "extra"),
        ({"draw": -1}, "draw"),
        ({"draw": True}, "draw"),
        ({"draw": 2**70}, "draw"),
        ({"draw": 10**6000}, "draw"),
        ({"draw": "0"}, "draw"),
        ({"draw": 0, "dims": [1]}, "dims"),
        ({"draw": 0, "dims": {"n": 10**12}}, "dims.n"),
        ({"draw": 0, "dims": {"n": 1.0}}, "dims.n"),
        ({"draw": 0, "dims": {"__ n": 1}}, "name of a dimension"),
        ({"draw": 0, "steps": {}}, "steps"),
        ({"draw": 0, "steps": [{}] * 65}, "steps"),
        ({"draw": 0, "steps": [3]}, "steps[0]"),
        ({"draw": 0, "steps": [{"mutator": "tyes"}]}, "did you mean 'ties'"),
        ({"draw": 0, "steps": [{"mutator": ["ties"]}]}, "mutator"),
        ({"draw": 0, "steps": [{"mutator": "ties", "params": []}]}, "params"),
        ({"draw": 0, "steps": [{"mutator": "ties", "params": {"input": 3}}]}, "input"),
        ({"draw": 0, "steps": [{"mutator": "shape", "params": {"dim": "n", "size": 2**40}}]}, "size"),
        ({"draw": 0, "steps": [{"mutator": "shape", "params": {"dim": "n", "size": 2, "run": "rm"}}]}, "run"),
    ],
)
def test_a_hostile_recipe_is_refused_in_one_line(value: object, words: str) -> None:
    with pytest.raises(InputError) as caught:
        Recipe.from_json(value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", None, [1.0]])
def test_a_parameter_that_is_no_finite_number_is_refused(bad: object) -> None:
    params = {"input": "x", "where": EVERYWHERE, "factor": bad}
    with pytest.raises(InputError, match="factor"):
        Recipe.from_json({"draw": 0, "steps": [{"mutator": "scale", "params": params}]})


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(0, {"n": 13}),
        Recipe(0, {"b": 0}),
        Recipe(0, {"unknown": 1}),
        Recipe(0, {}, (Step("shape", {"dim": "n", "size": 13}),)),
        Recipe(0, {}, (Step("ties", {"input": "gone", "where": EVERYWHERE, "source": "max"}),)),
        Recipe(0, {}, (Step("scale", {"input": "tokens", "where": EVERYWHERE, "factor": 2.0}),)),
        Recipe(0, {}, (Step("negate", {"input": "exact", "where": EVERYWHERE}),)),
        Recipe(0, {}, (Step("box_duplicates", {"input": "boxes", "key": 0, "count": 1, "scores": "half"}),)),
    ],
)
def test_a_recipe_of_another_seed_is_refused(recipe: Recipe) -> None:
    with pytest.raises(InputError):
        apply_recipe(seed_of(), recipe)


# ---------------------------------------------------------------- all mutators


@settings(max_examples=80, deadline=None)
@given(seeds(), st.integers(0, 2**32))
def test_a_mutator_leaves_its_argument_alone_and_keeps_dtypes_and_shapes(seed: Seed, entropy: int) -> None:
    rng = random.Random(entropy)
    sample = apply_recipe(seed, propose_recipe(seed, rng))
    shapes = {name: tuple(tensor.shape) for name, tensor in sample.items()}
    before = bits(sample)
    for mutator in mutators_for(seed):
        after = mutator.apply(seed, sample, mutator.propose(seed, shapes, rng))
        assert bits(sample) == before
        assert valid_sample(seed, after) == []
        assert all(tensor.is_contiguous() for tensor in after.values())
        if mutator.name != "shape":
            assert {name: tuple(tensor.shape) for name, tensor in after.items()} == shapes
        for name, tensor in after.items():
            shares = sample[name].data_ptr() == tensor.data_ptr() and tensor.numel() > 0
            assert not shares or tensor is sample[name]


@settings(max_examples=60, deadline=None)
@given(seeds(), st.integers(0, 2**32))
def test_mutators_do_what_the_seed_allows_and_no_more(seed: Seed, entropy: int) -> None:
    for recipe in chain(seed, random.Random(entropy), 5):
        for name, tensor in apply_recipe(seed, recipe).items():
            spec = seed.inputs[name]
            if not seed.allow.nonfinite:
                assert bool(torch.isfinite(tensor).all())
            if not seed.allow.empty:
                assert tensor.numel() > 0
            declared = spec.range if spec.kind in ("tokens", "integers") else None
            if declared and not seed.allow.out_of_range_integers:
                assert bool(((tensor >= declared[0]) & (tensor < declared[1])).all())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_exact_inputs_tokens_and_masks_are_changed_only_by_mutators_meant_for_them(entropy: int) -> None:
    seed, rng = seed_of(allow={"out_of_range_integers": True}), random.Random(entropy)
    sample = base_sample(seed, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in sample.items()}
    meant = {"tokens": "integer", "counts": "integer", "keep": "mask", "bias": "mask", "exact": "nothing"}
    for mutator in mutators_for(seed):
        if mutator.name == "shape":
            continue
        after = mutator.apply(seed, sample, mutator.propose(seed, shapes, rng))
        for name, word in meant.items():
            assert word in mutator.name or same_bits(after[name], sample[name])


@pytest.mark.parametrize("name", sorted({*mutator_names()} - {"boundary"}))  # which is not proposed at random
def test_each_mutator_changes_something_most_of_the_time(name: str) -> None:
    seed = seed_of(allow={"empty": True, "out_of_range_integers": True})
    mutator, rng, changed = find_mutator(name), random.Random(1), 0
    sample = base_sample(seed, 0)
    shapes = {key: tuple(tensor.shape) for key, tensor in sample.items()}
    for _ in range(60):
        changed += bits(mutator.apply(seed, sample, mutator.propose(seed, shapes, rng))) != bits(sample)
    assert changed >= 36


def test_the_seed_chooses_its_mutators() -> None:
    names = {mutator.name for mutator in mutators_for(seed_of("x"))}
    assert {"ties", "scale", "nonfinite", "shape"} <= names
    assert not names & {"box_duplicates", "image_patterns", "mask_patterns", "integer_edges", "quotients"}
    assert "quotients" in {mutator.name for mutator in mutators_for(seed_of("x", "y"))}
    only = seed_of("x", mutators={"only": ["ties", "scale", "integer_edges"], "skip": ["scale"]})
    assert [mutator.name for mutator in mutators_for(only)] == ["ties"]
    assert "nonfinite" not in {m.name for m in mutators_for(seed_of("x", allow={"nonfinite": False}))}
    assert "integers_out_of_range" not in {m.name for m in mutators_for(seed_of("tokens"))}
    with pytest.raises(InputError, match="did you mean 'subnormals'"):
        mutators_for(seed_of("x", mutators={"skip": ["subnormal"]}))


def test_dimensions_stay_where_the_shape_mutator_is_skipped() -> None:
    seed = seed_of("x", mutators={"skip": ["shape"]})
    assert all(not recipe.dims for recipe in chain(seed, random.Random(0), 100))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="ties"):
        register(type(find_mutator("ties")))


# ---------------------------------------------------------------- building blocks


SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@settings(max_examples=200, deadline=None)
@given(SHAPES, st.integers(0, 2**32))
def test_positions_are_distinct_and_inside_whatever_the_shape(shape: tuple[int, ...], entropy: int) -> None:
    where, numel = propose_where(shape, random.Random(entropy)), math.prod(shape)
    at = positions(where, shape).tolist()
    assert len(at) == len(set(at))
    assert all(0 <= index < numel for index in at)
    assert bool(at) == bool(numel)


@given(st.integers(0, 2**62), st.integers(-3, 2))
def test_places_are_what_their_names_say(key: int, axis: int) -> None:
    shape = (3, 4, 5)

    def mask(place: Any, count: int) -> Tensor:
        out = torch.zeros(60)
        out[positions(Where(place=place, key=key, count=count, axis=axis), shape)] = 1
        return out.view(shape)

    assert int(mask("row", 1).sum()) == shape[axis]
    assert int(mask("row", 1).sum(axis).max()) == shape[axis]
    assert int(mask("line", 3).sum(axis).count_nonzero()) == 1
    assert int(mask("slab", 1).sum()) == 60 // shape[axis]
    assert int(mask("slab", 1).amax([i for i in range(3) if i != axis % 3]).sum()) == 1
    window = mask("window", 2).nonzero()
    assert window.amax(0).sub(window.amin(0)).tolist() == [0, 1, 1]
    assert len(window) == 4


def philox(counter: int, key: int) -> list[int]:
    """Philox4x64-10 as Salmon et al. define it ("Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    word = 2**64 - 1
    x0, x1, x2, x3 = (counter >> 64 * i & word for i in range(4))
    for turn in range(10):
        k0 = ((key & word) + turn * 0x9E3779B97F4A7C15) & word
        k1 = ((key >> 64) + turn * 0xBB67AE8584CAA73B) & word
        p0, p1 = x0 * 0xD2E7470EE14C6C93, x2 * 0xCA5A826395121157
        x0, x1, x2, x3 = p1 >> 64 ^ x1 ^ k0, p1 & word, p0 >> 64 ^ x3 ^ k1, p0 & word
    return [x0, x1, x2, x3]


@given(st.integers(0, 2**63 - 1))
def test_random_words_are_those_of_philox_whatever_the_version_of_numpy(key: int) -> None:
    assert philox(0, 0)[0] == 0x16554D9ECA36314C  # the first known answer of the authors' own test
    assert draws(key, 6).tolist() == (philox(1, key) + philox(2, key))[:6]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_an_ulp_step_is_what_nextafter_does(dtype: torch.dtype, data: st.DataObject) -> None:
    width = 32 if dtype == torch.float32 else 64
    value = torch.tensor([data.draw(st.floats(width=width, allow_nan=False, allow_infinity=False))], dtype=dtype)
    for sign in (1, -1):
        expected = torch.nextafter(torch.nextafter(value, value * 0 + sign * torch.inf), value * 0 + sign * torch.inf)
        if torch.isfinite(expected).all():
            assert torch.equal(ulp_step(value, 2 * sign), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_ulp_steps_walk_through_every_number_of_a_narrow_dtype(dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    ordered = every[torch.isfinite(every)].double().unique()
    walked = ulp_step(ordered.to(dtype), 1).double()
    assert torch.equal(walked[:-1], ordered[1:])
    assert walked[-1] == ordered[-1]


def test_an_ulp_step_of_nothing_keeps_every_bit() -> None:
    values = torch.tensor([-0.0, 0.0, math.nan, math.inf, -math.inf, 1e-45])
    assert same_bits(ulp_step(values, 0), values)
    assert same_bits(ulp_step(values, 1)[2:5], values[2:5])


# ---------------------------------------------------------------- single mutators


def test_ties_copy_the_largest_value() -> None:
    seed = seed_of("x")
    where = {"place": "row", "key": 5, "axis": -1}
    x = apply_one(seed, "ties", input="x", where=where, source="max")["x"]
    assert int((x == base_sample(seed, 0)["x"].max()).sum()) >= 5


def test_ties_pass_over_nan_when_they_look_for_the_largest() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, 2.0, 0.0]])
    out = apply_one(seed_of("x"), "ties", {"x": x}, input="x", where=EVERYWHERE, source="max")["x"]
    assert out.tolist() == [[3.0] * 5]


def test_near_ties_lie_within_their_spread() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]]).expand(12, 5).contiguous()
    out = apply_one(seed_of("x"), "near_ties", {"x": x}, input="x", where=EVERYWHERE, source="max", spread=1, key=9)
    below, above = (torch.nextafter(torch.tensor(5.0), torch.tensor(to)).item() for to in (-math.inf, math.inf))
    assert set(out["x"].flatten().tolist()) == {below, 5.0, above}


@pytest.mark.parametrize("threshold", [0.5, 0.45, 0.3, 0.75])
def test_a_shrunk_box_has_its_iou_exactly_at_the_threshold(threshold: float) -> None:
    seed = seed_of("boxes", "scores")
    params = {"key": 4, "count": 3, "scores": "scores", "how": "shrink", "amount": threshold, "snap": True}
    out = apply_one(seed, "near_duplicate_boxes", input="boxes", **params)
    iou = box_iou(out["boxes"], out["boxes"])
    assert bool((iou == torch.tensor(threshold)).any())
    assert len(out["scores"].unique()) < len(out["scores"])


@pytest.mark.parametrize("threshold", [0.5, 0.6, 0.9])
def test_a_slid_box_has_its_iou_next_to_the_threshold(threshold: float) -> None:
    params = {"key": 4, "count": 1, "how": "slide", "amount": threshold}
    boxes = apply_one(seed_of("boxes"), "near_duplicate_boxes", input="boxes", **params)["boxes"].double()
    assert float((box_iou(boxes, boxes) - threshold).abs().min()) < 1e-5


@given(
    st.sampled_from([(1, 2), (1, 4), (3, 5), (7, 10), (9, 20), (1, 3)]),
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_exact_overlaps_have_the_iou_that_the_quotient_rounds_to(
    ratio: tuple[int, int], unit: int, slid: bool, upright: bool, key: int
) -> None:
    params = {"key": key, "count": 1, "part": ratio[0], "whole": ratio[1], "unit": unit, "slid": slid}
    before = base_sample(seed_of("boxes"), 0)["boxes"]
    boxes = apply_one(seed_of("boxes"), "exact_overlaps", input="boxes", upright=upright, **params)["boxes"]
    moved = [i for i in range(len(boxes)) if not torch.equal(boxes[i], before[i])]
    assert len(moved) == 2
    iou = box_iou(boxes[moved], boxes[moved])[0, 1]
    assert iou.item() == torch.tensor(ratio[0] / ratio[1], dtype=boxes.dtype).item()


def test_operand_exceptions_soon_pair_a_zero_with_a_nan_and_one_with_infinity() -> None:
    seed, rng = seed_of("x", "half", "double", allow={"nonfinite": True}), random.Random(5)
    two = seed_of("x", "y", allow={"nonfinite": True})
    shapes = {name: tuple(tensor.shape) for name, tensor in base_sample(two, 0).items()}
    zero_nan = one_inf = 0
    for _ in range(60):
        out = apply_one(two, "operand_exceptions", **find_mutator("operand_exceptions").propose(two, shapes, rng))
        x, y = out["x"], out["y"]
        zero_nan += bool(((x == 0) & y.isnan()).any())
        one_inf += bool(((x.abs() == 1) & y.isinf()).any())
    assert min(zero_nan, one_inf) >= 15
    assert find_mutator("operand_exceptions").fits(seed)
    assert not find_mutator("operand_exceptions").fits(seed_of("x", "counts"))


def test_regimes_keep_all_elements_between_two_edges_of_one_group_with_one_sign() -> None:
    seed, rng = seed_of("x"), random.Random(5)
    mutator = find_mutator("regimes")
    for _ in range(200):
        params = {**mutator.propose(seed, {"x": (6, 5)}, rng), "where": EVERYWHERE}
        x = mutator.apply(seed, base_sample(seed, 0), params)["x"].double()
        assert bool((x > 0).all()) != bool((x < 0).all())
        low, high = x.abs().min().item() * (1 + 1e-6), x.abs().max().item() * (1 - 1e-6)
        groups = [[*sorted(group), 1.25 * max(group)] for group in EDGE_GROUPS]
        spans = [(group[i], group[min(i + 4, len(group) - 1)]) for group in groups for i in range(len(group) - 1)]
        assert any(first <= low and high <= last for first, last in spans)


def test_duplicated_boxes_are_equal_and_so_are_their_scores_when_asked() -> None:
    seed = seed_of("boxes", "scores")
    out = apply_one(seed, "box_duplicates", input="boxes", key=8, count=8, scores="scores")
    plain = apply_one(seed, "box_duplicates", input="boxes", key=8, count=8)
    assert len(out["boxes"].unique(dim=0)) < 6
    for box in out["boxes"].unique(dim=0):
        assert len(out["scores"][(out["boxes"] == box).all(-1)].unique()) == 1
    assert torch.equal(plain["scores"], base_sample(seed, 0)["scores"])


def test_degenerate_boxes_have_no_area_or_a_negative_one() -> None:
    seed = seed_of("boxes")
    for how in ("point", "line"):
        out = apply_one(seed, "degenerate_boxes", input="boxes", how=how, key=1, count=64)["boxes"]
        assert int(((out[:, 2] - out[:, 0]) * (out[:, 3] - out[:, 1]) == 0).sum()) == len(out)
    turned = apply_one(seed, "degenerate_boxes", input="boxes", how="inverted", key=1, count=64)["boxes"]
    assert bool((turned[:, 2] < turned[:, 0]).all())


def test_scaling_stops_at_the_largest_number_and_leaves_nan_alone() -> None:
    sample = {"half": torch.tensor([1.0, -2.0, 0.0, math.nan, math.inf], dtype=torch.float16)}
    out = apply_one(seed_of("half"), "scale", sample, input="half", where=EVERYWHERE, factor=1e6)["half"]
    assert out[:3].tolist() == [65504.0, -65504.0, 0.0]
    assert math.isnan(out[3])
    assert out[4] == math.inf


def test_subnormals_are_subnormal_in_every_dtype() -> None:
    seed = seed_of("x", "half", "brain", "double")
    mutator, rng = find_mutator("subnormals"), random.Random(0)
    for name, tensor in base_sample(seed, 0).items():
        shape = tuple(tensor.shape)
        for _ in range(10):
            params = mutator.pick(seed, name, shape, rng).model_dump(mode="json")  # type: ignore[attr-defined]
            params["where"] = EVERYWHERE
            out = mutator.apply(seed, {name: tensor}, params)[name].double().abs()
            assert bool(((out > 0) & (out < torch.finfo(tensor.dtype).smallest_normal)).all())


def test_a_negative_zero_survives_the_way_through_json() -> None:
    step = {"mutator": "signed_zeros", "params": {"input": "x", "where": EVERYWHERE, "values": [-0.0]}}
    recipe = Recipe.from_json(json.loads(json.dumps({"draw": 0, "steps": [step]})))
    x = apply_recipe(seed_of("x"), recipe)["x"]
    assert bool(x.signbit().all())
    assert int(x.count_nonzero()) == 0


def test_nonfinite_values_reach_both_parts_of_a_complex_number() -> None:
    out = apply_one(seed_of("wave"), "nonfinite", input="wave", where=EVERYWHERE, values=["nan"])["wave"]
    assert bool(torch.view_as_real(out).isnan().all())


def test_quotients_are_those_of_decimal_numbers() -> None:
    params = {"dividend": "x", "divisor": "y", "step": 0.1, "multiples": [6.0], "where": EVERYWHERE}
    out = apply_one(seed_of("x", "y"), "quotients", **params)
    assert set(out["x"].flatten().tolist()) == {torch.tensor(0.6).item()}
    assert set(out["y"].flatten().tolist()) == {torch.tensor(0.1).item()}


def test_integer_edges_go_to_the_ends_of_the_declared_range() -> None:
    seed, rng = seed_of("tokens"), random.Random(0)
    values = {find_mutator("integer_edges").propose(seed, {"tokens": (2, 7)}, rng)["value"] for _ in range(60)}
    assert values == {None, 0, 1, 49}


def test_integers_out_of_range_are_all_out_of_range() -> None:
    seed, rng = seed_of("tokens", "offsets", allow={"out_of_range_integers": True}), random.Random(0)
    shapes = {"tokens": (2, 7), "offsets": (4, 3)}
    params = [find_mutator("integers_out_of_range").propose(seed, shapes, rng) for _ in range(200)]
    tokens = {each["value"] for each in params if each["input"] == "tokens"}
    assert tokens == {-1, -2, 50, 63, 64, -(2**63), 2**63 - 1, 2**24 + 1, 2**31, 2**53 + 1}
    offsets = {each["value"] for each in params if each["input"] == "offsets"}
    assert offsets == {-9, 8, 31, 32, 63, 64, -(2**31), 2**31 - 1, 2**24 + 1}


@pytest.mark.parametrize(("plus", "from_end", "value"), [(1, False, 5), (0, False, 4), (0, True, -5), (1, True, -6)])
def test_integers_beside_are_the_first_index_that_is_too_large_on_either_side(
    plus: int, from_end: bool, value: int
) -> None:
    seed = seed_of("offsets", allow={"out_of_range_integers": True})
    place = {"place": "some", "key": 3, "count": 1}
    params = {"input": "offsets", "where": place, "source": "max", "plus": plus, "from_end": from_end}
    held = torch.tensor([0, 1, 2, 3, 4, 2], dtype=torch.int32).reshape(2, 3)
    out = find_mutator("integers_beside").apply(seed, {"offsets": held}, params)["offsets"]
    assert out[out != held].tolist() in ([value], [])
    assert value in out.flatten().tolist()
    assert "integers_beside" not in {m.name for m in mutators_for(seed_of("offsets"))}


def test_two_integer_operands_soon_are_the_smallest_and_minus_one() -> None:
    ints = {name: {"kind": "integers", "shape": [4]} for name in ("left", "right")}
    seed = seed_of("x", inputs=ints, allow={"out_of_range_integers": True})
    rng, shapes = random.Random(0), {"left": (4,), "right": (4,)}
    operands, base = find_mutator("operand_exceptions"), base_sample(seed, 0)
    seen = [operands.apply(seed, base, operands.propose(seed, shapes, rng)) for _ in range(60)]
    assert any(bool(((out["left"] == -(2**63)) & (out["right"] == -1)).any()) for out in seen)


def test_what_leaves_nothing_of_an_input_is_mostly_put_under_the_steps_before_it() -> None:
    seed = seed_of("x", mutators={"only": ["uniform"]})
    negated = Recipe(0, {}, (Step("negate", {"input": "x", "where": EVERYWHERE}),))
    proposed = [propose_recipe(seed, random.Random(i), negated) for i in range(200)]
    whole = [recipe.steps for recipe in proposed if len(recipe.steps) == 2 and recipe.steps[0] != recipe.steps[1]]
    under = sum(steps[0].mutator == "uniform" for steps in whole)
    assert len(whole) > 50
    assert 0.4 < under / len(whole) < 0.8


def test_a_step_is_now_and_then_made_on_two_inputs_with_the_same_numbers() -> None:
    seed = seed_of("x", "y", mutators={"only": ["regimes"]})
    recipes = [propose_recipe(seed, random.Random(i)) for i in range(200)]
    pairs = [recipe.steps for recipe in recipes if len(recipe.steps) == 2]
    alike = [a for a, b in pairs if a.params["centre"] == b.params["centre"] and a.params["input"] != b.params["input"]]
    assert len(alike) > 10


def test_integers_are_scaled_only_where_they_have_no_range_or_the_seed_allows_it() -> None:
    ranged = {**CATALOG["offsets"], "range": [0.0, 4.0]}
    assert "integer_scale" in {m.name for m in mutators_for(seed_of("offsets"))}
    assert "integer_scale" not in {m.name for m in mutators_for(seed_of("offsets", inputs={"offsets": ranged}))}
    out = apply_one(seed_of("offsets"), "integer_scale", input="offsets", where=EVERYWHERE, factor=2**20, plus=1)
    assert torch.equal(out["offsets"], base_sample(seed_of("offsets"), 0)["offsets"] * 2**20 + 1)


def test_mask_patterns_look_as_their_names_say() -> None:
    shape = (2, 3, 4)
    assert bool(kept("all", shape, 1).all())
    assert not bool(kept("none", shape, 1).any())
    assert kept("row_off", shape, 1).all(-1).sum() == 5
    assert kept("row_only", shape, 1).all(-1).sum() == 1
    assert kept("one", shape, 7).sum() == 1
    assert torch.equal(kept("causal", shape, 1)[1], torch.ones(3, 4, dtype=torch.bool).tril())
    assert torch.equal(kept("prefix", shape, 9), kept("prefix", shape, 9)[:1, :1].expand(shape))


def test_an_additive_mask_holds_zero_and_minus_infinity_or_the_lowest_number() -> None:
    params = {"input": "bias", "pattern": "row_off", "key": 2}
    out = apply_one(seed_of("bias"), "mask_patterns", style="additive", **params)["bias"]
    assert bool((out == -math.inf).all(-1).any())
    assert set(out.flatten().tolist()) == {0.0, -math.inf}
    out = apply_one(seed_of("bias"), "mask_patterns", style="additive_finite", **params)["bias"]
    assert set(out.flatten().tolist()) == {0.0, torch.finfo(torch.float32).min}


def test_image_patterns_stay_between_black_and_white() -> None:
    seed, rng = seed_of("photo", "pixels", "plane"), random.Random(0)
    sample = base_sample(seed, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in sample.items()}
    for _ in range(60):
        mutator = find_mutator("image_patterns")
        out = mutator.apply(seed, sample, mutator.propose(seed, shapes, rng))
        photo = out["photo"] * torch.tensor([0.2, 0.2, 0.25]).view(3, 1, 1) + torch.tensor([0.5, 0.4, 0.3]).view(
            3, 1, 1
        )
        for tensor in (photo, out["plane"]):
            assert float(tensor.min()) >= -1e-6
            assert float(tensor.max()) <= 1 + 1e-6


def test_a_constant_image_is_one_brightness_in_every_channel() -> None:
    params = {"input": "pixels", "pattern": "constant", "level": 0.5, "period": 1}
    assert set(apply_one(seed_of("pixels"), "image_patterns", **params)["pixels"].flatten().tolist()) == {128}


def test_a_resized_dimension_keeps_what_is_there_in_all_inputs_that_share_it() -> None:
    seed = seed_of("boxes", "scores", allow={"empty": True})
    sample = base_sample(seed, 0)
    fewer, more = (apply_one(seed, "shape", dim="n", size=size) for size in (2, 11))
    for name in sample:
        assert torch.equal(fewer[name], sample[name][:2])
        assert torch.equal(more[name][:6], sample[name])
        assert torch.equal(more[name][6:], sample[name][:5])
    none = apply_one(seed, "shape", dim="n", size=0)
    assert none["boxes"].shape == (0, 4)
    assert apply_one(seed, "shape", none, dim="n", size=3)["boxes"].tolist() == [[0.0] * 4] * 3


def test_a_dimension_becomes_empty_only_where_the_seed_allows_it() -> None:
    for allowed in (True, False):
        seed, rng = seed_of("x", allow={"empty": allowed}), random.Random(0)
        sizes = {find_mutator("shape").propose(seed, {"x": (6, 5)}, rng)["size"] for _ in range(600)}
        assert sizes == set(range(0 if allowed else 1, 13))


@given(rng_seed=st.integers(0, 10_000))
def test_floats_stay_in_their_range_where_the_seed_asks_for_it(rng_seed: int) -> None:
    seed = Seed.model_validate(
        {
            "name": "held",
            "model": {"source": "builder", "builder": "tiny:Tiny"},
            "inputs": {"x": {"kind": "floats", "shape": [4, 6], "range": [-3, 3]}},
            "allow": {"beyond_range": False, "nonfinite": False},
        }
    )
    rng = random.Random(rng_seed)
    recipe = propose_recipe(seed, rng, propose_recipe(seed, rng))
    value = apply_recipe(seed, recipe)["x"]
    assert bool((value.abs() <= 3).all())
