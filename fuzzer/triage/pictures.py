"""What a detector found, drawn: the boxes of the reference, of the target and of float64 on the image, as SVG text.

The boxes are those that the verdict kept (`TaskVerdict.boxes`); nothing is run again. Boxes that the other side has
too are thin, those in dispute are thick and carry score and label.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image as Pixels

from fuzzer.crashes.crash import Crash
from fuzzer.triage.numbers import number

#: The sides in the order of a reader: what stands in the record, and its colour on the page.
_SIDES = {"reference": "var(--series)", "target": "var(--wrong)", "float64": "var(--ink)"}
#: No side of an image in the page has more pixels than this.
_MOST_PIXELS = 256
#: Boxes in dispute beyond this many carry no text: it would cover them.
_MOST_NAMED = 12
_MARGIN = 0.04


@dataclass(frozen=True)
class Box:
    """Corners in pixels, and whether the other side has this box too."""

    corners: tuple[float, float, float, float]
    score: float
    label: int
    shared: bool


@dataclass(frozen=True)
class Panel:
    """One side of one image: a caption, and the drawing as an `svg` element."""

    caption: str
    svg: str


def pictures(crash: Crash) -> list[list[Panel]]:
    """For each image in dispute the panels of its sides; empty where the verdict kept no boxes."""
    task = crash.verdict.get("task")
    images = task.get("boxes") if isinstance(task, Mapping) else None
    if not isinstance(images, list):
        return []
    photo, size = _photo(crash) if len(images) == 1 else ("", _extent(crash))
    found = []
    for image in images:
        if isinstance(image, Mapping):
            sides = {side: _boxes(image[side]) for side in _SIDES if isinstance(image.get(side), list)}
            lost = {side: len(image[side]) - len(boxes) for side, boxes in sides.items()}
            found.append(_panels(crash, sides, lost, photo, size or _reach(sides)))
    return [panels for panels in found if panels]


def _panels(
    crash: Crash,
    sides: Mapping[str, Sequence[Box]],
    lost: Mapping[str, int],
    photo: str,
    size: tuple[float, float] | None,
) -> list[Panel]:
    """`lost`: how many boxes of each side cannot be drawn."""
    if size is None:
        return []
    names = {"reference": crash.reference, "target": crash.target, "float64": "float64"}
    panels = []
    for side, boxes in sides.items():
        alone = sum(not box.shared for box in boxes)
        dispute = f", {alone} in dispute" if alone else ""
        caption = f"{names[side]}: {len(boxes)} box{'' if len(boxes) == 1 else 'es'}{dispute}"
        caption += f", {lost[side]} not finite" if lost[side] else ""
        panels.append(Panel(caption, _svg(boxes, photo, size, _SIDES[side], caption)))
    return panels


def _boxes(rows: Sequence[Any]) -> list[Box]:
    """The rows that can be drawn: what is no row of numbers, or not finite, is left out."""
    found = []
    for row in rows:
        values = [number(value) for value in row] if isinstance(row, list) and len(row) == 7 else [None]
        if all(value is not None and math.isfinite(value) for value in values):
            x1, y1, x2, y2, score, label, shared = (float(value or 0) for value in values)
            found.append(Box((x1, y1, x2, y2), score, int(label), bool(shared)))
    return found


def _svg(boxes: Sequence[Box], photo: str, size: tuple[float, float], colour: str, caption: str) -> str:
    wide, high = size
    unit = max(wide, high) / 100
    margin = _MARGIN * max(wide, high)
    view = f"{-margin:.5g} {-margin:.5g} {wide + 2 * margin:.5g} {high + 2 * margin:.5g}"
    parts = [f'<svg role="img" aria-label="{html.escape(caption)}" viewBox="{view}">']
    frame = f'width="{wide:.5g}" height="{high:.5g}"'
    parts.append(f'<rect {frame} fill="var(--paper)" stroke="var(--line)" stroke-width="{unit / 3:.3g}"/>')
    if photo:
        parts.append(f'<image {frame} href="{photo}" preserveAspectRatio="none" opacity="0.75"/>')
    named = sum(not box.shared for box in boxes) <= _MOST_NAMED
    for box in sorted(boxes, key=lambda box: not box.shared):  # those in dispute are drawn last, on top
        parts += _drawn(box, colour, unit, size, named=named)
    return "".join([*parts, "</svg>"])


def _drawn(box: Box, colour: str, unit: float, size: tuple[float, float], *, named: bool) -> Iterator[str]:
    left, right = sorted((box.corners[0], box.corners[2]))
    top, bottom = sorted((box.corners[1], box.corners[3]))
    far = 2 * max(size)  # a box that reaches to 1e30 is drawn to beyond the edge
    left, right, top, bottom = (min(max(value, -far), far) for value in (left, right, top, bottom))
    wide, high = max(right - left, unit / 2), max(bottom - top, unit / 2)  # one without area is a dot
    line = f'stroke-width="{unit * (0.5 if box.shared else 1.4):.3g}" stroke-opacity="{0.55 if box.shared else 1}"'
    yield (
        f'<rect x="{left:.5g}" y="{top:.5g}" width="{wide:.5g}" height="{high:.5g}" fill="{colour}" '
        f'fill-opacity="{0 if box.shared else 0.15}" stroke="{colour}" {line}/>'
    )
    if named and not box.shared:
        x, y = min(max(left, 0), size[0] - 36 * unit), min(max(top - unit, 5 * unit), size[1])
        yield (
            f'<text x="{x:.5g}" y="{y:.5g}" font-size="{4.5 * unit:.3g}" fill="{colour}" stroke="var(--paper)" '
            f'stroke-width="{unit:.3g}" paint-order="stroke">{box.score:.3g} class {box.label}</text>'
        )


def _reach(sides: Mapping[str, Sequence[Box]]) -> tuple[float, float] | None:
    """How far right and down the boxes reach; None where there is none."""
    corners = [box.corners for boxes in sides.values() for box in boxes]
    if not corners:
        return None
    return max(1.0, *(max(c[0], c[2]) for c in corners)), max(1.0, *(max(c[1], c[3]) for c in corners))


def _extent(crash: Crash) -> tuple[float, float] | None:
    """Width and height of the plane in which the seed's boxes lie, where it says so."""
    for spec in _inputs(crash, "boxes"):
        extent = spec[1].get("extent")
        if isinstance(extent, list) and len(extent) == 2:
            wide, high = (number(value) for value in extent)
            if wide and high and 0 < wide < math.inf and 0 < high < math.inf:
                return wide, high
    return None


