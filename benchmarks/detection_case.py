"""Does a stable sort before NMS restore agreement of detections? `python -m benchmarks.detection_case [--json]`.

The shipped seed `postprocess` on inputs of six kinds, several of each, on ONNX Runtime and Inductor: how many disagree
with eager mode, tensors and task, as they are, with a fixed order before NMS on both sides, and with NMS in eager mode.
With `--out` the first input of each kind that disagrees is drawn, before and after, as a PNG.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from benchmarks.controls import machine, versions
from benchmarks.local_rerun import LocalReruns
from fuzzer.backends.adapted import Adaptation
from fuzzer.diagnose.rerun import NOTHING, CannotRerun, Change
from fuzzer.models import build_model
from fuzzer.seeds.load import load_seed
from fuzzer.verify.examine import Examined
from fuzzer.verify.verdict import Outcome

ROOT = Path(__file__).parent.parent
TARGETS = ("onnxruntime:cpu", "inductor:cpu")
WIDTH, OBJECTS, SIZE = 320, 9, 64
Sample = dict[str, Tensor]


def scene(number: int) -> tuple[Tensor, Tensor]:
    """Boxes (18, 4) around nine objects in a grid, two for each that overlap by about two thirds, and scores (18,)."""
    generator = torch.Generator().manual_seed(number)
    corner = torch.stack([torch.arange(OBJECTS) % 3, torch.arange(OBJECTS) // 3], 1) * 104.0 + 16
    first = corner + torch.randint(0, 8, (OBJECTS, 2), generator=generator)
    second = first + torch.randint(4, 9, (OBJECTS, 2), generator=generator)
    corners = torch.cat([first, second])
    scores = torch.rand(2 * OBJECTS, generator=generator) * 3 + 0.5
    return torch.cat([corners, corners + SIZE], 1), scores


def given(boxes: Tensor, scores: Tensor) -> Sample:
    """The seed's inputs that decode to these boxes, all of one class."""
    logits = torch.full((len(boxes), 3), -8.0)
    logits[:, 1] = scores
    logits[scores.isnan()] = torch.nan
    return {"anchors": boxes, "deltas": torch.zeros_like(boxes), "logits": logits}


def tied(number: int) -> Sample:
    boxes, scores = scene(number)
    return given(boxes, scores.round())


def near_tied(number: int) -> Sample:
    """The second box of each object scores one unit in the last place more, or less, than the first."""
    boxes, scores = scene(number)
    up = torch.randint(0, 2, (OBJECTS,), generator=torch.Generator().manual_seed(number)) * 2.0 - 1
    scores[OBJECTS:] = torch.nextafter(scores[:OBJECTS], up * torch.inf)
    return given(boxes, scores)


def nan_scores(number: int) -> Sample:
    boxes, scores = scene(number)
    scores[torch.randperm(len(scores), generator=torch.Generator().manual_seed(number))[:4]] = torch.nan
    return given(boxes, scores)


def at_threshold(number: int) -> Sample:
    """The second box of each object is one half of the first: their IoU is 1/2, the threshold of the seed."""
    boxes, scores = scene(number)
    boxes[OBJECTS:] = boxes[:OBJECTS]
    boxes[OBJECTS:, 3] -= SIZE / 2
    return given(boxes, scores)


def near_threshold(number: int) -> Sample:
    """As above, with corners that are no whole numbers: the IoU is 1/2 but for rounding."""
    sample = at_threshold(number)
    shift = torch.rand(1, generator=torch.Generator().manual_seed(number))
    return sample | {"anchors": sample["anchors"] + shift}


def swapped(number: int) -> Sample:
    """Left and right, or both pairs of corners, are swapped in half of the boxes."""
    boxes, scores = scene(number)
    boxes[::2] = boxes[::2][:, [2, 1, 0, 3] if number % 2 else [2, 3, 0, 1]]
    return given(boxes, scores)


KINDS: dict[str, Callable[[int], Sample]] = {
    "tied scores": tied,
    "near-tied scores": near_tied,
    "NaN scores": nan_scores,
    "IoU at the threshold": at_threshold,
    "IoU at the threshold, but for rounding": near_threshold,
    "swapped corners": swapped,
}
ORDERED = {"fixed order": "nms", "scores quantised too": "nms-quantised"}
AS_IT_IS, EAGER_NMS = "as it is", "NMS in eager mode"


@dataclass
class Row:
    """Of `inputs` so many whose tensors, and whose task, disagree on `target`, as it is and with each change.

    NMS in eager mode is tried on those alone that disagree, where a fixed order does not help all. `not_compared`: what
    gave no answer.
    """

    kind: str
    target: str
    inputs: int
    tensors: dict[str, int] = field(default_factory=dict)
    task: dict[str, int] = field(default_factory=dict)
    not_compared: list[str] = field(default_factory=list)


Keep = Callable[[str, str, str, Sample, Examined], None]


def measured(target: str, inputs: int, keep: Keep) -> list[Row]:
    """All kinds on one target. `keep` is told of each input, and how it does as it is or with a change."""
    seed = load_seed(ROOT / "seeds" / "postprocess.yaml")
    module = build_model(seed, None).module
    assert module is not None
    rerun = LocalReruns(seed, "eager:cpu", target, lambda: module, tied(0))
    rows = {kind: Row(kind, target, inputs) for kind in KINDS}
    left = {kind: [make(number) for number in range(inputs)] for kind, make in KINDS.items()}
    for words, change in [(AS_IT_IS, NOTHING), *((words, _ordered(order)) for words, order in ORDERED.items())]:
        for kind, row in rows.items():
            disagree = _count(rerun, row, words, lambda sample, change=change: change, left[kind], keep)  # type: ignore[misc]
            if words == AS_IT_IS:
                left[kind] = disagree
    for kind, row in rows.items():
        if left[kind] and row.tensors[next(iter(ORDERED))]:
            at = _nms(rerun, left[kind][0])
            _count(rerun, row, EAGER_NMS, lambda sample, at=at: _eager(sample, at), left[kind], keep)  # type: ignore[misc]
    return list(rows.values())


