"""What a campaign has to say at its end: for a machine as JSON, for a person as lines."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuzzer.campaign.findings import Standing
from fuzzer.campaign.lane import ENDED_EARLY
from fuzzer.seeds.stages import sentence

if TYPE_CHECKING:
    from fuzzer.campaign.loop import Campaign


@dataclass
class Summary:
    """The facts of a finished campaign."""

    rng_seed: int
    inputs: int
    executions: int
    elapsed_s: float
    first_comparison_s: float | None
    digest: str
    outcomes: dict[str, int]
    judged: int
    targets: list[dict[str, Any]]
    seeds: list[dict[str, Any]]
    vacuous: list[dict[str, str]]
    findings: list[dict[str, Any]]
    accepted: dict[str, int]
    harness_errors: list[str]
    interrupted: bool
    run: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return self.outcomes.get("pass", 0) + self.outcomes.get("mismatch", 0)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings that are no known crash, 2 nothing compared, 3 the harness failed, 130 interrupted."""
        if self.interrupted:
            return 130
        if any(finding["standing"] != Standing.KNOWN for finding in self.findings):
            return 1
        if self.compared == 0:
            return 2
        return 3 if self.harness_errors else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "rng_seed": self.rng_seed,
            "inputs": self.inputs,
            "executions": self.executions,
            "elapsed_s": round(self.elapsed_s, 3),
            "first_comparison_s": self.first_comparison_s and round(self.first_comparison_s, 3),
            "digest": self.digest,
            "outcomes": self.outcomes,
            "judged": self.judged,
            "seeds": self.seeds,
            "targets": self.targets,
            "vacuous": self.vacuous,
            "findings": self.findings,
            "accepted": self.accepted,
            "harness_errors": self.harness_errors,
            "interrupted": self.interrupted,
            "run": self.run,
            "exit_code": self.exit_code,
        }

    def lines(self) -> list[str]:
        """The summary for a person."""
        first = "none" if self.first_comparison_s is None else f"{self.first_comparison_s:.1f} s"
        rate = self.executions / max(self.elapsed_s, 1e-9)
        found = [
            f"{self.inputs} inputs, {self.executions} executions in {self.elapsed_s:.0f} s ({rate:.1f} a second), "
            f"first comparison after {first}, rng seed {self.rng_seed}",
            "outcomes: " + (", ".join(f"{n} {name}" for name, n in sorted(self.outcomes.items())) or "none"),
        ]
        found += _table(self.targets)
        found += [
            f"{entry['seed']}: compared with {entry['reference']}, because {entry['no_module']}"
            for entry in self.seeds
            if entry["no_module"]
        ]
        found += [f"{entry['seed']}: {entry['stage']}" for entry in self.seeds if entry["stage"]]
        found += [f"not fuzzed: {entry['seed']}: {entry['reason']}" for entry in self.seeds if entry["reason"]]
        if self.accepted:
            found += [f"accepted {count} times: {why}" for why, count in self.accepted.items()]
        found += [f"harness error: {error}" for error in self.harness_errors[:5]]
        found += _findings(self.findings)
        if self.compared == 0:
            found.append("nothing was compared")
        return found


