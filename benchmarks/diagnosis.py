"""Are labels right, and proven? `python -m benchmarks.diagnosis [--json] [--case NAME]… [--planted]`.

Each known divergence is shown on its own inputs, on the first of its targets that takes the module, and diagnosed by
reruns; the table's label is the right one. Cases that kill a process are not run here.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import torch

from benchmarks.controls import machine, versions
from benchmarks.given import spec_of
from benchmarks.known_cases import EAGER, Case, Kind, cases
from benchmarks.local import RNG_SEED, named, seed_for
from benchmarks.local_rerun import LocalReruns
from fuzzer.diagnose import provisional
from fuzzer.diagnose.engine import diagnose
from fuzzer.diagnose.finding import Finding
from fuzzer.diagnose.rerun import CannotRerun
from fuzzer.verify.verdict import Outcome

#: Seconds for one diagnosis.
BUDGET_S = 120.0


@dataclass
class Case_:
    """One diagnosis. `given` is the label with its `?`, `seconds` those of the diagnosis alone."""

    case: str
    target: str
    expected: str
    symptom: str = ""
    given: str = ""
    proof: str = ""
    stage: str | None = None
    operator: str = ""
    seconds: float = 0.0
    note: str = ""
    evidence: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return self.given.rstrip("?") == self.expected

    @property
    def confirmed(self) -> bool:
        return bool(self.given) and not self.given.endswith(("?", "/unknown"))


def targets_of(case: Case) -> list[str]:
    return [spec_of(case, name) for name in case.targets if name not in (*case.refused, *case.kills, EAGER)]


def diagnosed(case: Case, target: str, budget_s: float) -> Case_:
    """Diagnose one case on one target."""
    found = Case_(case.name, target, case.label)
    inputs, ordinary = named(case.inputs()), named(case.ordinary())
    seed = seed_for(case.inputs(), dynamic=case.dynamic)
    rerun = LocalReruns(seed, EAGER, target, case.module, ordinary)
    try:
        examined = rerun(inputs)
    except CannotRerun as error:
        found.note = str(error)
        return found
    if examined.verdict.outcome is not Outcome.MISMATCH:
        found.note = f"not seen: {examined.verdict.outcome}"
        return found
    truth = None if examined.oracle is None else examined.oracle.truth
    leaves = examined.reference.leaves, examined.target.leaves
    symptom = provisional(examined.verdict, *leaves, truth, inputs, target)
    finding = Finding(inputs, examined, symptom.label, target, ordinary, RNG_SEED)
    started = time.perf_counter()
    result = diagnose(finding, rerun, clock=time.perf_counter, budget_s=budget_s, mitigate=False)
    found.seconds = round(time.perf_counter() - started, 2)
    found.symptom, found.given = str(symptom.label), str(result.label)
    found.stage, found.operator, found.evidence = result.stage, result.operator, result.evidence
    proofs = [trial.changed for trial in result.trials if trial.gone]
    found.proof = proofs[-1] if proofs and found.confirmed else ""
    return found


def report(found: list[Case_]) -> dict[str, Any]:
    """The JSON object, over the cases that were seen here."""
    seen = [one for one in found if one.given]
    return {
        "cases": len(seen),
        "right": sum(one.right for one in seen),
        "right_and_confirmed": sum(one.right and one.confirmed for one in seen),
        "confirmed": sum(one.confirmed for one in seen),
        "confirmed_but_wrong": [one.case for one in seen if one.confirmed and not one.right],
        "not_seen": {one.case: one.note for one in found if not one.given},
        "diagnoses": [asdict(one) for one in found],
    }


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--case", "names", multiple=True, help="Default: every case that diverges.")
@click.option("--all-targets", is_flag=True, help="On each of a case's targets, not on the first alone.")
@click.option("--budget", default=BUDGET_S, show_default=True, help="Seconds for one diagnosis.")
def main(as_json: bool, names: tuple[str, ...], all_targets: bool, budget: float) -> None:
    """Diagnose the known divergences."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    found = []
    for case in cases(Kind.DIVERGES):
        if names and case.name not in names:
            continue
        wanted = targets_of(case)
        for target in wanted if all_targets else wanted[:1]:
            found.append(diagnosed(case, target, budget))
            last = found[-1]
            mark = "ok " if last.right else "BAD"
            text = f"{mark} {last.case} {last.target}: {last.symptom} -> {last.given} (expected {last.expected})"
            print(f"{text} {last.seconds}s {last.proof or last.note} [{last.stage}]", file=sys.stderr, flush=True)
    result = report(found) | {"machine": machine(), "versions": versions()}
    result["seconds"] = round(time.perf_counter() - started, 1)
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    click.echo(f"{result['right']} of {result['cases']} labels right, {result['right_and_confirmed']} of them proven")


if __name__ == "__main__":
    main()
