"""Crashes for a reader: a table of all, and everything about one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.store import read_script
from fuzzer.diagnose.stage import STAGES
from fuzzer.errors import CrashFolderError
from fuzzer.models.graph import Graph
from fuzzer.triage.diagnosis import mitigation_lines
from fuzzer.triage.groups import operator_of, order
from fuzzer.triage.known import KnownIssue, KnownIssues
from fuzzer.triage.made import made_of, size_of, words
from fuzzer.verify.verdict import Kind

#: Repeated values are counted in inputs of up to this many elements.
_COUNTED = 10**6
#: Kinds whose blame says which side answers as float64 does; no distance is measured.
_JUDGED_BY_EQUALITY = (Kind.SHAPE, Kind.INTEGER, Kind.NONFINITE)
HEADINGS = ("id", "severity", "label", "blame", "target", "leaf", "kind", "tiers", "size", "status")


class Row(NamedTuple):
    """One crash in the table, as text. `size`: elements of the inputs, as found → reduced.

    `status`: what was decided, with its link; for an open crash the known issue that it repeats.
    """

    id: str
    severity: str
    label: str
    blame: str
    target: str
    leaf: str
    kind: str
    tiers: str
    size: str
    status: str


def rows(crashes: Iterable[Crash], known: KnownIssues | None = None) -> list[Row]:
    """One row a crash, gravest first, then by label and id."""
    issues = known or KnownIssues()
    return [_row(crash, issues.match(crash)) for crash in order(crashes)]


def _row(c: Crash, issue: KnownIssue | None) -> Row:
    tiers, size = _tiers(c.tiers), size_of(c.sizes)
    status = status_of(c, issue)
    return Row(c.id, c.severity, str(c.label), c.blame, c.target, c.leaf, c.kind, tiers, size, status)


def status_of(crash: Crash, issue: KnownIssue | None) -> str:
    """What was decided about a crash, and where to read of it; else the known issue that it repeats; else `open`."""
    if crash.status == "open" and not crash.link and issue is not None:
        return f"known: {issue.sentence}"
    return f"{crash.status} {crash.link}".strip()


def table(rows: Sequence[Row]) -> str:
    """The rows in aligned columns under their headings, one line each; a sentence where there are none."""
    if not rows:
        return "no crashes"
    lines = [HEADINGS, *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def to_json(crash: Crash, issue: KnownIssue | None = None) -> dict[str, Any]:
    """What `triage --json` prints of one crash. `issue`: the known one that it repeats."""
    return {
        "id": crash.id,
        "label": str(crash.label),
        "study_type": crash.study_type,
        "severity": crash.severity,
        "blame": crash.blame,
        "stage": crash.stage,
        "mitigations": [dict(item) for item in crash.mitigations],
        "sizes": {"original": crash.sizes.get("original"), "reduced": crash.sizes.get("reduced")},
        "seed": crash.signature.seed,
        "reference": crash.reference,
        "target": crash.target,
        "leaf": crash.leaf,
        "kind": crash.kind,
        "tiers": dict(crash.tiers),
        "expect": crash.expect,
        "operator": operator_of(crash),
        "status": crash.status,
        "link": crash.link or None,
        "known": None if issue is None else {"url": issue.url or None, "note": issue.note or None},
        "folder": None if crash.folder is None else str(crash.folder),
    }


def show(crash: Crash, issue: KnownIssue | None = None) -> str:
    """Everything about one crash, in lines for a terminal. `issue`: the known one that it repeats."""
    target, seed = BackendSpec.parse(crash.target), crash.signature.seed
    head = f"{seed}: {target} and {crash.reference} differ at {crash.leaf} ({crash.kind}), {crash.label}"
    parts = [
        head,
        crash.label.sentence,
        "",
        *_section("status", [status_of(crash, issue)]),
        *_section("evidence", crash.evidence),
        *_section("blame", [blame_sentence(crash)]),
        *_section("stage", [stage_sentence(crash)]),
        *_section("what helps", mitigation_lines(crash)),
        *_section("worst element", _worst(crash.difference)),
        *_section("other differences", _others(crash)),
        *_section("activations", _activations(crash.activations)),
        *_section("notes", crash.verdict.get("notes", [])),
        *_section("model", _model(crash)),
        *_section("inputs", [summary(name, tensor) for name, tensor in crash.inputs.items()]),
        *_section("how it was made", made_of(crash)),
        *_section("to see it again", _again(crash)),
        *_section("environment", [f"{key}: {words(value)}" for key, value in crash.environment.items()]),
    ]
    return "\n".join(_printable(part) for part in parts).rstrip()


def blame_sentence(crash: Crash) -> str:
    """Who is to blame, with both sides' distance from float64 where the judge measured it."""
    words = {
        "target": f"{crash.target} is to blame",
        "reference": f"{crash.reference}, the reference, is to blame",
        "both": "both sides are to blame",
        "neither": "neither side is to blame: both are within the noise of float64",
        "unknown": "no float64 answer to judge by",
    }
    verdict = words.get(crash.blame, crash.blame)
    sides = ((crash.target, "drift_target"), (crash.reference, "drift_reference"))
    drifts = [(side, crash.difference.get(key)) for side, key in sides]
    if any(drift is None for _, drift in drifts):
        right = {"target": crash.reference, "reference": crash.target}.get(crash.blame)
        by_truth = right is not None and crash.kind in _JUDGED_BY_EQUALITY
        return f"{verdict}: float64 answers as {right} does" if by_truth else verdict
    measured = [f"{side} is {_number(drift)} noise floors from float64" for side, drift in drifts]
    return f"{verdict}: {measured[0]}, {measured[1]}"