def _photo(crash: Crash) -> tuple[str, tuple[float, float] | None]:
    """The lone image among the inputs as a `data:` address, and its width and height; the seed's extent without one."""
    for name, spec in _inputs(crash, "image"):
        tensor = crash.inputs.get(name)
        shape = tuple(tensor.shape) if tensor is not None else ()
        if tensor is None or len(shape) < 3 or math.prod(shape[:-3]) != 1 or 0 in shape or shape[-3] not in (1, 3):
            continue
        low, high = _range(spec)
        pixels = tensor.detach().reshape(shape[-3:]).double().nan_to_num(low, high, low).numpy()
        scaled = np.clip((pixels - low) / (high - low), 0, 1) * 255
        colours = np.repeat(scaled, 3, axis=0) if shape[-3] == 1 else scaled
        picture = Pixels.fromarray(colours.round().astype(np.uint8).transpose(1, 2, 0))
        picture.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=70)
        text = base64.b64encode(stream.getvalue()).decode("ascii")
        return f"data:image/jpeg;base64,{text}", (float(shape[-1]), float(shape[-2]))
    return "", _extent(crash)


def _range(spec: Mapping[str, Any]) -> tuple[float, float]:
    """The values that are black and white."""
    given = spec.get("range")
    values = [number(value) for value in given] if isinstance(given, list) and len(given) == 2 else []
    low, high = values if len(values) == 2 else (0.0, 1.0)
    return (low, high) if low is not None and high is not None and low < high else (0.0, 1.0)


def _inputs(crash: Crash, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    specs = crash.seed.get("inputs")
    for name, spec in specs.items() if isinstance(specs, Mapping) else ():
        if isinstance(spec, Mapping) and spec.get("kind") == kind:
            yield str(name), spec
