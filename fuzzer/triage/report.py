"""The crashes as one HTML file that needs nothing else: no server, no network, no other file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from fuzzer import __version__
from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.severity import SEVERITIES
from fuzzer.triage import diagnosis
from fuzzer.triage.charts import drift_histogram, drift_of, growth_curves, tolerance_sweep
from fuzzer.triage.groups import operator_of, order
from fuzzer.triage.known import KnownIssue, KnownIssues
from fuzzer.triage.made import made_of, size_of
from fuzzer.triage.numbers import short
from fuzzer.triage.passes import Passes
from fuzzer.triage.pictures import pictures
from fuzzer.triage.sweep import sweep
from fuzzer.triage.table import blame_sentence, status_of, summary

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Matrix:
    """How many crashes each label has on each target. Labels and targets, the most frequent first."""

    labels: Sequence[str]
    targets: Sequence[str]
    counts: Mapping[tuple[str, str], int]

    @property
    def most(self) -> int:
        return max(self.counts.values(), default=0)

    @classmethod
    def of(cls, crashes: Iterable[Crash]) -> Matrix:
        counts = Counter((crash.label.name, crash.signature.target) for crash in crashes)
        labels, targets = Counter[str](), Counter[str]()
        for (label, target), count in counts.items():
            labels[label] += count
            targets[target] += count
        ordered = [sorted(total, key=lambda name, total=total: (-total[name], name)) for total in (labels, targets)]  # type: ignore[misc]
        return cls(ordered[0], ordered[1], counts)


def report(
    crashes: Iterable[Crash], known: KnownIssues | None = None, *, made: str, passes: Passes | None = None
) -> str:
    """The HTML text. `made`: when, in words; the same crashes, runs and `made` give the same text.

    `passes`: what the runs beside the crashes say of all executions, those that found nothing included.
    """
    found = order(crashes)
    issues = known or KnownIssues()
    swept = sweep(found)
    curves = {crash.id: crash.activations.get("points", []) for crash in found if crash.activations}
    return _template().render(
        version=__version__,
        made=made,
        crashes=[_facts(crash, issues) for crash in found],
        passes=passes if passes is not None and passes.seeds else None,
        filters=_filters(found, issues),
        severities=[(name, sum(crash.severity == name for crash in found)) for name in SEVERITIES],
        blames=Counter(crash.blame for crash in found).most_common(),
        known=sum(issues.match(crash) is not None for crash in found),
        matrix=Matrix.of(found),
        unmeasured=sum(drift_of(crash) is None for crash in found),
        drift=Markup(drift_histogram(found)),
        sweep=Markup(tolerance_sweep(swept)),
        swept=swept,
        confirmed=sum(crash.label.confirmed for crash in found),
        growth=Markup(growth_curves(curves)),
    )


def _filters(crashes: Sequence[Crash], issues: KnownIssues) -> dict[str, list[str]]:
    """The values by which a reader can choose, by the name of the attribute that each crash has on the page."""
    matrix = Matrix.of(crashes)
    return {
        "severity": [name for name in SEVERITIES if any(crash.severity == name for crash in crashes)],
        "label": list(matrix.labels),
        "target": list(matrix.targets),
        "seed": sorted({crash.signature.seed for crash in crashes}),
        "status": sorted({_status(crash, issues.match(crash)) for crash in crashes}),
    }


def _status(crash: Crash, issue: KnownIssue | None) -> str:
    """What was decided, in a word; an open crash that repeats a known issue is `known`."""
    return "known" if crash.status == "open" and issue is not None else crash.status


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _facts(crash: Crash, issues: KnownIssues) -> dict[str, Any]:
    issue = issues.match(crash)
    difference = crash.difference
    folder = crash.folder if crash.folder is not None else Path("crashes") / crash.id
    values = [
        (name, difference[key], drift)
        for name, key, drift in (
            (crash.reference, "reference", difference["drift_reference"]),
            (crash.target, "target", difference["drift_target"]),
            ("float64", "truth", None),
        )
        if difference[key]
    ]
    points = {crash.id: crash.activations.get("points", [])}
    return {
        "id": crash.id,
        "label": crash.label.name,
        "confirmed": crash.label.confirmed,
        "sentence": crash.label.sentence,
        "severity": crash.severity,
        "target": crash.signature.target,
        "backend": str(BackendSpec.parse(crash.target)),
        "reference": crash.reference,
        "seed": crash.signature.seed,
        "leaf": crash.leaf,
        "kind": crash.kind,
        "blame": crash.blame,
        "blamed": blame_sentence(crash),
        "evidence": crash.evidence,
        "message": difference["message"],
        "index": difference["index"],
        "values": [(name, value, short(drift)) for name, value, drift in values],
        "tiers": crash.tiers,
        "task": (crash.verdict.get("task") or {}).get("sentence", ""),
        "activations": crash.activations.get("sentence", ""),
        "growth": Markup(growth_curves(points, f"Growth of the gap in {crash.id}")),
        "pictures": [[(panel.caption, Markup(panel.svg)) for panel in panels] for panels in pictures(crash)],
        "inputs": [summary(name, tensor) for name, tensor in crash.inputs.items()],
        "size": size_of(crash.sizes),
        "stage": crash.stage,
        "operator": operator_of(crash),
        "diagnosis": diagnosis.lines(crash),
        "status": _status(crash, issue),
        "said": status_of(crash, issue),
        "link": crash.link or (issue.url if issue is not None else ""),
        "expect": crash.expect,
        "made": made_of(crash),
        "commands": [f"xbfuzz replay {folder}", f"python {folder}/repro.py"],
        "environment": [(name, value) for name, value in crash.environment.items() if isinstance(value, str)],
    }
