"""A plan shares executions out, and the stream of inputs is a function of seed, RNG seed and corpus alone."""

from __future__ import annotations

import json
import random
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.campaign.corpus import keep, read
from fuzzer.campaign.findings import Finding, Ledger, Standing
from fuzzer.campaign.plan import PLAIN_INPUTS, Options, check_seed, make_plan, next_recipe, run_seed, size
from fuzzer.crashes.signature import Signature
from fuzzer.errors import InputError, SpecError
from fuzzer.mutate.havoc import apply_recipe, propose_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.reduce.recipe import shrink_recipe
from fuzzer.seeds import ModelSpec, Seed


def seed(name: str = "one", size: int = 8, **changes: Any) -> Seed:
    data: dict[str, Any] = {
        "name": name,
        "model": {"source": "builder", "builder": "m:M"},
        "inputs": {"x": {"kind": "floats", "shape": ["n", size]}},
        "dims": {"n": {"size": 2, "max": 9}},
        "backends": ["dynamo:cpu", "aot_eager:cpu"],
    }
    return Seed.model_validate(data | changes)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(1, 200))
def test_executions_are_dealt_out_in_turn(targets: list[int], executions: int) -> None:
    backends = ["dynamo:cpu", "aot_eager:cpu", "inductor:cpu"]
    seeds = [seed(f"s{i}", backends=backends[:n]) for i, n in enumerate(targets)]
    plan = make_plan(seeds, Options(out=Path(), max_execs=executions))
    inputs = [planned.inputs or 0 for planned in plan.seeds]
    spent = sum((planned.inputs or 0) * len(planned.runnable) for planned in plan.seeds)
    assert executions <= spent < executions + max(targets), "at most the last input goes over"
    assert max(inputs) - min(inputs) <= 1
    assert sorted(inputs, reverse=True) == inputs, "the seeds that come first are served first"


def test_small_seeds_come_first_and_the_reference_is_no_target() -> None:
    seeds = [seed("large", 900), seed("small", 2, backends=["eager:cpu", "dynamo:cpu", "dynamo:cpu"])]
    plan = make_plan(seeds, Options(out=Path(), budget_s=1.0))
    assert [planned.seed.name for planned in plan.seeds] == ["small", "large"]
    assert list(plan.seeds[0].targets) == ["dynamo:cpu"]
    assert plan.seeds[0].inputs is None


@pytest.mark.parametrize("source", typing.get_args(ModelSpec.model_fields["source"].annotation))
def test_seeds_of_every_source_have_a_place_in_the_order(source: str) -> None:
    found = seed()
    model = found.model.model_copy(update={"source": source})  # what else the source needs does not matter here
    large = {"library", "repo", "hub", "exported"}  # a library must be imported, an archive read
    assert size(found.model_copy(update={"model": model}))[0] == (source in large)


def test_names_that_do_not_exist_are_told_with_the_nearest_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="did you mean 'dynamo'"):
        make_plan([seed()], Options(out=Path(), budget_s=1.0, backends=("dinamo:cpu",)))
    with pytest.raises(InputError, match=r"seed one: mutators: .*nonfinit.*nonfinite"):
        make_plan([seed(mutators={"only": ["nonfinit"]})], Options(out=Path(), budget_s=1.0))


@given(st.integers(0, 2**31), st.integers(0, 500), st.integers(0, 5))
def test_a_recipe_depends_on_its_arguments_alone(rng_seed: int, index: int, kept: int) -> None:
    one = seed()
    corpus = [propose_recipe(one, random.Random(i)) for i in range(kept)]
    recipe = next_recipe(one, rng_seed, index, corpus)
    random.seed(index)
    assert next_recipe(one, rng_seed, index, corpus) == recipe
    if index < PLAIN_INPUTS:
        assert recipe == Recipe(index)
    assert apply_recipe(one, recipe)["x"].shape[1] == 8