def summarize(campaign: Campaign) -> Summary:
    """Gather the facts of a campaign that has ended."""
    digest = hashlib.sha256()
    outcomes: Counter[str] = Counter()
    targets, seeds, vacuous, errors = [], [], [], []
    judged = 0
    for lane in campaign.lanes:
        digest.update(f"{lane.name}:{lane.digest};".encode())
        seeds.append(
            {
                "seed": lane.name,
                "reference": lane.planned.reference,
                "no_module": lane.no_module,
                "stage": sentence(lane.seed),
                "inputs": len(lane.recipes),
                "vetted": lane.vetted,
                "reason": lane.failed or ("" if lane.vetted or lane.recipes else ENDED_EARLY),
                "uninformative": lane.vacuity.reasons if lane.vacuity else {},
                "self_test": _self_test(lane.self_test),
                "weights_hash": lane.reference.weights_hash,
            }
        )
        if lane.failed.startswith("vacuous"):
            vacuous.append({"seed": lane.name, "reason": lane.failed})
        errors += [f"{lane.name}: {error}" for error in lane.harness_errors]
        for target in lane.targets:
            status, reason = target.status
            if status == "not-prepared" and lane.failed:
                reason = "its seed was not fuzzed"
            outcomes.update(target.outcomes)
            judged += target.judged
            targets.append(
                {
                    "seed": lane.name,
                    "backend": target.spec,
                    "status": status,
                    "reason": reason,
                    "executions": target.executions,
                    "outcomes": dict(target.outcomes),
                    "evidence": target.session.evidence if target.session is not None else {},
                    "prepare_s": round(target.session.prepare_s, 3) if target.session is not None else None,
                }
            )
    return Summary(
        rng_seed=campaign.options.rng_seed,
        inputs=campaign.inputs,
        executions=campaign.executions,
        elapsed_s=campaign.elapsed_s,
        first_comparison_s=campaign.first_comparison_s,
        digest=digest.hexdigest()[:32],
        outcomes=dict(outcomes),
        judged=judged,
        targets=targets,
        seeds=seeds,
        vacuous=vacuous,
        findings=[finding.to_json() for finding in campaign.ledger.findings.values()],
        accepted=dict(campaign.ledger.accepted),
        harness_errors=errors,
        interrupted=campaign.interrupted,
        run=campaign.run_name,
    )


def _self_test(test: Any) -> dict[str, Any]:
    if test is None:
        return {}
    return {"caught": test.caught, "missed": test.missed, "not_applicable": test.not_applicable, "ok": test.ok}


def _table(targets: list[dict[str, Any]]) -> list[str]:
    rows = []
    for target in targets:
        outcomes = target["outcomes"]
        counts = " ".join(f"{outcomes.get(name, 0):>6}" for name in ("pass", "mismatch", "vacuous", "not-compared"))
        what = target["reason"] if target["status"] != "ok" else evidence_words(target["evidence"])
        rows.append(f"  {target['seed']:<14} {target['backend']:<22} {target['status']:<12} {counts}  {what}"[:160])
    head = f"  {'seed':<14} {'target':<22} {'status':<12} {'pass':>6} {'diff':>6} {'vacuous':>7} {'n/c':>5}"
    return [head, *rows]


def evidence_words(evidence: dict[str, Any]) -> str:
    """What really ran, in a few words."""
    words = []
    if evidence.get("fell_back"):
        words.append("fell back to eager")
    if "graphs" in evidence:
        graphs = evidence["graphs"]
        count = graphs if isinstance(graphs, int) else len(graphs)
        words.append(f"{count} graphs")
    breaks = evidence.get("graph_breaks")
    if breaks:
        words.append(f"{len(breaks) if isinstance(breaks, list) else breaks} graph breaks")
    if evidence.get("recompiles"):
        recompiles = evidence["recompiles"]
        words.append(f"{len(recompiles) if isinstance(recompiles, list) else recompiles} recompiles")
    if "exporter" in evidence:
        words.append(f"exported by {evidence['exporter']}")
    return ", ".join(words)


def _findings(findings: list[dict[str, Any]]) -> list[str]:
    if not findings:
        return ["no findings"]
    words = Counter(finding["standing"] for finding in findings)
    lines = [f"{len(findings)} findings: " + ", ".join(f"{count} {standing}" for standing, count in words.items())]
    for finding in findings:
        lines.append(f"  {finding['id']:<44} {finding['label']:<28} {finding['standing']}, seen {finding['count']}×")
        lines.append(f"      {finding['message']}; blame: {finding['blame']}")
        if finding["also"]:
            lines.append(f"      the reference is at fault: {', '.join(finding['also'])} shows the same")
        if finding["detail"]:
            lines.append(f"      {finding['detail']}")
    shown = next((f["id"] for f in findings if f["standing"] in (Standing.STORED, Standing.KNOWN)), None)
    if shown is not None:
        lines.append(f"all about one: xbfuzz show {shown}; all of them again: xbfuzz replay")
    return lines
