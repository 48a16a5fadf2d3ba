"""Tier 3: what a difference means for the task."""

from __future__ import annotations

import dataclasses
import importlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou, nms

from fuzzer.crashes.severity import severity
from fuzzer.crashes.signature import CLASS_OF_KIND
from fuzzer.diagnose import provisional
from fuzzer.diagnose.label import suspected
from fuzzer.diagnose.primary import GRAVITY, primary
from fuzzer.errors import InputError, XbfuzzError
from fuzzer.seeds import Task
from fuzzer.trees import Leaves
from fuzzer.verify.judge import OracleAnswer
from fuzzer.verify.tasks import (
    evaluate,
    find_task,
    over_set,
    plainly_alike,
    register,
    task_difference,
    task_names,
    tier3,
)
from fuzzer.verify.tasks.embedding import cosine_distance
from fuzzer.verify.tasks.regression import spread
from fuzzer.verify.tasks.segmentation import class_overlap
from fuzzer.verify.verdict import Blame, Difference, Kind, LeafStats, Outcome, TaskVerdict, Verdict, sentence_of

KINDS = ["classification", "detection", "segmentation", "embedding", "tokens", "regression"]


def task(kind: str, **outputs: str) -> Task:
    return Task.model_validate({"kind": kind, "outputs": outputs})


def lone(*rows: list[float]) -> Leaves:
    return {"$": torch.tensor(rows)}


def boxes(rows: list[list[float]], scores: list[float], labels: list[int], head: str = "") -> Leaves:
    return {
        f"{head}.boxes": torch.tensor(rows).reshape(-1, 4),
        f"{head}.scores": torch.tensor(scores),
        f"{head}.labels": torch.tensor(labels, dtype=torch.int64),
    }


THREE = boxes([[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 70]], [0.9, 0.8, 0.7], [1, 2, 1])


def keep(leaves: Leaves, *rows: int) -> Leaves:
    return {path: leaf[list(rows)] for path, leaf in leaves.items() if isinstance(leaf, Tensor)}


# ---- classification


def test_a_flipped_top1_fails_with_both_margins() -> None:
    reference, target = lone([1.0, 3.0, 2.5], [9.0, 0.0, 0.0]), lone([1.0, 3.0, 3.25], [9.0, 0.0, 0.0])
    found = evaluate(task("classification"), reference, target)
    assert (found.status, found.near_tie, found.blame, found.leaf) == ("fail", False, Blame.UNKNOWN, "$")
    assert found.elements == 2
    assert found.metrics == {
        "samples": 2,
        "top1_flips": 1,
        "near_ties": 0,
        "margin_reference": 0.5,
        "margin_target": 0.25,
        "first_flip": "[0]",
    }
    assert found.sentence.startswith("top-1 flips on 1 of 2 samples")


@pytest.mark.parametrize(
    ("truth", "blame"),
    [([1.0, 3.0, 2.9], Blame.TARGET), ([1.0, 3.0, 3.1], Blame.REFERENCE), ([5.0, 3.0, 3.1], Blame.BOTH)],
)
def test_the_side_that_decides_unlike_float64_is_to_blame(truth: list[float], blame: Blame) -> None:
    found = evaluate(
        task("classification"),
        lone([1.0, 3.0, 2.5]),
        lone([1.0, 3.0, 3.25]),
        truth={"$": torch.tensor([truth], dtype=torch.float64)},
    )
    assert found.blame is blame


def test_a_sample_on_which_both_sides_err_alike_blames_nobody_for_it() -> None:
    reference, target = lone([1.0, 2.0], [1.0, 2.0]), lone([1.0, 2.0], [3.0, 2.0])
    found = evaluate(task("classification"), reference, target, truth=lone([2.0, 1.0], [1.0, 2.0]))
    assert found.blame is Blame.TARGET  # on the first sample float64 contradicts both


def _draws(plain: Tensor, step: float) -> list[Leaves]:
    """Perturbed runs that move every score by `step`, each second class the other way."""
    signs = torch.ones_like(plain)
    signs[..., ::2] = -1
    return [{"$": plain + step * signs}, {"$": plain - step * signs}]


