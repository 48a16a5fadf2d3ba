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
from fuzzer.triage.charts import drift_histogram, drift_of, growth_curves, tolerance_sweep
from fuzzer.triage.groups import operator_of, order
from fuzzer.triage.known import KnownIssues
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


def report(crashes: Iterable[Crash], known: KnownIssues | None = None, *, made: str) -> str:
    """The HTML text. `made`: when, in words; the same crashes and the same `made` give the same text."""
    found = order(crashes)
    issues = known or KnownIssues()
    curves = {crash.id: crash.activations.get("points", []) for crash in found if crash.activations}
    return _template().render(
        version=__version__,
        made=made,
        crashes=[_facts(crash, issues) for crash in found],
        severities=[(name, sum(crash.severity == name for crash in found)) for name in SEVERITIES],
        blames=Counter(crash.blame for crash in found).most_common(),
        known=sum(issues.match(crash) is not None for crash in found),
        matrix=Matrix.of(found),
        unmeasured=sum(drift_of(crash) is None for crash in found),
        drift=Markup(drift_histogram(found)),
        sweep=Markup(tolerance_sweep(found)),
        growth=Markup(growth_curves(curves)),
    )


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
        "values": [(name, value, _short(drift)) for name, value, drift in values],
        "tiers": crash.tiers,
        "task": (crash.verdict.get("task") or {}).get("sentence", ""),
        "activations": crash.activations.get("sentence", ""),
        "growth": Markup(growth_curves(points, f"Growth of the gap in {crash.id}")),
        "inputs": [summary(name, tensor) for name, tensor in crash.inputs.items()],
        "sizes": crash.sizes,
        "stage": crash.stage,
        "operator": operator_of(crash),
        "mitigations": [str(item.get("sentence") or item.get("name") or item) for item in crash.mitigations],
        "status": crash.status,
        "said": status_of(crash, issue),
        "link": crash.link or (issue.url if issue is not None else ""),
        "expect": crash.expect,
        "commands": [f"xbfuzz replay {folder}", f"python {folder}/repro.py"],
        "environment": [(name, value) for name, value in crash.environment.items() if isinstance(value, str)],
    }


def _short(drift: Any) -> str:
    return "" if drift is None else f"{drift:.3g}" if isinstance(drift, int | float) else str(drift)
