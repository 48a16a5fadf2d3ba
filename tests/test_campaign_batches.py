"""Batches: what may run together, that answers come apart again, and that a hit in a batch is found alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from campaign_runs import events, seed_folder, xbfuzz
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.backends.session import Answer
from fuzzer.campaign import batch
from fuzzer.campaign.blocks import Blocks
from fuzzer.seeds import Seed


def seed_of(most: int) -> Seed:
    raw = {
        "name": "s",
        "model": {"source": "library", "name": "none"},
        "inputs": {"x": {"kind": "floats", "shape": ["b", "w"]}, "y": {"kind": "floats", "shape": ["b"]}},
        "dims": {"b": {"size": 1, "min": 0, "max": most}, "w": {"size": 3, "max": 9}},
        "independent": "b",
    }
    return Seed.model_validate_json(json.dumps(raw))


def sample(size: int, width: int) -> dict[str, torch.Tensor]:
    return {"x": torch.rand(size, width), "y": torch.rand(size)}


@pytest.mark.parametrize("blocks", [Blocks(), Blocks(8), Blocks(8, 32), Blocks(2, 16)], ids=str)
@given(st.integers(0, 5000))
def test_blocks_follow_each_other_without_a_gap(blocks: Blocks, index: int) -> None:
    start, end = blocks.start(index), blocks.end(index)
    assert start <= index < end
    assert {(blocks.start(each), blocks.end(each)) for each in range(start, end)} == {(start, end)}
    assert blocks.start(end) == end, "the next one begins where this one ends"
    assert blocks.size <= end - start <= max(blocks.size, blocks.most)
    assert start == 0 or blocks.end(blocks.before(start)) == start


def test_blocks_grow_once_there_has_been_something_to_learn() -> None:
    starts = [index for index in range(160) if Blocks(8, 32).start(index) == index]
    assert starts == [0, 8, 16, 24, 32, 48, 64, 96, 128]


@pytest.mark.parametrize(("small", "lengths"), [(0, [4, 4, 2]), (40, [10]), (20, [5, 5])])
def test_small_samples_run_in_one_forward_beyond_the_dimensions_maximum(small: int, lengths: list[int]) -> None:
    samples = [sample(1, 3) for _ in range(10)]  # of four elements each
    assert [len(group) for group in batch.groups(seed_of(4), samples, small)] == lengths


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 2)), min_size=1, max_size=8), st.integers(4, 9))
def test_groups_hold_every_sample_once_and_fit_together(sizes: list[tuple[int, int]], most: int) -> None:
    samples = [sample(*size) for size in sizes]
    groups = batch.groups(seed_of(most), samples, small=0)
    assert sorted(index for group in groups for index in group) == list(range(len(samples)))
    for group in groups:
        assert len({samples[i]["x"].shape[1] for i in group}) == 1
        assert len(group) == 1 or 0 < sum(sizes[i][0] for i in group) <= most
        whole = batch.joined([samples[i] for i in group])
        parts = batch.split(Answer(leaves=dict(whole)), [sizes[i][0] for i in group])
        assert parts is not None
        for part, i in zip(parts, group, strict=True):
            assert part.leaves is not None
            assert all(torch.equal(part.leaves[name], samples[i][name]) for name in ("x", "y"))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(leaves={"$": torch.ones(3)}),
        Answer(leaves={"$": torch.tensor(1.0)}),
        Answer(leaves={"$": 1.0}),
        Answer(leaves={"$": torch.ones(4)}, changed=["input x"]),
        Answer(),
    ],
)
def test_an_answer_that_does_not_come_apart_is_none(answer: Answer) -> None:
    assert batch.split(answer, [1, 3]) is None


def test_an_independent_dimension_is_the_first_of_every_input() -> None:
    raw = seed_of(4).model_dump(mode="json") | {"independent": "w"}
    with pytest.raises(ValueError, match="'w' has to be the first dimension of every input"):
        Seed.model_validate_json(json.dumps(raw))


@pytest.mark.slow
def test_a_hit_in_a_batch_is_run_alone_and_stored(tmp_path: Path, cache: Path) -> None:
    seeds = seed_folder(
        tmp_path / "seeds", {"nan": "drops-nan"}, extra="dims: {n: {size: 2, max: 16}}\nindependent: n\n"
    )
    (seeds / "nan.yaml").write_text((seeds / "nan.yaml").read_text().replace("shape: [2, 4]", "shape: [n, 4]"))
    done = xbfuzz(
        *("run", "seeds", "--rng-seed", "1", "--max-execs", "44", "--out", "out", "--cache", cache, "--json"),
        cwd=tmp_path,
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    runs = [event["index"] for event in events(tmp_path / "out") if event["event"] == "run"]
    assert runs == list(range(44)), "every input once, in order, the last four without a batch"
    (nan,) = [finding for finding in said["findings"] if finding["kind"] == "nonfinite"]
    assert nan["standing"] == "stored"
    assert (nan["target"], nan["blame"]) == ("eager:cpu", "target")
    assert said["outcomes"]["mismatch"] == sum(finding["count"] for finding in said["findings"])
    assert said["outcomes"]["pass"] > 20


@pytest.mark.slow
def test_a_campaign_killed_inside_a_block_learns_from_the_same_batches_when_it_is_resumed(
    tmp_path: Path, cache: Path
) -> None:
    seeds = seed_folder(
        tmp_path / "seeds", {"rows": "counts-rows"}, extra="dims: {n: {size: 1, max: 16}}\nindependent: n\n"
    )
    (seeds / "rows.yaml").write_text((seeds / "rows.yaml").read_text().replace("shape: [2, 4]", "shape: [n, 4]"))
    arguments = ("run", "seeds", "--rng-seed", "1", "--max-execs", "40", "--cache", cache, "--json")
    whole = json.loads(xbfuzz(*arguments, "--out", "whole", cwd=tmp_path).stdout)
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    (journal,) = (tmp_path / "cut" / "runs").glob("*/events.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    last = next(i for i, line in enumerate(lines) if '"input"' in line and json.loads(line).get("index") == 11)
    journal.write_text("".join(lines[: last + 1]))
    again = json.loads(xbfuzz(*arguments, "--out", "cut", "--resume", cwd=tmp_path).stdout)
    assert (again["inputs"], again["executions"]) == (40, 40)
    assert again["digest"] == whole["digest"]
    told, retold = ([e for e in events(tmp_path / out) if e["event"] == "input"] for out in ("whole", "cut"))
    assert retold == told, "features too, which a batch of eight does not share with one input alone"


@pytest.mark.slow
def test_a_model_that_takes_no_more_than_the_dimensions_maximum_is_batched_within_it(
    tmp_path: Path, cache: Path
) -> None:
    seeds = seed_folder(
        tmp_path / "seeds", {"rows": "few-rows"}, extra="dims: {n: {size: 1, max: 4}}\nindependent: n\n"
    )
    (seeds / "rows.yaml").write_text((seeds / "rows.yaml").read_text().replace("shape: [2, 4]", "shape: [n, 4]"))
    done = xbfuzz(
        *("run", "seeds", "--search", "seeds", "--max-execs", "16", "--out", "out", "--cache", cache, "--json"),
        cwd=tmp_path,
    )
    assert done.stdout, done.stderr
    assert json.loads(done.stdout)["outcomes"] == {"pass": 16}
    largest = max(int(path.read_text()) for path in (seeds).glob("rows-*"))
    assert largest == 4, "not one by one"