@pytest.mark.parametrize(("step", "near"), [(0.01, False), (0.2, True)])
def test_a_flip_is_a_near_tie_where_its_margin_is_within_five_floors(step: float, near: bool) -> None:
    reference, target = torch.tensor([[1.0, 3.0, 2.75]]), torch.tensor([[1.0, 2.75, 3.0]])
    found = evaluate(
        task("classification"),
        {"$": reference},
        {"$": target},
        truth={"$": reference.double()},
        decide_draws=lambda: _draws(reference, step),
    )
    # The two scores move by `step` against each other: the margin by 2 steps, at an amplitude of five places.
    assert found.metrics["margin_floors"] == pytest.approx(0.25 / (2 * step / 5), rel=1e-4)
    assert (found.near_tie, found.blame) == (near, Blame.NEITHER if near else Blame.TARGET)
    assert found.state == ("near-tie" if near else "fail")


def test_a_target_that_is_far_off_is_no_near_tie_though_the_reference_hangs_on_one() -> None:
    reference, target = torch.tensor([[1.0, 3.0, 2.99]]), torch.tensor([[1.0, 3.0, 8.0]])
    found = evaluate(
        task("classification"), {"$": reference}, {"$": target}, decide_draws=lambda: _draws(reference, 0.1)
    )
    assert not found.near_tie


def test_a_lucky_pair_of_scores_that_perturbed_runs_do_not_move_has_the_noise_of_all_others() -> None:
    reference, target = torch.tensor([[3.0, 2.999, 0.0, 1.0, 2.0]]), torch.tensor([[2.999, 3.0, 0.0, 1.0, 2.0]])
    draw = reference + torch.tensor([[0.0, 0.0, 0.01, 0.01, 0.01]])
    found = evaluate(task("classification"), {"$": reference}, {"$": target}, decide_draws=lambda: [{"$": draw}])
    assert found.metrics["margin_floors"] == pytest.approx(0.001 / (0.01 / 5), rel=1e-2)
    assert found.near_tie


def test_draws_are_asked_for_only_where_the_task_fails() -> None:
    def ask() -> list[Leaves]:
        raise AssertionError("asked")

    assert evaluate(task("classification"), lone([1.0, 2.0]), lone([1.5, 2.0]), decide_draws=ask).status == "pass"


def test_top5_tells_a_changed_set_from_a_changed_order() -> None:
    row = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    other_order, other_set = [9.0, 7.0, 8.0, 6.0, 5.0, 4.0, 3.0], [9.0, 8.0, 7.0, 6.0, 3.5, 4.0, 3.0]
    found = evaluate(task("classification"), lone(row, row, row), lone(row, other_order, other_set))
    assert found.status == "pass"
    assert (found.metrics["top5_order_changes"], found.metrics["top5_set_changes"]) == (1, 1)


def test_nan_on_one_side_only_fails_and_on_both_sides_decides_nothing() -> None:
    clean, nan = lone([1.0, 2.0]), lone([math.nan, 2.0])
    assert evaluate(task("classification"), clean, nan).status == "fail"
    assert evaluate(task("classification"), nan, clean).status == "fail"
    assert evaluate(task("classification"), nan, nan).status == "not-run"
    both = evaluate(task("classification"), lone([1.0, 2.0], [math.nan, 0.0]), lone([1.0, 2.0], [math.nan, 5.0]))
    assert (both.status, both.elements) == ("pass", 1)


def test_class_indices_are_near_ties_where_perturbed_runs_choose_otherwise_too() -> None:
    r, t = {"$": torch.tensor([3, 1])}, {"$": torch.tensor([3, 2])}
    still, moved = {"$": torch.tensor([4, 1])}, {"$": torch.tensor([3, 7])}
    assert not evaluate(task("classification"), r, t, decide_draws=lambda: [still]).near_tie
    assert evaluate(task("classification"), r, t, decide_draws=lambda: [still, moved]).near_tie


@given(st.lists(st.lists(st.integers(-50, 50), min_size=3, max_size=3), min_size=1), st.integers(-100, 100))
def test_moving_all_logits_by_a_constant_changes_no_class(rows: list[list[int]], by: int) -> None:
    logits = torch.tensor(rows, dtype=torch.float32)  # whole numbers, so that the sums are exact
    for kind in ("classification", "tokens"):
        assert evaluate(task(kind), {"$": logits}, {"$": logits + by}).status == "pass"


# ---- detection


