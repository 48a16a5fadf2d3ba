"""Tier 2: where drift starts inside a model, and how it grows on the way to the output.

Pure functions over the intermediate values of both sides, the float64 values and the noise floors of the same input,
all by the names of `fuzzer.backends.observe`. A value is past the floor where the judge would let a difference stand:
the sides are more than T floors apart, and one of them is more than T floors from float64. It is an origin where all
that it was computed from is still within: the module in between is where the sides part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.observe import Step
from fuzzer.trees import ROOT
from fuzzer.verify.compare import as_real
from fuzzer.verify.judge import THRESHOLD
from fuzzer.verify.ulp import FORMATS, ulp
from fuzzer.verify.verdict import Kind

#: Points that are kept at most.
MOST_POINTS = 200
_COMPLEX = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Aligned:
    """One value on both sides, as they are."""

    name: str
    reference: Tensor
    target: Tensor


@dataclass(frozen=True)
class Point:
    """One value on the way, measured. Distances are the largest over its elements, in noise floors.

    `gap`: between the sides; infinite where they differ in a way that no noise explains (`kind` says which: a shape, a
    dtype, an integer, NaN or infinities). `drift_reference`, `drift_target`: from float64, None where there is none.
    `gap_before`: the largest gap of what it was computed from.
    """

    name: str
    module: str
    gap: float
    past: bool
    kind: str = ""
    drift_reference: float | None = None
    drift_target: float | None = None
    gap_before: float = 0.0
    origin: bool = False


@dataclass(frozen=True)
class GrowthCurve:
    """The points in execution order, up to the output's own."""

    points: tuple[Point, ...] = ()
    threshold: float = THRESHOLD

    @property
    def origin(self) -> Point | None:
        """The first value past the floor."""
        return next((point for point in self.points if point.origin), None)

    @property
    def output(self) -> tuple[Point, ...]:
        return tuple(point for point in self.points if point.name.startswith(ROOT))

    @property
    def output_past(self) -> bool:
        return any(point.past for point in self.output)

    def sentence(self) -> str:
        """Where drift starts, in words."""
        if not self.points:
            return "no intermediate value was seen on both sides"
        start = self.origin
        if start is None:
            return f"all {len(self.points)} values are within {self.threshold:g} noise floors"
        what = f"{start.name} ({start.module})" if start.module and not start.name.startswith(ROOT) else start.name
        what = "the output" if start.name == ROOT else what
        much = f"{start.gap:.2g} floors" if math.isfinite(start.gap) else f"a difference of {start.kind or 'value'}"
        place = self.points.index(start)
        before = f"what came before was within {start.gap_before:.2g}" if place else "nothing was seen before it"
        return f"drift starts at {what}: {much}; {before}"

    def to_json(self) -> dict[str, Any]:
        """With at most MOST_POINTS points: origins, the points around them, the output, the rest evenly thinned."""
        kept = _thinned(self.points, MOST_POINTS)
        start = self.origin
        return {
            "threshold": self.threshold,
            "origin": None if start is None else start.name,
            "module": None if start is None else start.module,
            "aligned": len(self.points),
            "points": [{k: _finite(v) for k, v in asdict(point).items()} for point in kept],
        }


