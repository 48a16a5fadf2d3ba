"""Every model of the study gives verdicts that say something: none vacuous.

`python -m benchmarks.study --executions 50 --json` runs a campaign of so many executions on each model, with calibrated
weights, and prints what became of it. The file of `--out` is written after each model; models that it has already, with
as many executions, are not run again. `--write DIR` writes the seeds and runs nothing. `--group I/N` takes the I-th of
N groups that take about as long as each other, to run side by side; `--merge A.json B.json --out WHOLE.json`
joins what they wrote, and `--table` puts it into docs/study.md. The nineteenth model, YOLOv5n, comes with no
library: it runs where `--yolov5 FOLDER` says where a checkout of its repository is, or its package.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import torch

from benchmarks.study_models import MODELS, group, yolov5n
from benchmarks.study_report import merged, report, table, with_table
from fuzzer.campaign import Campaign, Options
from fuzzer.files import write_atomically
from fuzzer.place import cache_folder, surroundings
from fuzzer.seeds import Seed, seed_text

RESULTS = Path(__file__).parent / "results" / "study.json"
PAGE = Path(__file__).parent.parent / "docs" / "study.md"
_ALL = [model.short for model in MODELS]


def run_model(seed: Seed, executions: int, budget_s: float | None) -> dict[str, Any]:
    """What a campaign of `executions` says of one model; `ok`: all ran, something was compared, nothing was vacuous."""
    started = time.monotonic()
    place = cache_folder()
    with tempfile.TemporaryDirectory() as folder:
        # Findings are confirmed, but neither reduced nor explained: this is about verdicts.
        options = Options(Path(folder), budget_s, executions, cache=place, reduce_s=0.0, diagnose_s=0.0)
        summary = Campaign([seed], options, surroundings(place)).run()
    vetting = summary.seeds[0]
    vacuous = summary.outcomes.get("vacuous", 0) + len(summary.vacuous)
    return {
        "executions": summary.executions,
        "outcomes": summary.outcomes,
        "vacuous": vacuous,
        "judged": summary.judged,
        "not_fuzzed": vetting["reason"],
        "uninformative": vetting["uninformative"],
        "targets": {t["backend"]: {"status": t["status"], "reason": t["reason"]} for t in summary.targets},
        "findings": dict(Counter(finding["label"] for finding in summary.findings)),
        "seconds": round(time.monotonic() - started, 1),
        "ok": summary.executions >= executions and vacuous == 0 and summary.compared > 0,
    }


def _numbers(part: str) -> tuple[int, int]:
    """I and N of `I/N`, both from 1."""
    left, _, right = part.partition("/")
    if not (left.isdecimal() and right.isdecimal() and 1 <= int(left) <= int(right)):
        raise click.UsageError(f"--group takes I/N, such as 1/6, not {part!r}")
    return int(left), int(right)


def _merge(parts: tuple[Path, ...], out: Path) -> None:
    try:
        whole = merged([json.loads(path.read_text()) for path in parts], _ALL)
    except (ValueError, KeyError) as error:
        raise click.UsageError(f"cannot merge: {error}") from error
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, (json.dumps(whole, indent=1) + "\n").encode())


@click.command(help=__doc__)
@click.option("--executions", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--model", "only", multiple=True, help="Only these; repeatable.")
@click.option("--backend", "targets", multiple=True, help="Compare these instead of each model's own; repeatable.")
@click.option("--budget", type=float, help="Seconds for each model. [default: none]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Keep results here, model by model.")
@click.option(
    "--yolov5",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A checkout of YOLOv5, or a folder with its package.",
)
@click.option("--write", type=click.Path(path_type=Path, file_okay=False), help="Write the seeds into this folder.")
@click.option("--group", "part", metavar="I/N", help="The I-th of N groups that take about as long as each other.")
@click.option("--merge", is_flag=True, help="Join the results PARTS into --out, and run nothing.")
@click.option(
    "--table", "as_table", is_flag=True, help="Put results/study.json (or --out) into docs/study.md, and run nothing."
)
@click.option("--json", "as_json", is_flag=True)
@click.argument("parts", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    executions: int,
    only: tuple[str, ...],
    targets: tuple[str, ...],
    budget: float | None,
    out: Path | None,
    yolov5: Path | None,
    write: Path | None,
    part: str | None,
    merge: bool,
    as_table: bool,
    as_json: bool,
    parts: tuple[Path, ...],
) -> None:
    if parts and not merge:
        raise click.UsageError("results are given to --merge alone")
    if merge:
        _merge(parts, out or RESULTS)
    if as_table:
        source = out or RESULTS
        if not source.exists():
            raise click.UsageError(f"there is no {source}: run the models, or merge their parts into it")
        text = table(json.loads(source.read_text()))
        write_atomically(PAGE, with_table(PAGE.read_text(), text).encode())
    if merge or as_table:
        return
    seeds = [model.seed(targets) for model in MODELS] + ([] if yolov5 is None else [yolov5n(yolov5, targets)])
    unknown = set(only) - {seed.name for seed in seeds}
    if unknown:
        raise click.UsageError(f"no model is called {', '.join(sorted(unknown))}")
    if part is not None:
        held = {model.short for model in group(*_numbers(part))}
        seeds = [seed for seed in seeds if seed.name in held]
    seeds = [seed for seed in seeds if not only or seed.name in only]
    if not seeds:
        raise click.UsageError(f"group {part} has none of {', '.join(only)}")
    if write is not None:
        write.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            write_atomically(write / f"{seed.name}.yaml", seed_text(seed).encode())
        click.echo(f"{len(seeds)} seeds in {write}")
        return
    done: dict[str, Any] = json.loads(out.read_text())["models"] if out is not None and out.exists() else {}
    for seed in seeds:
        if done.get(seed.name, {}).get("executions", 0) >= executions:
            continue
        done[seed.name] = run_model(seed, executions, budget)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, json.dumps(report(done, executions), indent=1).encode())
        click.echo(f"{seed.name:<32} {json.dumps(done[seed.name])[:150]}", err=True)
    if as_json:
        click.echo(json.dumps(report(done, executions), indent=1))
    raise SystemExit(0 if all(done[seed.name]["ok"] for seed in seeds) else 1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