def stage_sentence(crash: Crash) -> str:
    """Where drift enters the target's compiler; "" where no rerun has told."""
    meant = STAGES.get(crash.stage or "", "")
    return f"{crash.stage}: {meant}" if meant else crash.stage or ""


def _model(crash: Crash) -> list[str]:
    """The operators that are left of a model that was taken apart; none where it is whole."""
    graph = dict(crash.seed.get("model", {})).get("graph")
    before, after = crash.sizes.get("nodes_original"), crash.sizes.get("nodes")
    if not isinstance(graph, Mapping) or before is None or after is None:
        return []
    try:
        operators = dict.fromkeys(node.op for node in Graph.from_json(graph).nodes)
    except ValueError as error:
        return [f"its operators cannot be read: {error}"]
    return [f"{after} of {before} operators show it: {', '.join(operators)}"]


def _worst(difference: Mapping[str, Any]) -> list[str]:
    lines = []
    if difference.get("index") is not None:
        lines.append(f"at {difference['path']}{list(difference['index'])}")
    elif difference.get("path"):
        lines.append(f"at {difference['path']}")
    for side in ("reference", "target", "truth"):
        if difference.get(side):
            name = "float64" if side == "truth" else side
            lines.append(f"{name:9} {difference[side]}")
    if difference.get("compared"):
        lines.append(f"{difference['mismatched']} of {difference['compared']} elements differ")
    return lines


def _others(crash: Crash) -> list[str]:
    rest = crash.verdict["differences"][1:]
    lines = [f"{d['path']}: {d['kind']}, {d['mismatched']} of {d['compared']}: {d['message']}" for d in rest[:20]]
    return lines + ([f"and {len(rest) - 20} more"] if len(rest) > 20 else [])


def _activations(seen: Mapping[str, Any]) -> list[str]:
    """Where drift starts, and the growth curve around it and at the output."""
    if not seen:
        return []
    points = [point for point in seen.get("points", []) if isinstance(point.get("name"), str)]
    start = next((i for i, point in enumerate(points) if point.get("origin")), len(points))
    shown = dict.fromkeys([*range(max(0, start - 1), min(start + 5, len(points))), *range(len(points))[-2:]])
    lines = [str(seen.get("sentence", ""))]
    for i in shown:
        point = points[i]
        mark = "origin" if point.get("origin") else "past" if point.get("past") else ""
        lines.append(f"{point['name']} ({point.get('module', '')}): {_number(point.get('gap'))} floors {mark}".rstrip())
    return lines


def summary(name: str, tensor: Tensor) -> str:
    """One input in a line: dtype, shape, range, and how many special values it holds."""
    text = f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if tensor.numel() == 0:
        return f"{text}, empty"
    value = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    value = value.to_dense() if value.layout != torch.strided else value
    if value.dtype == torch.bool:
        return f"{text}, {int(value.sum())} true"
    if not value.is_floating_point():
        whole = value.to(torch.int64)
        return f"{text}, {_span(int(whole.min()), int(whole.max()))}"
    tiny = torch.finfo(value.dtype).tiny
    wide = value.double()
    finite = wide[wide.isfinite()]
    if finite.numel():
        text += f", {_span(float(finite.min()), float(finite.max()))}"
    counts = {
        "NaN": wide.isnan(),
        "+inf": wide == float("inf"),
        "−inf": wide == -float("inf"),
        "−0": (wide == 0) & wide.signbit(),
        "subnormal": (wide != 0) & (wide.abs() < tiny),
    }
    special = [f"{int(mask.sum())} {what}" for what, mask in counts.items() if bool(mask.any())]
    if finite.numel() <= _COUNTED and finite.numel() and bool((finite != finite[0]).any()):
        repeated = finite.numel() - len(set(finite.tolist()))
        special += [f"{repeated} repeated"] if repeated else []
    return ", ".join([text, *special])


def _span(least: float, most: float) -> str:
    return f"{least:.6g} only" if least == most else f"{least:.6g} to {most:.6g}"


def _again(crash: Crash) -> list[str]:
    folder = crash.folder if crash.folder is not None else f"crashes/{crash.id}"
    script = f"python {folder}/repro.py"
    beyond = _script_tolerance(crash)
    if beyond:
        script += f"  (counts elements more than {beyond} apart; the judge counts all that are beyond the noise)"
    return [f"xbfuzz replay {folder}", script, f"expected: {crash.expect}"]


def _script_tolerance(crash: Crash) -> str:
    """How far apart values are that the stored script counts, in its own words; "" where it compares exactly."""
    if crash.folder is None or crash.kind != Kind.VALUE:
        return ""
    try:
        script = read_script(crash)
    except CrashFolderError:  # replay needs no script
        return ""
    found = [re.search(rf"^{name} = ([0-9.e+-]+)$", script, re.MULTILINE) for name in ("ABSOLUTE", "RELATIVE")]
    absolute, relative = (float(match[1]) if match else 0.0 for match in found)
    parts = [f"{absolute:.3g}"] if absolute else []
    return " + ".join([*parts, *([f"{relative:.3g} of the reference"] if relative else [])])


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = [f"  {line}" for line in lines if line]
    return [title, *found, ""] if found else []


def _tiers(tiers: Mapping[str, str]) -> str:
    """The tiers that failed, or `-`."""
    return ",".join(name for name, state in tiers.items() if state == "fail") or "-"


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def _printable(text: str) -> str:
    """Text from a crash folder must not move the cursor or colour the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