def test_other_rng_seeds_and_other_seeds_have_other_streams() -> None:
    streams = [
        tuple(next_recipe(one, rng_seed, i, []).id for i in range(PLAIN_INPUTS, 12))
        for one in (seed("a"), seed("b"))
        for rng_seed in (0, 1)
    ]
    assert len(set(streams)) == 4


@given(st.integers(0, 10_000), st.integers(0, 100_000))
def test_the_generators_seed_fits_and_tells_inputs_apart(rng_seed: int, index: int) -> None:
    assert 0 <= run_seed(rng_seed, index) < 2**31
    assert run_seed(rng_seed, index) != run_seed(rng_seed, index + 1)


def test_a_corpus_is_a_set_by_content(tmp_path: Path) -> None:
    one = seed()
    recipes = [propose_recipe(one, random.Random(i)) for i in range(6)]
    for folder, some in (("a", recipes[:4]), ("b", recipes[2:])):
        for recipe in some:
            keep(tmp_path / folder, one, recipe, apply_recipe(one, recipe), {"shape"}, None)
    for path in (tmp_path / "b" / "one").iterdir():  # joining is copying
        (tmp_path / "a" / "one" / path.name).write_bytes(path.read_bytes())
    merged = read(tmp_path / "a", one)
    assert {recipe.id for recipe in merged} == {recipe.id for recipe in recipes}
    again = keep(tmp_path / "a", one, Recipe(5), apply_recipe(one, recipes[0]), set(), None)
    assert Recipe.from_json(json.loads(again.read_text())["recipe"]) == recipes[0], "the first stays"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"recipe": 3}', '{"recipe": {"draw": -1}}', '{"recipe": {"draw": 0, "dims": {"n": 99}}}']
)
def test_what_is_no_corpus_entry_of_the_seed_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "bad.json").write_text(text)
    with pytest.raises(InputError, match=r"bad\.json: no corpus entry"):
        read(tmp_path, seed())


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_recipe_shrinks_to_the_one_step_that_matters(number: int, wanted: int) -> None:
    one = seed()
    recipe = Recipe(0)
    for i in range(4):
        recipe = propose_recipe(one, random.Random(number + i), recipe)
    needed = recipe.steps[wanted % len(recipe.steps)]
    asked = []

    def still_fails(candidate: Recipe) -> bool:
        asked.append(candidate)
        return needed in candidate.steps

    smaller = shrink_recipe(recipe, still_fails, most_tests=100)
    assert smaller == Recipe(recipe.draw, {}, (needed,))
    assert all(len(c.steps) + len(c.dims) < len(recipe.steps) + len(recipe.dims) for c in asked)


@given(st.integers(0, 30))
def test_shrinking_asks_no_more_often_than_it_may(most: int) -> None:
    recipe = propose_recipe(seed(), random.Random(1), propose_recipe(seed(), random.Random(2)))
    asked: list[Recipe] = []
    shrink_recipe(recipe, lambda candidate: bool(asked.append(candidate)), most_tests=most)
    assert len(asked) <= most


def test_a_fault_of_the_reference_is_one_finding_however_many_targets_show_it() -> None:
    first = Signature("tiny", "inductor:cpu", "numeric", "$", "nonfinite")
    other = replace(first, target="onnxruntime:cpu")
    finding = Finding(first, "numeric/nonfinite?", 3, {}, "reference", "", Standing.PENDING)
    ledger = Ledger(set(), {first.id: finding})
    assert ledger.same_fault(other, "target") is None
    assert ledger.same_fault(replace(other, leaf=".scores"), "reference") is None
    assert ledger.same_fault(other, "reference") is finding
    assert (finding.count, finding.also) == (2, ["onnxruntime:cpu"])


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"backends": ["inductr:cpu"]}, "inductor"),
        ({"reference": "eager:cpu?thread=2"}, "threads"),
        ({"mutators": {"only": ["tise"]}}, "ties"),
    ],
)
def test_a_seed_is_checked_for_names_that_there_are_not(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises((SpecError, InputError), match=fault):
        check_seed(seed(**changes))
