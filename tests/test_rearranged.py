"""Boxes behind one that is kept or not stand at other places: no wrong value, but a wrong score among them is one."""

from __future__ import annotations

import torch

from fuzzer.seeds import Seed
from fuzzer.trees import Leaves
from fuzzer.verify.examine import verdict_of
from fuzzer.verify.judge import OracleAnswer
from fuzzer.verify.rearranged import excuse_rearranged
from fuzzer.verify.verdict import Blame, Difference, Kind, Verdict

PATHS = [[".boxes", ".scores", ".labels"]]
#: Six boxes far from each other, the best first; a detector keeps four.
CORNERS = torch.tensor([[20.0 * k, 10.0, 20.0 * k + 9, 30.0 + k] for k in range(6)])
SCORES = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5, 0.4])
LABELS = torch.tensor([1, 2, 0, 1, 2, 0])


def kept(*which: int) -> Leaves:
    at = torch.tensor(which, dtype=torch.int64)
    return {".boxes": CORNERS[at], ".scores": SCORES[at], ".labels": LABELS[at]}


def changed(leaves: Leaves, path: str, value: float, *index: int) -> Leaves:
    leaf = leaves[path]
    assert isinstance(leaf, torch.Tensor)
    copy = leaf.clone()
    copy[index] = value
    return {**leaves, path: copy}


PLAIN = kept(0, 1, 2, 3)
#: Some run suppresses the second box, and the fifth comes in.
WITHOUT_SECOND = kept(0, 2, 3, 4)


def verdict(target: Leaves, *draws: Leaves) -> Verdict:
    seed = Seed.model_validate(
        {
            "name": "boxes",
            "task": {"kind": "detection", "outputs": {"boxes": ".boxes", "scores": ".scores", "labels": ".labels"}},
            "model": {"source": "builder", "path": ".", "builder": "none:none"},
            "inputs": {"x": {"kind": "floats", "shape": [1], "range": [0, 1]}},
            "backends": ["eager:cpu"],
        }
    )
    oracle = OracleAnswer(PLAIN, PLAIN, list(draws))
    return verdict_of(seed, PLAIN, target, lambda decide: oracle, vacuity=None)[0]


def excused(target: Leaves, *draws: Leaves) -> bool:
    found = excuse_rearranged(
        [Difference(path, Kind.VALUE, "", blame=Blame.TARGET) for path in PATHS[0]],
        PATHS,
        target,
        [OracleAnswer(PLAIN, None, list(draws))],
        5.0,
    )
    return all(difference.near_tie and difference.blame is Blame.NEITHER for difference in found)


def test_all_that_follows_a_box_which_hangs_on_a_near_tie_is_one() -> None:
    found = verdict(WITHOUT_SECOND, WITHOUT_SECOND, PLAIN)
    assert found.differences
    assert all(difference.near_tie for difference in found.differences)
    assert found.blame is Blame.NEITHER


def test_where_no_run_lets_go_of_a_box_its_loss_is_the_targets() -> None:
    assert verdict(WITHOUT_SECOND, PLAIN, PLAIN).blame is Blame.TARGET


def test_a_wrong_score_or_class_among_boxes_at_other_places_is_not_excused() -> None:
    assert excused(WITHOUT_SECOND, WITHOUT_SECOND)
    assert not excused(changed(WITHOUT_SECOND, ".scores", 0.69, 1), WITHOUT_SECOND)
    assert not excused(changed(WITHOUT_SECOND, ".labels", 2, 1), WITHOUT_SECOND)
    assert not excused(changed(WITHOUT_SECOND, ".boxes", 41.0, 1, 0), WITHOUT_SECOND)


def test_boxes_out_of_order_are_not_excused() -> None:
    assert not excused(kept(0, 3, 2, 4), WITHOUT_SECOND)


def test_what_nobody_has_seen_may_come_in_at_the_cut_of_the_list_and_nowhere_else() -> None:
    third = kept(0, 1, 3, 4)  # a run without the third box
    assert excused(kept(0, 3, 4, 5), third)  # two are gone, and the sixth box comes in, which no run shows
    assert not excused(kept(0, 3, 5), third)  # a list that is shorter is not cut
    assert not excused(changed(kept(0, 3, 4, 5), ".scores", 0.65, 3), third)  # a stranger with a score too good


def test_a_run_that_keeps_no_box_at_all_tells_nothing() -> None:
    nothing = kept()
    assert excused(WITHOUT_SECOND, nothing, WITHOUT_SECOND)
    assert not excused(changed(WITHOUT_SECOND, ".scores", 0.69, 1), nothing)
    assert not excused(nothing, nothing)


def test_one_box_twice_is_not_two_boxes() -> None:
    assert not excused(kept(0, 0, 2, 3), PLAIN, WITHOUT_SECOND)


def test_what_is_not_a_matter_of_places_stays_as_it_is() -> None:
    dtype = Difference(".scores", Kind.DTYPE, "", blame=Blame.TARGET)
    found = excuse_rearranged([dtype], PATHS, WITHOUT_SECOND, [OracleAnswer(PLAIN, None, [WITHOUT_SECOND])], 5.0)
    assert found == [dtype]