def test_boxes_are_sets() -> None:
    found = evaluate(task("detection"), THREE, keep(THREE, 2, 0, 1))
    assert (found.status, found.metrics["matched"], found.metrics["mean_iou"]) == ("pass", 3, 1.0)


def test_a_dropped_box_is_missing_and_an_added_one_extra() -> None:
    dropped = evaluate(task("detection"), THREE, keep(THREE, 0, 2))
    added = evaluate(task("detection"), keep(THREE, 0, 2), THREE)
    assert [(f.status, f.metrics["missing"], f.metrics["extra"]) for f in (dropped, added)] == [
        ("fail", 1, 0),
        ("fail", 0, 1),
    ]
    assert dropped.metrics["f1"] == pytest.approx(2 * 2 / (3 + 2))


def test_boxes_in_dispute_are_kept_for_a_drawing_with_what_float64_sees() -> None:
    found = evaluate(task("detection"), THREE, keep(THREE, 0, 2), truth=keep(THREE, 0, 2))
    (image,) = found.boxes
    assert image["reference"][0] == [20, 20, 40, 40, pytest.approx(0.8), 2, 0], "the one that stands alone comes first"
    assert [row[6] for row in image["reference"]] == [0, 1, 1]
    assert (
        [row[:4] for row in image["target"]]
        == [[0, 0, 10, 10], [50, 50, 60, 70]]
        == [row[:4] for row in image["float64"]]
    )
    assert evaluate(task("detection"), THREE, THREE).boxes == [], "where all agree there is nothing to draw"


def test_errors_of_matched_boxes_are_measured() -> None:
    target = boxes([[0, 0, 10, 10], [20, 20, 40, 36], [50, 50, 60, 70]], [0.9, 0.75, 0.7], [1, 2, 1])
    found = evaluate(task("detection"), THREE, target)
    assert found.status == "pass"
    assert found.metrics["box_error_px"] == 4.0
    assert found.metrics["score_error"] == pytest.approx(0.05)
    assert found.metrics["mean_iou"] == pytest.approx((1 + 0.8 + 1) / 3)


def test_a_box_of_another_class_is_missing_extra_and_called_relabelled() -> None:
    target = {**THREE, ".labels": torch.tensor([1, 1, 1])}
    found = evaluate(task("detection"), THREE, target)
    assert [found.metrics[name] for name in ("missing", "extra", "relabelled")] == [1, 1, 1]


def test_a_box_that_moved_by_half_its_width_is_another_box() -> None:
    reference, target = boxes([[0, 0, 10, 10]], [0.9], [1]), boxes([[5, 0, 15, 10]], [0.9], [1])
    assert float(box_iou(torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[5.0, 0, 15, 10]]))) == pytest.approx(1 / 3)
    assert evaluate(task("detection"), reference, target).status == "fail"


def test_equal_boxes_are_told_apart_by_their_scores() -> None:
    twins = boxes([[0, 0, 10, 10], [0, 0, 10, 10]], [0.9, 0.3], [1, 1])
    assert evaluate(task("detection"), twins, keep(twins, 1, 0)).metrics["score_error"] == 0.0


def test_a_box_without_area_is_the_same_box_one_ulp_away_and_another_one_pixel_away() -> None:
    flat = boxes([[5, 5, 5, 90]], [0.9], [1])
    edge = torch.nextafter(torch.tensor(5.0), torch.tensor(6.0)).item()
    assert evaluate(task("detection"), flat, boxes([[edge, 5, edge, 90]], [0.9], [1])).status == "pass"
    assert evaluate(task("detection"), flat, boxes([[6, 5, 6, 90]], [0.9], [1])).status == "fail"


def test_boxes_that_perturbed_runs_lose_too_are_near_ties() -> None:
    def judged(target: Leaves, *draws: Leaves) -> TaskVerdict:
        return evaluate(task("detection"), THREE, target, truth=THREE, plain=THREE, decide_draws=lambda: list(draws))

    assert judged(keep(THREE, 0, 1), keep(THREE, 0, 1), THREE).near_tie  # the same box
    assert judged(keep(THREE, 0, 1), keep(THREE, 1, 2)).near_tie  # another, of a higher score
    wrong = judged(keep(THREE, 1, 2), keep(THREE, 0, 1))  # the best box, while runs lose only the worst
    assert (wrong.near_tie, wrong.blame) == (False, Blame.TARGET)
    assert not judged(keep(THREE, 1), keep(THREE, 1, 2)).near_tie  # two, while runs lose one
    assert not judged(keep(THREE, 0, 1), THREE).near_tie


