"""The report's charts as SVG text that takes its colours from the page: light and dark need no second drawing."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fuzzer.crashes.crash import Crash
from fuzzer.triage.numbers import number
from fuzzer.triage.sweep import Sweep
from fuzzer.verify.judge import THRESHOLD

if TYPE_CHECKING:  # matplotlib takes a second to import
    from matplotlib.axes import Axes

#: Colours that matplotlib draws with, and what the page has in their place.
_INK, _SERIES, _QUIET = "#010203", "#040506", "#070809"
_LINES = (_SERIES, "#0a0b0c", "#0b0c0d", "#0c0d0e")
_DASHES = ("-", "--", ":")
_PAGE = {
    _INK: "var(--ink)",
    _SERIES: "var(--series)",
    _QUIET: "var(--quiet)",
    **dict(zip(_LINES[1:], ("var(--wrong)", "var(--decision)", "var(--crash)"), strict=True)),
}
#: A curve with more values than this is cut: its end is in the crash's own folder.
_POINTS = 400
_CURVES = 12
_WIDE, _HIGH = 5.0, 2.5
#: Drift that is infinite is drawn at this many floors.
_MOST = 1e12


def drift_of(crash: Crash) -> float | None:
    """The larger distance of the two sides from float64 at the worst element, in noise floors; None if not measured."""
    found = [number(crash.difference.get(key)) for key in ("drift_reference", "drift_target")]
    measured = [value for value in found if value is not None]
    return max(measured, default=None)


def drift_histogram(crashes: Iterable[Crash]) -> str:
    """How far from float64 the crashes' worst elements lie: crashes by noise floors in powers of ten. "" if unknown."""
    drifts = [drift for crash in crashes if (drift := drift_of(crash)) is not None]
    if not drifts:
        return ""
    powers = [math.log10(min(max(drift, 0.1), _MOST)) for drift in drifts]
    # at least from a tenth of a floor to a thousand, so that the threshold stands among the bars
    edges = np.arange(min(-1, math.floor(min(powers))), max(2, math.floor(max(powers))) + 2)

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        axes.hist(powers, bins=edges.tolist(), color=_SERIES, rwidth=0.9)
        axes.axvline(math.log10(THRESHOLD), color=_INK, linestyle="--", linewidth=1)
        axes.set_xticks(edges.tolist(), [_power(int(edge)) for edge in edges])
        axes.set_xlabel(f"distance from float64 in noise floors (dashed: the judge's {THRESHOLD:g})")
        axes.set_ylabel("crashes")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))

    return _svg(draw, "Distance of the worst element from float64, by crash", powers)


def tolerance_sweep(found: Sweep) -> str:
    """The share of the crashes that the study's criterion would see, by absolute tolerance. "" where none is known."""
    if not found.known:
        return ""
    shares = [100 * seen / found.known for seen in found.seen]
    always = 100 * found.always / found.known

    def draw(axes: Axes) -> None:
        axes.axhspan(0, always, color=_QUIET, alpha=0.18, linewidth=0)
        axes.plot(found.levels, shares, color=_SERIES, marker="o", markersize=4, linewidth=1.5)
        for level, share, seen in zip(found.levels, shares, found.seen, strict=True):
            axes.annotate(
                str(seen), (level, share), (0, 5), textcoords="offset points", ha="center", fontsize=9, color=_INK
            )
        axes.set_xscale("log")
        axes.set_xticks(list(found.levels), [_power(round(math.log10(level))) for level in found.levels])
        axes.minorticks_off()
        axes.set_ylim(0, 118)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_xlabel("absolute tolerance (relative: 1e-5)")
        axes.set_ylabel("% of crashes seen")

    return _svg(draw, "Share of the crashes that a fixed tolerance would see", found)


def growth_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]], title: str = "Growth of the gap through the layers"
) -> str:
    """How the gap between the sides grows through the model, a line for each named list of points. "" without any."""
    lines = {name: _gaps(points) for name, points in list(curves.items())[:_CURVES]}
    lines = {name: gaps for name, gaps in lines.items() if len(gaps) > 1}
    if not lines:
        return ""

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for i, (name, gaps) in enumerate(lines.items()):
            colour, dashes = _LINES[i % len(_LINES)], _DASHES[i // len(_LINES) % len(_DASHES)]
            axes.plot(range(len(gaps)), gaps, color=colour, linestyle=dashes, linewidth=1.5, label=name)
        axes.axhline(THRESHOLD, color=_INK, linestyle="--", linewidth=1)
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("values in the order in which they are computed")
        axes.set_ylabel("gap in noise floors")
        if len(lines) > 1:
            axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.22), borderaxespad=0)

    return _svg(draw, title, lines)


def _gaps(points: Sequence[Mapping[str, Any]]) -> list[float]:
    found = [number(point.get("gap")) for point in points[:_POINTS]]
    return [min(max(gap, 1e-2), _MOST) for gap in found if gap is not None]


def _power(exponent: int) -> str:
    return f"1e{exponent}" if abs(exponent) > 3 else f"{10.0**exponent:g}"


def _svg(draw: Callable[[Axes], None], title: str, data: object) -> str:
    """One set of axes as an `svg` element: no prolog, text as text, and ids that follow from title and data.

    So two charts on a page share no id, and the same crashes give the same text.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {  # its type lists every setting that there is
        "svg.fonttype": "none",
        "svg.hashsalt": f"{title} {data!r}",
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.edgecolor": _QUIET,
        "axes.labelcolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(_WIDE, _HIGH), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        stream = io.StringIO()
        about = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # the same crashes give the same text
        FigureCanvasSVG(figure).print_svg(stream, metadata=about)  # type: ignore[no-untyped-call]
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ([^>]*?)height="[^"]*"', r"<svg \1\2", text, count=1)
    for drawn, page in _PAGE.items():
        text = text.replace(drawn, page)
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title)}" ', 1)