def _ordered(order: str) -> Change:
    return Change(adaptation=Adaptation(order=order), both=True)


def _eager(sample: Sample, at: tuple[int, ...]) -> Change:
    """The pieces of the graph are made for this one input: how many boxes pass between them is known only then."""
    return Change(example=sample, adaptation=Adaptation(eager=at))


def _nms(rerun: LocalReruns, sample: Sample) -> tuple[int, ...]:
    """The numbers of NMS among the operators of the captured graph."""
    rerun(sample, Change(example=sample, adaptation=Adaptation(prefix=0)))
    names = [str(name) for name in rerun.evidence.get("operators", [])]
    return tuple(i for i, name in enumerate(names) if name.startswith("torchvision.nms"))


def _count(
    rerun: LocalReruns, row: Row, words: str, change: Callable[[Sample], Change], samples: list[Sample], keep: Keep
) -> list[Sample]:
    """Counts into `row`; the samples that disagree."""
    disagree = []
    row.tensors[words], row.task[words] = 0, 0
    for sample in samples:
        try:
            examined = rerun(sample, change(sample))
        except CannotRerun as error:
            row.not_compared.append(f"{words}: {error}")
            continue
        outcome = examined.verdict.outcome
        if outcome not in (Outcome.PASS, Outcome.MISMATCH):
            row.not_compared.append(f"{words}: {'; '.join(examined.verdict.notes) or outcome}"[:300])
            continue
        row.tensors[words] += outcome is Outcome.MISMATCH
        row.task[words] += examined.verdict.tiers()["task"] not in ("pass", "not-run")
        if outcome is Outcome.MISMATCH:
            disagree.append(sample)
        keep(row.kind, row.target, words, sample, examined)
    return disagree


class Album:
    """The first input of each kind and target that disagrees, with what was found on it before and after a change."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str], Sample] = {}
        self.found: dict[tuple[str, str], dict[str, Examined]] = {}

    def keep(self, kind: str, target: str, words: str, sample: Sample, examined: Examined) -> None:
        key = (kind, target)
        if words == AS_IT_IS and key not in self.first and examined.verdict.outcome is Outcome.MISMATCH:
            self.first[key], self.found[key] = sample, {}
        if self.first.get(key) is sample:
            self.found[key][words] = examined

    def draw(self, folder: Path) -> list[Path]:
        """One PNG for each."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        paths = []
        for (kind, target), found in self.found.items():
            shown = [words for words in (AS_IT_IS, "fixed order", EAGER_NMS) if words in found]
            figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 4.8), squeeze=False)
            for axis, words in zip(axes[0], shown, strict=True):
                _panel(axis, words, found[words])
            figure.suptitle(f"{kind}: eager:cpu (blue), {target} (orange)", fontsize=11)
            figure.tight_layout()
            name = "".join(c if c.isalnum() else "-" for c in f"{kind}-{target}").lower().replace("--", "-")
            paths.append(folder / f"detection-{name}.png")
            figure.savefig(paths[-1], dpi=60)
            plt.close(figure)
        return paths


def picture() -> Any:
    """The image that the boxes lie on: one of the samples, a digit, at each of the nine places."""
    from PIL import Image

    canvas = np.full((WIDTH, WIDTH), 255, dtype=np.uint8)
    for number in range(OBJECTS):
        digit = Image.open(ROOT / "seeds" / "samples" / f"digit_{number + 1}.png").convert("L").resize((SIZE, SIZE))
        x, y = number % 3 * 104 + 20, number // 3 * 104 + 20
        canvas[y : y + SIZE, x : x + SIZE] = 255 - np.asarray(digit) // 2
    return canvas


def _panel(axis: Any, words: str, examined: Examined) -> None:
    from matplotlib.patches import Rectangle

    axis.imshow(picture(), cmap="gray", vmin=0, vmax=255)
    counts = []
    for answer, colour, wide in ((examined.reference, "tab:blue", 4), (examined.target, "tab:orange", 1.5)):
        boxes = (answer.leaves or {}).get(".boxes")
        rows = boxes.tolist() if isinstance(boxes, Tensor) else []
        counts.append(str(len(rows)) if isinstance(boxes, Tensor) else answer.error[:30] or "-")
        for x1, y1, x2, y2 in rows:
            axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=wide))
    axis.set_title(f"{words}: {counts[0]} and {counts[1]} boxes\n{examined.verdict.outcome}", fontsize=10)
    axis.set_axis_off()


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--inputs", default=10, show_default=True, help="Of each kind.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Draw here what disagrees.")
def main(as_json: bool, inputs: int, out: Path | None) -> None:
    """Test whether a fixed order before NMS restores agreement."""
    torch.set_num_threads(1)
    album, started = Album(), time.perf_counter()
    rows = [row for target in TARGETS for row in measured(target, inputs, album.keep)]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for path in album.draw(out):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        about = {"machine": machine(), "versions": versions(), "seconds": round(time.perf_counter() - started, 1)}
        click.echo(json.dumps({"rows": [asdict(row) for row in rows], **about}, indent=1))
        return
    for row in rows:
        words = "; ".join(f"{name} {row.tensors[name]} (task {row.task[name]})" for name in row.tensors)
        click.echo(f"{row.kind}, {row.target}, {row.inputs} inputs, disagree: {words}")
        for note in row.not_compared:
            click.echo(f"  not compared, {note}")


if __name__ == "__main__":
    main()