def test_the_side_that_detects_what_float64_does_is_right() -> None:
    two = keep(THREE, 0, 1)
    blames = {
        "target": evaluate(task("detection"), THREE, two, truth=THREE).blame,
        "reference": evaluate(task("detection"), THREE, two, truth=two).blame,
        "both": evaluate(task("detection"), two, keep(THREE, 0, 2), truth=THREE).blame,
    }
    assert blames == {"target": Blame.TARGET, "reference": Blame.REFERENCE, "both": Blame.BOTH}


def test_a_duplicate_of_a_true_box_is_the_fault_of_the_side_that_keeps_it() -> None:
    found = evaluate(task("detection"), THREE, keep(THREE, 0, 1, 1, 2), truth=THREE)
    assert (found.metrics["extra"], found.blame) == (1, Blame.TARGET)


def test_all_images_of_a_list_are_compared_though_the_seed_names_the_first() -> None:
    both = {**keep(THREE), **boxes([[0, 0, 9, 9]], [0.5], [1], "[0]"), **boxes([[0, 0, 9, 9]], [0.5], [1], "[1]")}
    both = {path: leaf for path, leaf in both.items() if path.startswith("[")}
    named = task("detection", boxes="[0].boxes", scores="[0].scores", labels="[0].labels")
    worse = {**both, **boxes([], [], [], "[1]")}
    for asked in (named, task("detection")):
        assert evaluate(asked, both, both).metrics["images"] == 2
        assert evaluate(asked, both, worse).metrics["missing"] == 1


def test_a_batch_of_boxes_is_several_images_and_no_box_at_all_is_no_pass() -> None:
    batch = {".boxes": torch.rand(2, 5, 4).cumsum(-1), ".scores": torch.rand(2, 5)}
    assert evaluate(task("detection"), batch, batch).metrics["images"] == 2
    none = boxes([], [], [])
    assert evaluate(task("detection"), none, none).status == "not-run"


