"""How much of the known is found: `python -m benchmarks.known [--json] [--executions N] [--case NAME]…`.

For each diverging case of the table, a small campaign: a seed whose base inputs are the case's ordinary ones, all
mutators, a corpus fed by the reference's features, up to N executions on one target. The first mismatch of each symptom
is diagnosed by reruns, and the campaign ends once one bears the table's label. `--cases FILE`: another table, a Python
file that has a list `CASES` of `benchmarks.known_cases.Case`. `--jobs J` runs so many cases at a time; `--state FILE`
keeps what is done, so that the same command goes on from there.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.controls import machine, versions
from benchmarks.known_cases import Case, Kind, table
from benchmarks.known_search import Hunt, Plan, Sighting, hunt, target_of
from benchmarks.known_versions import kind_on
from fuzzer.campaign import stream
from fuzzer.errors import InputError

#: Seconds of reruns for each symptom.
DIAGNOSE_S = 40.0


def report(hunts: Sequence[Hunt]) -> dict[str, Any]:
    """The JSON object: `found` are cases with any mismatch, `labelled` those with one that bears the table's label.

    `labelled_first`: those whose first finding bears it. `proven`: those labelled by a rerun that shows the cause.
    `confusion`: expected label → label of the first finding → how many.
    """
    confusion: dict[str, Counter[str]] = {}
    for one in hunts:
        if one.first is not None:
            confusion.setdefault(one.expected, Counter())[one.first_label or "none"] += 1
    return {
        "cases": len(hunts),
        "found": sum(h.first is not None for h in hunts),
        "labelled": sum(h.labelled_at is not None for h in hunts),
        "labelled_by_symptom": sum(h.expected in h.labels for h in hunts),
        "labelled_first": sum(h.first_label.rstrip("?") == h.expected for h in hunts),
        "proven": sum(any(s.label == h.expected for s in h.sightings) for h in hunts),
        "missed": [h.case for h in hunts if h.first is None],
        "otherwise_labelled": {
            h.case: [h.expected, [s.label for s in h.sightings]]
            for h in hunts
            if h.first is not None and h.labelled_at is None
        },
        "confusion": {expected: dict(labels) for expected, labels in sorted(confusion.items())},
        "hunts": [asdict(replace(h, labels=dict(h.labels))) for h in hunts],  # type: ignore[arg-type]
    }


def from_json(value: dict[str, Any]) -> Hunt:
    """A hunt as `report` wrote it."""
    sightings = [Sighting(**each) for each in value["sightings"]]
    return Hunt(**{**value, "labels": Counter(value["labels"]), "sightings": sightings})


class Done:
    """The hunts that are over, one a line of a file, for a run with the same plan to go on from."""

    def __init__(self, path: Path | None, plan: Plan) -> None:
        self.hunts: dict[str, Hunt] = {}
        self._path = path
        self._plan = {"plan": asdict(plan), "torch": torch.__version__}
        if path is None:
            return
        if not path.exists():
            path.write_text(json.dumps(self._plan) + "\n")
            return
        first, *lines = path.read_text().splitlines() or [""]
        if first != json.dumps(self._plan):
            raise InputError(f"{path} is of a run with other options or versions; delete it or name another file")
        for line in lines:
            one = from_json(json.loads(line))
            self.hunts[one.case] = one

    def add(self, one: Hunt) -> None:
        self.hunts[one.case] = one
        if self._path is not None:
            with self._path.open("a") as out:
                out.write(json.dumps(report([one])["hunts"][0]) + "\n")


def chosen(cases: Sequence[Case], names: Sequence[str], torch_version: str) -> list[Case]:
    """The cases that diverge on their target under this version of PyTorch, of these names where any are given.

    Raises InputError where the table does not have a name.
    """
    unknown = sorted(set(names) - {case.name for case in cases})
    if unknown:
        raise InputError(f"the table has no case named {', '.join(unknown)}")
    diverging = [case for case in cases if kind_on(case, target_of(case), torch_version) is Kind.DIVERGES]
    return [case for case in diverging if not names or case.name in names]


@click.command()
@click.option("--json", "as_json", is_flag=True)
@click.option("--executions", default=400, show_default=True, help="At most, for each case.")
@click.option("--rng-seed", default=0, show_default=True)
@click.option("--search", "how", type=click.Choice(stream.SEARCHES), default="full", show_default=True)
@click.option("--diagnose", "diagnose_s", default=DIAGNOSE_S, show_default=True, help="Seconds a symptom; 0: none.")
@click.option("--case", "names", multiple=True, help="Default: every case that diverges.")
@click.option("--cases", "table_file", default="", help="Another table: a Python file with a list CASES.")
@click.option("--jobs", default=1, show_default=True, help="Cases at a time.")
@click.option("--state", type=click.Path(dir_okay=False, path_type=Path), help="Goes on from what is in this file.")
def main(
    as_json: bool,
    executions: int,
    rng_seed: int,
    how: str,
    diagnose_s: float,
    names: tuple[str, ...],
    table_file: str,
    jobs: int,
    state: Path | None,
) -> None:
    """Search for the known divergences."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    plan = Plan(executions, rng_seed, how, diagnose_s, table_file)
    try:
        wanted = chosen(list(table(table_file).values()), names, torch.__version__)
        done = Done(state, plan)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    with ThreadPoolExecutor(max(jobs, 1)) as pool:  # each thread waits for the process of its case
        for future in as_completed([pool.submit(hunt, case, plan) for case in wanted if case.name not in done.hunts]):
            last = future.result()
            done.add(last)
            labels = [sighting.label for sighting in last.sightings]
            line = f"{last.case} {last.labelled_at or last.first} {labels} {last.seconds} s {last.note}"
            print(line, file=sys.stderr, flush=True)
    found = report([done.hunts[case.name] for case in wanted])
    found |= {
        "plan": asdict(plan),
        "machine": machine(),
        "versions": versions(),
        "seconds": round(time.perf_counter() - started, 1),
    }
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(
        f"{found['found']} of {found['cases']} cases found, {found['labelled']} with the table's label"
        f" ({found['proven']} proven, {found['labelled_first']} at the first finding)"
    )
    for name in found["missed"]:
        click.echo(f"  missed: {name}")


if __name__ == "__main__":
    main()