@dataclass(frozen=True)
class Activations:
    """What observing a finding told.

    `observed`: by what means each side was. `changed`: sides whose output had other bits while observed. `vanishes`:
    the output's divergence was gone while observed, so that the curve is not that of the finding. `lost`: values of the
    reference that the target did not show, with the reason.
    """

    curve: GrowthCurve
    observed: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    vanishes: bool = False
    lost: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def status(self) -> str:
        """`fail`: some value is past the floor. `pass`: none is. `not-run`: nothing was seen, or not the finding."""
        if self.reason or self.vanishes or not self.curve.points:
            return "not-run"
        return "fail" if self.curve.origin is not None else "pass"

    def sentence(self) -> str:
        if self.reason:
            return f"not observed: {self.reason}"
        text = self.curve.sentence()
        if self.vanishes:
            return f"vanishes under observation: the output no longer diverges; {text}"
        if self.changed:
            text += f" (observation changed the output's bits on the {' and the '.join(self.changed)})"
        return text

    def to_json(self) -> dict[str, Any]:
        """JSON values only, bounded."""
        lost = list(self.lost.items())
        return {
            "status": self.status,
            "sentence": self.sentence(),
            "observed": dict(self.observed),
            "changed": list(self.changed),
            "vanishes": self.vanishes,
            "not_observed": len(lost),
            "lost": dict(lost[: MOST_POINTS // 4]),
            **self.curve.to_json(),
        }


def align(reference: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> list[Aligned]:
    """The values that both sides have, in the reference's order."""
    return [Aligned(name, value, target[name]) for name, value in reference.items() if name in target]


def growth(
    reference: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    floors: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    steps: Mapping[str, Step] | None = None,
    *,
    threshold: float = THRESHOLD,
) -> GrowthCurve:
    """Measure every aligned value, and tell origins from what inherited its drift.

    `floors`, `truth`: float64, in the shape of `as_real` of the value. `steps` say what a value was computed from;
    where that is not known, or was not seen on both sides, everything earlier counts as its source.
    """
    points: dict[str, Point] = {}
    for pair in align(reference, target):
        step = None if steps is None else steps.get(pair.name)
        sources = _sources(pair.name, step, points, steps or {})
        before = max((points[name].gap for name in sources), default=0.0)
        inherited = any(points[name].past for name in sources)
        gap, kind, drifts, past = _measure(pair, floors.get(pair.name), truth.get(pair.name), threshold)
        module = step.module if step is not None else ""
        points[pair.name] = Point(pair.name, module, gap, past, kind, *drifts, before, past and not inherited)
    return GrowthCurve(tuple(points.values()), threshold)


def _sources(
    name: str, step: Step | None, points: Mapping[str, Point], steps: Mapping[str, Step], depth: int = 50
) -> list[str]:
    """The measured points that a value was computed from; through sources that were not seen, those of the sources."""
    if step is None or step.sources is None:
        return list(points)
    found: list[str] = []
    for source in step.sources:
        if source in points:
            found.append(source)
        elif depth == 0:
            return list(points)
        else:
            found += _sources(source, steps.get(source), points, steps, depth - 1)
    return list(dict.fromkeys(found))


def _measure(
    pair: Aligned, floor: Tensor | None, truth: Tensor | None, threshold: float
) -> tuple[float, str, tuple[float | None, float | None], bool]:
    """Gap, kind of difference, drifts of reference and target, whether it is past the floor."""
    nothing = (None, None)
    if pair.reference.shape != pair.target.shape:
        return math.inf, str(Kind.SHAPE), nothing, True
    if pair.reference.dtype != pair.target.dtype:
        return math.inf, str(Kind.DTYPE), nothing, True
    try:
        r, t = as_real(pair.reference), as_real(pair.target)
    except (TypeError, ValueError, RuntimeError):  # no elements to compare: only whether it is the same
        same = pair.reference is pair.target
        return (0.0 if same else math.inf), str(Kind.OBJECT), nothing, not same
    dtype = _COMPLEX.get(pair.reference.dtype, pair.reference.dtype)
    if dtype not in FORMATS:
        unequal = bool((r != t).any())
        return (math.inf if unequal else 0.0), str(Kind.INTEGER) if unequal else "", nothing, unequal
    r, t = r.to(torch.float64), t.to(torch.float64)
    alike = (torch.isnan(r) & torch.isnan(t)) | (r == t)
    if bool((~alike & ~(torch.isfinite(r) & torch.isfinite(t))).any()):
        return math.inf, str(Kind.NONFINITE), nothing, True
    y = truth.to(torch.float64) if truth is not None and truth.shape == r.shape else None
    unit = _unit(r, floor, y, dtype)
    gap = ((t - r).abs() / unit).masked_fill(alike, 0.0)
    over = gap > threshold
    if y is None:
        return _largest(gap), "", nothing, bool(over.any())
    d_r, d_t = (((side - y).abs() / unit).nan_to_num(math.inf).masked_fill(alike & _odd(r), 0.0) for side in (r, t))
    past = bool((over & (torch.maximum(d_r, d_t) > threshold)).any())
    return _largest(gap), str(Kind.VALUE) if past else "", (_largest(d_r), _largest(d_t)), past


def _unit(r: Tensor, floor: Tensor | None, y: Tensor | None, dtype: torch.dtype) -> Tensor:
    """φ + ulp, where φ is at least the root mean square over the elements that moved.

    A few runs leave some elements of a whole model unmoved by luck, and after a ReLU most do not move at all: with the
    median over the leaf as the least φ, benign rounding reached 9 floors (four models, both exporters); so, 2.9.
    """
    unit = ulp((r if y is None else y).nan_to_num(0.0, 0.0, 0.0), dtype)
    if floor is None or floor.shape != r.shape:
        return unit
    moved = floor[floor > 0]
    return unit + floor.clamp(min=float(moved.square().mean().sqrt()) if moved.numel() else 0.0)


def _odd(x: Tensor) -> Tensor:
    return ~torch.isfinite(x)


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def _thinned(points: tuple[Point, ...], most: int) -> list[Point]:
    if len(points) <= most:
        return list(points)
    places = {i for i, point in enumerate(points) if point.origin or point.name.startswith(ROOT)}
    wanted = {j for i in sorted(places)[: most // 8] for j in (i - 1, i, i + 1) if 0 <= j < len(points)}
    free = most - len(wanted)
    wanted |= {round(k * (len(points) - 1) / (free - 1)) for k in range(free)}
    return [points[i] for i in sorted(wanted)[:most]]


def _finite(value: Any) -> Any:
    """JSON has no infinities."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