@st.composite
def scenes(draw: st.DrawFn) -> Leaves:
    """Boxes that survive non-maximum suppression, so that each overlaps another by less than a half."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    n = draw(st.integers(1, 12))
    corners = torch.rand(n, 2, generator=generator) * 100
    found = torch.cat([corners, corners + 5 + torch.rand(n, 2, generator=generator) * 30], 1)
    scores = torch.rand(n, generator=generator)
    kept = nms(found, scores, 0.45)
    labels = torch.randint(0, 3, (len(kept),), generator=generator)
    return {".boxes": found[kept], ".scores": scores[kept], ".labels": labels}


@settings(deadline=None)
@given(scenes(), st.randoms(use_true_random=False))
def test_any_order_of_any_boxes_passes_and_each_box_dropped_fails(scene: Leaves, random: object) -> None:
    order = list(range(len(scene[".scores"])))  # type: ignore[arg-type]
    random.shuffle(order)  # type: ignore[attr-defined]
    assert evaluate(task("detection"), scene, keep(scene, *order)).status == "pass"
    found = evaluate(task("detection"), scene, keep(scene, *order[1:]))
    assert (found.status, found.metrics["missing"], found.metrics["extra"]) == ("fail", 1, 0)


# ---- segmentation, tokens


def test_flipped_pixels_and_the_overlap_of_each_class() -> None:
    reference, target = torch.tensor([[[0, 0], [1, 1]]]), torch.tensor([[[0, 1], [1, 1]]])
    found = evaluate(task("segmentation"), {"$": reference}, {"$": target})
    assert (found.status, found.metrics["flipped"], found.elements) == ("fail", 1, 4)
    assert found.metrics["iou.0"] == pytest.approx(1 / 2)
    assert found.metrics["iou.1"] == pytest.approx(2 / 3)
    assert found.metrics["mean_iou"] == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_a_segmentation_whose_flips_are_all_near_ties_passes_as_one() -> None:
    logits = torch.zeros(1, 2, 4, 4)
    logits[:, 0] = 1.0
    logits[0, :, 0, 0] = torch.tensor([1.0, 1.0 - 1e-6])
    target = logits.clone()
    target[0, :, 0, 0] = torch.tensor([1.0 - 1e-6, 1.0])
    draws = [
        {".out": logits + 1e-6 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(k))} for k in (1, 2)
    ]
    found = evaluate(task("segmentation"), {".out": logits}, {".out": target}, decide_draws=lambda: draws)
    assert (found.status, found.state, found.metrics["near_ties"]) == ("pass", "near-tie", 1)
    target[0, :, 3, 3] = torch.tensor([0.0, 1.0])
    found = evaluate(task("segmentation"), {".out": logits}, {".out": target}, decide_draws=lambda: draws)
    assert (found.status, found.state, found.metrics["near_ties"], found.metrics["flipped"]) == ("fail", "fail", 1, 2)


def test_the_first_divergent_position_leaves_out_what_is_masked() -> None:
    reference, target = {"$": torch.tensor([[5, 6, 7, 8]])}, {"$": torch.tensor([[9, 6, 7, 0]])}
    found = evaluate(task("tokens"), reference, target)
    assert (found.metrics["first_divergence"], found.metrics["agreement"]) == (0, 0.5)
    masked = task("tokens", tokens="$", mask=".mask")
    mask = torch.tensor([[0, 1, 1, 1]])
    found = evaluate(masked, {**reference, ".mask": mask}, {**target, ".mask": mask})
    assert (found.metrics["first_divergence"], found.elements) == (3, 3)


# ---- embedding, regression


def test_a_vector_fails_by_its_angle_whatever_its_scale() -> None:
    for scale in (1e-30, 1.0, 1e30):
        for angle, status in ((0.01, "pass"), (0.02, "fail")):  # 1 − cos is angle²/2: 5e-5 and 2e-4
            turned = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64) * scale
            found = evaluate(task("embedding"), lone([scale, 0.0]), {"$": turned.float()})
            assert found.status == status, (scale, angle)
            assert 1 - found.metrics["least_cosine"] == pytest.approx(angle**2 / 2, rel=1e-3)  # type: ignore[operator]


def test_scaling_a_vector_shows_in_its_norm_only() -> None:
    found = evaluate(task("embedding"), lone([3.0, 4.0]), lone([6.0, 8.0]))
    assert (found.status, found.metrics["norm_error"]) == ("pass", 1.0)


def test_an_embedding_is_blamed_and_excused_by_its_angle() -> None:
    straight, turned = lone([1.0, 0.0]), lone([1.0, 0.1])
    assert evaluate(task("embedding"), straight, turned, truth=straight).blame is Blame.TARGET
    assert evaluate(task("embedding"), straight, turned, truth=turned).blame is Blame.REFERENCE
    noisy = evaluate(task("embedding"), straight, turned, truth=straight, decide_draws=lambda: [lone([1.0, -0.2])])
    assert (noisy.near_tie, noisy.blame) == (True, Blame.NEITHER)


def test_rows_without_direction_are_left_out_or_fail() -> None:
    apart = cosine_distance(
        torch.tensor([[0.0, 0.0], [0.0, 0.0], [math.nan, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    )
    assert apart[0].isnan()
    assert apart[1:].tolist() == [1.0, 1.0]
    assert evaluate(task("embedding"), lone([0.0, 0.0]), lone([0.0, 0.0])).status == "not-run"


@given(st.lists(st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4), min_size=2, max_size=2))
def test_the_distance_of_directions_is_one_minus_the_cosine(rows: list[list[float]]) -> None:
    a, b = (torch.tensor([row], dtype=torch.float64) for row in rows)
    if float(a.norm()) > 1e-3 and float(b.norm()) > 1e-3:
        expected = 1 - float(torch.nn.functional.cosine_similarity(a, b))
        assert float(cosine_distance(a, b)) == pytest.approx(expected, abs=1e-12)


def test_numbers_are_off_in_units_of_their_spread() -> None:
    reference = [0.0, 100.0, 200.0, 300.0]
    deviation = math.sqrt((150**2 + 50**2 + 50**2 + 150**2) / 4)
    assert spread(torch.tensor(reference, dtype=torch.float64)) == pytest.approx(deviation)
    for by, status in ((0.1, "pass"), (0.2, "fail")):  # a thousandth of the spread is 0.112
        found = evaluate(task("regression"), lone(reference), lone([*reference[:3], 300.0 + by]))
        assert found.status == status
        assert found.metrics["max_error_of_spread"] == pytest.approx(by / deviation, rel=1e-3)


def test_a_lone_number_is_measured_by_its_own_size_and_zeros_by_nothing() -> None:
    assert evaluate(task("regression"), {"$": 3.0 * torch.ones(())}, {"$": 3.1 * torch.ones(())}).status == "fail"
    assert evaluate(task("regression"), lone([0.0, 0.0]), lone([0.0, 0.0])).status == "not-run"
    assert evaluate(task("regression"), lone([0.0, 0.0]), lone([0.0, 1.0])).status == "fail"
    assert evaluate(task("regression"), lone([1.0, math.inf]), lone([1.0, -math.inf])).status == "fail"


# ---- all tasks


def test_an_answer_that_cannot_be_found_is_not_run_and_says_why() -> None:
    two = {"[0]": torch.rand(2, 3), "[1]": torch.rand(2, 3)}
    for kind in KINDS:
        assert evaluate(task(kind), two, two).status == "not-run"
        assert evaluate(task(kind), {}, {}).status == "not-run"
    assert "[0], [1]" in evaluate(task("classification"), two, two).sentence
    assert "[7]" in evaluate(task("classification", logits="[7]"), two, two).sentence
    assert "logits" in evaluate(task("classification", logit="[0]"), two, two).sentence
    assert evaluate(task("classification", logits="[1]"), two, two).status == "pass"
    assert evaluate(task("tensors"), two, two).status == "not-run"


def test_an_answer_on_one_side_or_in_another_shape_fails_and_truth_says_whose_fault_it_is() -> None:
    rows = {"$": torch.rand(2, 3)}
    for other in ({}, {"$": torch.rand(3, 3)}, {"$": torch.rand(2, 4)}):
        assert evaluate(task("classification"), rows, other).blame is Blame.UNKNOWN
        found = evaluate(task("classification"), rows, other, truth=rows)
        assert (found.status, found.blame) == ("fail", Blame.TARGET)
        assert evaluate(task("classification"), other, rows, truth=rows).blame is Blame.REFERENCE


def test_class_indices_where_scores_were_is_another_shape_even_of_as_many_numbers() -> None:
    scores, indices = {"$": torch.rand(2, 4)}, {"$": torch.zeros(2, 4, dtype=torch.int64)}
    for first, second in ((scores, indices), (indices, scores)):
        found = evaluate(task("classification"), first, second, truth=first)
        assert (found.status, found.blame) == ("fail", Blame.TARGET)
        assert "in shape" in found.sentence


ODD = [0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, math.inf, -math.inf, math.nan]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]


@st.composite
def odd_tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 4, 6]), max_size=4))
    size = math.prod(shape)
    numbers = draw(st.lists(st.sampled_from(ODD), min_size=size, max_size=size)) if size <= 64 else [1.0] * size
    tensor = torch.tensor(numbers, dtype=torch.float64).reshape(shape)
    dtype = draw(st.sampled_from(DTYPES))
    return tensor.to(dtype) if dtype.is_floating_point or dtype.is_complex else tensor.nan_to_num(0, 5, -5).to(dtype)


PATHS = ["$", ".boxes", ".scores", ".labels", ".out", "[0].boxes", "[0].scores", ".mask"]
odd_leaves = st.dictionaries(st.sampled_from(PATHS), st.one_of(odd_tensors(), st.none(), st.just("text")), max_size=4)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KINDS), odd_leaves, odd_leaves, st.lists(odd_leaves, max_size=2))
def test_odd_leaves_never_raise(kind: str, reference: Leaves, target: Leaves, draws: list[Leaves]) -> None:
    found = evaluate(task(kind), reference, target, truth=target, plain=reference, decide_draws=lambda: draws)
    assert "itself failed" not in found.sentence
    assert found.elements > 0 or found.status == "not-run"
    if found.status == "pass" and not found.near_tie:
        assert found.blame is Blame.NEITHER


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(KINDS), odd_tensors(), odd_tensors())
def test_odd_tensors_of_one_shape_never_raise_and_agree_with_themselves(kind: str, a: Tensor, b: Tensor) -> None:
    sides = {"classification": "$", "segmentation": "$", "embedding": "$", "tokens": "$", "regression": "$"}
    first, second = (
        {sides.get(kind, ".boxes"): x, ".scores": x.reshape(-1)[: x.numel() // 4]}
        for x in (a, a.flip(0) if a.dim() else b)
    )
    named = task("detection", boxes=".boxes", scores=".scores") if kind == "detection" else task(kind, **_name(kind))
    for leaves in (first, second):
        assert evaluate(named, leaves, leaves).status in ("pass", "not-run")
    found = evaluate(named, first, second, truth=first, decide_draws=lambda: [second, first])
    assert "itself failed" not in found.sentence


def _name(kind: str) -> dict[str, str]:
    return {{"embedding": "embedding", "tokens": "tokens", "regression": "values"}.get(kind, "labels"): "$"}


# ---- the oracle, the verdict and its words


def test_tier3_asks_the_oracle_only_where_the_task_fails_and_for_what_it_lacks() -> None:
    asked: list[bool] = []
    r, t = lone([1.0, 2.0]), lone([2.0, 1.0])

    def ask(decide: bool) -> OracleAnswer:
        asked.append(decide)
        return OracleAnswer(plain=r, truth=None if decide else r, draws=[r])

    assert tier3(task("classification"), r, r, None, ask).status == "pass"
    assert asked == []
    assert tier3(task("classification"), r, t, None, ask).blame is Blame.TARGET
    assert asked == [False, True]
    assert tier3(task("classification"), r, t, OracleAnswer(r, t, []), ask).blame is Blame.REFERENCE
    assert asked == [False, True, True]
    assert tier3(task("classification"), r, t, None, lambda decide: None).blame is Blame.UNKNOWN


NEAR = TaskVerdict("fail", "top-1 flips on 1 of 4 samples: a near-tie, margin 0.8 floors", 4, near_tie=True, leaf="$")
HELD = TaskVerdict("pass", "top-1 agrees on 4 samples", 4)


def test_tiers_can_disagree_and_the_sentence_says_so() -> None:
    difference = task_difference(NEAR)
    assert difference is not None
    stats = [LeafStats("$", 4, max_abs=1e-7)]
    broken = Verdict(Outcome.MISMATCH, informative=4, differences=[difference], stats=stats, task=NEAR)
    assert broken.tiers() == {"tensors": "pass", "activations": "not-run", "task": "near-tie"}
    assert sentence_of(broken) == f"tensors within the noise, but {NEAR.sentence}"
    drift = Difference("$", Kind.VALUE, "", blame=Blame.TARGET)
    held = Verdict(Outcome.MISMATCH, informative=4, differences=[drift], task=HELD)
    assert held.tiers("fail") == {"tensors": "fail", "activations": "fail", "task": "pass"}
    assert sentence_of(held) == "tensors differ at $, but top-1 agrees on 4 samples"
    assert (
        sentence_of(Verdict(Outcome.PASS, informative=4, task=HELD)) == "tensors agree, and top-1 agrees on 4 samples"
    )
    assert Verdict(Outcome.VACUOUS, task=HELD).tiers()["tensors"] == "vacuous"
    assert sentence_of(Verdict(Outcome.PASS, informative=1)) == "tensors agree"


def test_a_verdict_writes_its_task_down() -> None:
    written = Verdict(Outcome.PASS, informative=4, task=NEAR).to_json()["task"]
    assert (written["status"], written["state"], written["blame"], written["elements"]) == (
        "fail",
        "near-tie",
        "neither",
        4,
    )
    assert Verdict(Outcome.PASS).to_json()["task"] is None


def test_a_task_that_holds_makes_no_difference() -> None:
    assert task_difference(HELD) is None
    assert task_difference(dataclasses.replace(NEAR, status="pass")) is None


def test_every_kind_of_difference_has_a_rank_and_a_class() -> None:
    assert set(GRAVITY) == set(CLASS_OF_KIND) == set(Kind)


def test_a_broken_task_is_labelled_and_graver_than_the_rounding_that_broke_it() -> None:
    difference = task_difference(NEAR)
    assert difference is not None
    verdict = Verdict(Outcome.MISMATCH, differences=[difference], task=NEAR)
    assert primary(verdict) is difference
    assert provisional(verdict, {}, {}, {}, {}).label.name == "order/near-tie"
    assert severity(verdict, suspected("order/near-tie")) == "decision"
    wrong = dataclasses.replace(NEAR, near_tie=False, blame=Blame.TARGET)
    rounding = Difference("$", Kind.VALUE, "", blame=Blame.NEITHER)
    grave = [
        severity(Verdict(Outcome.MISMATCH, differences=[rounding], task=found), suspected("numeric/rounding"))
        for found in (None, HELD, NEAR, wrong)
    ]
    assert grave == ["minor", "minor", "decision", "wrong"]


# ---- the register, and metrics over a set


def test_tasks_are_found_by_name_and_taken_names_refused() -> None:
    assert task_names() == sorted(KINDS)
    with pytest.raises(InputError, match="did you mean 'detection'"):
        find_task("detections")
    with pytest.raises(ValueError, match="already a task"):
        register(type(find_task("detection")))


def test_accuracy_over_a_set_counts_agreement() -> None:
    pairs = [(lone([1.0, 2.0], [2.0, 1.0]), lone([1.0, 2.0], [1.0, 2.0])), (lone([5.0, 1.0]), lone([5.0, 1.0]))]
    assert over_set(task("classification"), pairs) == {"pairs": 2, "left_out": 0, "accuracy": pytest.approx(2 / 3)}
    odd = [*pairs, (lone([1.0, 2.0]), {}), (lone([1.0, 2.0]), lone([1.0, 2.0], [1.0, 2.0]))]
    assert over_set(task("classification"), odd)["left_out"] == 2


def test_average_precision_over_a_set_is_one_for_itself_and_half_for_half() -> None:
    assert over_set(task("detection"), [(THREE, THREE)])["map"] == pytest.approx(1.0)
    two = boxes([[0, 0, 10, 10], [20, 20, 40, 40]], [0.9, 0.8], [1, 2])
    # Class 1 has precision 1 at every recall, class 2 is never found.
    assert over_set(task("detection"), [(two, keep(two, 0))])["map_50"] == pytest.approx(0.5)


def test_more_than_a_hundred_boxes_are_all_counted() -> None:
    corners = torch.arange(150.0) * 10
    many = {
        ".boxes": torch.stack([corners, corners, corners + 8, corners + 8], 1),
        ".scores": torch.linspace(0.9, 0.1, 150),
    }
    assert over_set(task("detection"), [(many, many)])["mar"] == pytest.approx(1.0)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 5), min_size=6, max_size=6), st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_mean_iou_of_one_pair_is_the_same_by_hand_and_by_torchmetrics(a: list[int], b: list[int]) -> None:
    r, t = (torch.tensor(x).reshape(1, 2, 3) for x in (a, b))
    each = class_overlap(r, t)
    found = over_set(task("segmentation"), [({"$": r}, {"$": t})])
    assert found["mean_iou"] == pytest.approx(sum(each.values()) / len(each), abs=1e-6)


def test_the_other_tasks_have_metrics_over_a_set_too() -> None:
    pairs = [(lone([1.0, 0.0]), lone([1.0, 1.0])), (lone([1.0, 0.0]), lone([1.0, 0.0]))]
    assert over_set(task("embedding"), pairs)["cosine"] == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert over_set(task("regression"), pairs)["mean_absolute_error"] == pytest.approx(0.25)
    with pytest.raises(InputError, match="tensors"):
        over_set(task("tensors"), pairs)


def test_without_torchmetrics_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(XbfuzzError, match=r"pip install 'xbfuzz\[metrics\]'"):
        over_set(task("classification"), [(lone([1.0, 2.0]), lone([1.0, 2.0]))])


numbers = st.sampled_from([0.0, 1.0, 1.001, 1.1, -2.0, 1e-170, 1.1e-170, 1e300, math.inf, math.nan])
of_three = st.lists(numbers, min_size=3, max_size=3)


@given(st.sampled_from([task("classification", logits="$"), task("embedding", embedding="$")]), of_three, of_three)
def test_what_is_alike_at_a_glance_does_not_fail(of: Task, first: list[float], second: list[float]) -> None:
    sides: list[Leaves] = [{"$": torch.tensor([row], dtype=torch.float64)} for row in (first, second)]
    if plainly_alike(of, *sides):
        assert evaluate(of, *sides).status != "fail"


def test_a_small_change_is_alike_at_a_glance() -> None:
    row = torch.tensor([[1.0, 2.0, 4.0]])
    for of in (task("classification", logits="$"), task("embedding", embedding="$")):
        assert plainly_alike(of, {"$": row}, {"$": row * (1 + 1e-6)})
