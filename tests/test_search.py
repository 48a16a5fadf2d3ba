"""The search: a stream that is a function of what the reference said, its memory, its guide, corpus, strategies."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fuzzer.backends.boundary import towards_boundary
from fuzzer.backends.margins import margin_of
from fuzzer.backends.session import Answer
from fuzzer.backends.watch import Watch, watchable
from fuzzer.campaign import corpus
from fuzzer.campaign.blocks import Blocks
from fuzzer.campaign.energy import Memory
from fuzzer.campaign.features import features
from fuzzer.campaign.minimize import Entry, cover, minimize
from fuzzer.campaign.stream import SEARCHES, Learnt, Search, Stream, fresh_share
from fuzzer.errors import InputError
from fuzzer.inputs import base_sample, valid_sample
from fuzzer.mutate import Recipe, Step, apply_recipe
from fuzzer.seeds import Seed
from fuzzer.strategies import inputs, samples
from fuzzer.tensors import content_hash

torch.set_num_threads(1)


def seed_of(**more: Any) -> Seed:
    raw = {
        "name": "s",
        "model": {"source": "library", "name": "none"},
        "inputs": {
            "x": {"kind": "floats", "shape": ["n", 4], "range": [-2.0, 2.0]},
            "k": {"kind": "integers", "shape": ["n"], "range": [0.0, 9.0]},
        },
        "dims": {"n": {"size": 3, "max": 9}},
    }
    return Seed.model_validate_json(json.dumps(raw | more))


def answer(sample: dict[str, Tensor]) -> Answer:
    """What a small model says."""
    return Answer(leaves={"$": sample["x"].exp().sum(-1), "k": sample["k"] * 2})


def run(stream: Stream, count: int) -> list[Recipe]:
    for index in range(count):
        stream.learn(index, answer(apply_recipe(stream.seed, stream.recipe(index))))
    return list(stream.recipes)


# ---------------------------------------------------------------- the stream


@pytest.mark.parametrize("name", SEARCHES)
def test_a_stream_is_a_function_of_its_seeds_and_answers_and_every_input_fits_the_seed(name: str) -> None:
    seed = seed_of()
    first = run(Stream(seed, 3, Search.named(name)), 40)
    random.seed(99)
    assert run(Stream(seed, 3, Search.named(name)), 40) == first
    assert all(valid_sample(seed, apply_recipe(seed, recipe)) == [] for recipe in first)
    other = run(Stream(seed, 4, Search.named(name)), 40)
    assert (other == first) == (name == "seeds"), "base inputs come in one order only"


@pytest.mark.parametrize("blocks", [Blocks(1), Blocks(8), Blocks(2, 8)], ids=str)
@pytest.mark.parametrize("cut", [3, 16, 21])
def test_a_stream_restored_from_a_journal_goes_on_as_if_nothing_had_happened(blocks: Blocks, cut: int) -> None:
    seed = seed_of()
    whole = Stream(seed, 1, Search.named("full"), blocks=blocks)
    kept = []
    for index in range(48):
        recipe = whole.recipe(index)
        learnt = whole.taught(index, answer(apply_recipe(seed, recipe)))
        kept.append((recipe, json.loads(json.dumps(learnt.to_json()))))
    again = Stream(seed, 1, Search.named("full"), blocks=blocks)
    for recipe, learnt in kept[:cut]:
        again.restore(recipe, Learnt.from_json(learnt))
    for index in range(cut, 48):
        again.learn(index, answer(apply_recipe(seed, again.recipe(index))))
    assert again.recipes == whole.recipes


def test_inputs_of_one_block_are_made_before_any_of_their_answers_is_known() -> None:
    seed = seed_of()
    slow, quick = (Stream(seed, 1, Search.named("full"), blocks=Blocks(8)) for _ in range(2))
    run(quick, 24)
    for start in (0, 8, 16):
        block = [slow.recipe(index) for index in range(start, start + 8)]
        for index, recipe in enumerate(block, start):
            slow.learn(index, answer(apply_recipe(seed, recipe)))
    assert slow.recipes == quick.recipes
    assert [quick.settled(index) for index in range(15, 18)] == [True, True, True]


def test_a_block_can_be_made_before_the_one_before_it_has_answered() -> None:
    seed = seed_of()
    ahead, plain = (Stream(seed, 1, Search.named("full"), blocks=Blocks(8)) for _ in range(2))
    run(plain, 32)
    waiting: list[int] = []
    for start in (0, 8, 16, 24):
        for index in range(start, start + 8):
            ahead.recipe(index)
        for index in waiting:
            ahead.learn(index, answer(apply_recipe(seed, ahead.recipe(index))))
        waiting = list(range(start, start + 8))
    assert ahead.recipes == plain.recipes
    assert ahead.corpus, "it learns all the same"


def test_the_first_inputs_start_from_base_inputs_and_later_half_of_them() -> None:
    shares = [fresh_share(index) for index in range(0, 300, 10)]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[-1]) == (1.0, 0.5)


def test_only_the_full_search_learns() -> None:
    grown = {name: Stream(seed_of(), 1, Search.named(name)) for name in SEARCHES}
    for stream in grown.values():
        run(stream, 30)
    assert {name for name, stream in grown.items() if stream.corpus} == {"full"}


def test_uniform_values_fill_the_range_and_sizes_vary() -> None:
    seed = seed_of()
    found = [apply_recipe(seed, recipe) for recipe in run(Stream(seed, 0, Search.named("uniform")), 60)]
    values = torch.cat([sample["x"].reshape(-1) for sample in found])
    assert (values.min() >= -2.0) & (values.max() <= 2.0)
    assert abs(float(values.mean())) < 0.15
    assert {int(value) for sample in found for value in sample["k"]} == set(range(9))
    assert {len(sample["k"]) for sample in found} == set(range(1, 10))


def test_a_search_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(InputError, match="full, blind, uniform, seeds"):
        Search.named("clever")


def test_a_guide_is_asked_for_one_input_in_eight_and_its_step_stands_last() -> None:
    asked: list[int] = []

    def guide(recipe: Recipe, key: int) -> Step | None:
        asked.append(key)
        return Step("boundary", {"changes": [{"input": "x", "at": [0], "values": [0.25]}]}) if len(asked) > 1 else None

    seed = seed_of()
    recipes = run(Stream(seed, 1, Search.named("full"), guide=guide), 40)
    assert len(asked) == 5
    led = [index for index, recipe in enumerate(recipes) if recipe.steps and recipe.steps[-1].mutator == "boundary"]
    assert set(led) >= {15, 23, 31, 39}
    assert apply_recipe(seed, recipes[15])["x"].reshape(-1)[0] == 0.25


# ---------------------------------------------------------------- what was learnt


def test_rare_features_and_short_recipes_are_mutated_more_often() -> None:
    memory = Memory()
    plain, rare = Recipe(1), Recipe(2)
    memory.enter(plain, ["common"], ())
    memory.enter(rare, ["common", "rare"], ())
    long = Recipe(3, {}, (Step("negate", {}),) * 7)
    memory.enter(long, ["common", "long"], ())
    for _ in range(100):
        memory.enter(Recipe(9), ["common"], ())
    rng = random.Random(0)
    chosen = [memory.choose(rng) for _ in range(400)]
    assert chosen.count(rare) > 4 * chosen.count(plain)
    assert chosen.count(rare) > 4 * chosen.count(long) > 0


def test_a_mutator_that_finds_is_favoured_at_most_twofold_and_none_is_given_up() -> None:
    memory = Memory()
    for i in range(60):
        memory.enter(Recipe(i), [f"new {i}"], ["finds"])
        memory.enter(Recipe(i), ["old"], ["fails"])
    weights = memory.weights()
    assert weights["finds"] == pytest.approx(2.0)
    assert 1.0 <= weights["fails"] < 1.1


def test_a_margin_an_error_message_and_what_was_seen_inside_are_features() -> None:
    near = features(Answer(leaves={"$": torch.tensor([[1.0, 1.0 + 2**-20]])}))
    far = features(Answer(leaves={"$": torch.tensor([[1.0, 2.0]])}))
    assert {word for word in near ^ far if "margin" in word}
    assert "in:gt#1:even:1" in features(Answer(leaves={}, inside=["gt#1:even:1"]))


# ---------------------------------------------------------------- the inside of the reference


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("gt", (torch.tensor([1.0, 3.0]), 2.0), [-1.0, 1.0]),
        ("argmax", (torch.tensor([[5.0, 1.0, 4.5]]), -1), [0.5]),
        ("argmin", (torch.tensor([5.0, 1.0, 4.0]),), [3.0]),
        ("topk", (torch.tensor([9.0, 4.0, 6.0, 5.0]), 2), [3.0, 1.0]),
        ("sort", (torch.tensor([1.0, 4.0, 2.0]),), [2.0, 1.0]),
        ("round", (torch.tensor([0.75, 2.5]),), [0.25, 0.0]),
        ("floor", (torch.tensor([1.875, 3.0]),), [-0.125, 0.0]),
        ("to", (torch.tensor([1.25]), torch.int8), [0.25]),
        ("floor_divide", (torch.tensor([3.25]), torch.tensor([0.5])), [-0.5 + 0.0]),
        ("nms", (torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3]]), torch.tensor([0.75, 0.5]), 0.5), [0.25, 0.25]),
    ],
)
def test_the_margin_of_a_decision_is_the_distance_at_which_it_turns(
    name: str, args: Any, expected: list[float]
) -> None:
    margin = margin_of(name, args, {})
    assert margin is not None
    assert margin.abs().tolist() == pytest.approx([abs(value) for value in expected])


def test_what_decides_nothing_has_no_margin() -> None:
    ints = torch.tensor([1, 2])
    assert margin_of("gt", (ints, 1), {}) is None
    assert margin_of("add", (torch.ones(2), 1), {}) is None
    assert margin_of("to", (torch.ones(2), torch.float64), {}) is None


def test_a_watched_model_answers_the_same_and_tells_of_ties_and_subnormals() -> None:
    def model(x: Tensor) -> Tensor:
        return (x * 1e-38).argmax()

    x = torch.tensor([1e-3, 2.0, 2.0, 0.0])
    with Watch() as watch:
        assert model(x) == 1
    assert "mul@1:subnormal:1" in watch.words
    assert "mul@1:zero:1" in watch.words
    assert "argmax#1:even:1" in watch.words
    assert not watchable(nn.Sequential(nn.MultiheadAttention(4, 2)))


@given(st.integers(0, 2**31 - 1))
@example(924451)  # behind a kink, where only a shorter step comes nearer
@settings(max_examples=25, deadline=None)
def test_following_the_gradient_ends_where_the_decision_is_a_toss_up(key: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)).requires_grad_(False)
    x = {"x": torch.randn(3, 6, generator=torch.Generator().manual_seed(key % 1000))}
    moved = towards_boundary(lambda sample: net(sample["x"]).argmax(-1), x, ["x"], key)
    assert moved is not None
    after = x["x"].clone()
    for change in moved.changes:
        after.reshape(-1)[change["at"]] = torch.tensor(change["values"])
    top = net(after).topk(2).values
    gaps = (top[:, 0] - top[:, 1]).abs()
    assert float(gaps.min()) < 1e-5 <= abs(moved.before)
    assert int((after != x["x"]).sum()) <= 16


def test_a_model_without_decisions_or_gradients_has_no_boundary() -> None:
    x = {"x": torch.ones(1)}
    assert towards_boundary(lambda sample: sample["x"] * 2, x, ["x"], 5) is None
    assert towards_boundary(lambda sample: (sample["x"].detach() > 0).sum(), x, ["x"], 5) is None


# ---------------------------------------------------------------- the corpus


def entry(name: str, words: str, steps: int = 1, own: bool = True) -> Entry:
    return Entry(Path(f"{name}.json"), frozenset(words), steps, own)


@given(st.lists(st.tuples(st.text("abcdefgh", max_size=4), st.integers(0, 3), st.booleans()), max_size=12))
def test_a_cover_keeps_every_feature_and_whatever_is_a_users(given_: list[tuple[str, int, bool]]) -> None:
    entries = [entry(str(i), words, steps, own) for i, (words, steps, own) in enumerate(given_)]
    kept = cover(entries)
    assert frozenset().union(*(e.features for e in kept)) == frozenset().union(*(e.features for e in entries))
    assert [e for e in entries if not e.own and e not in kept] == []


def test_a_cover_takes_the_one_that_has_most_then_the_shorter() -> None:
    entries = [entry("a", "x"), entry("b", "xy", 3), entry("c", "xy", 1), entry("d", "z")]
    assert [e.path.stem for e in cover(entries)] == ["c", "d"]


def test_minimizing_removes_what_is_superfluous_and_never_what_a_user_put_or_changed(tmp_path: Path) -> None:
    seed = seed_of()

    def keep(draw: int, words: str) -> Path:
        return corpus.keep(tmp_path, seed, Recipe(draw), base_sample(seed, draw), list(words), None)

    paths = {words: keep(i, words) for i, words in enumerate(("abd", "a", "c", "b"))}
    edited = json.loads(paths["b"].read_text())
    del edited["kept_by"]
    paths["b"].write_text(json.dumps(edited))
    (tmp_path / "s" / "notes.json").write_text("mine")
    dry = minimize(tmp_path / "s", dry_run=True)
    assert all(path.exists() for path in paths.values())
    found = minimize(tmp_path / "s")
    assert found == dry
    assert found.removed == [paths["a"].stem]
    assert not paths["a"].exists()
    assert not paths["a"].with_suffix(".safetensors").exists()
    assert set(found.yours) == {"notes", paths["b"].stem}
    assert found.features == 4


# ---------------------------------------------------------------- strategies


@given(inputs(seed_of()))
@settings(max_examples=40, deadline=None)
def test_inputs_are_samples_that_the_seed_describes(sample: dict[str, Tensor]) -> None:
    assert valid_sample(seed_of(), sample) == []


@given(samples(seed_of()))
@settings(max_examples=10, deadline=None)
def test_samples_are_base_inputs(sample: dict[str, Tensor]) -> None:
    assert bool((sample["x"].abs() <= 2).all())
    assert any(content_hash(base_sample(seed_of(), draw)) == content_hash(sample) for draw in range(1000))
