"""`python -m benchmarks.planted --scale smoke|full [--json] [--jobs N]`: how soon planted faults are found.

`--trials-out FILE` stores every trial as it ends, and goes on from what the file holds; `--from FILE` computes the
figures from such a file and runs nothing.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks.planted.study import ARMS, SCALES, Record, all_names, read, run
from fuzzer.errors import InputError


@click.command()
@click.option("--scale", type=click.Choice(sorted(SCALES)), default="smoke")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Processes side by side.")
@click.option("--fault", "names", multiple=True, type=click.Choice(all_names()), help="Only these; repeatable.")
@click.option("--arm", "arms", multiple=True, type=click.Choice(ARMS), help="Only these; repeatable.")
@click.option("--trials", type=click.IntRange(1), help="Trials a fault and arm, in place of the scale's.")
@click.option("--budget", type=click.IntRange(1), help="Executions a trial, in place of the scale's.")
@click.option("--seconds", type=float, default=math.inf, help="Begin nothing after so many seconds.")
@click.option("--rates/--no-rates", default=True, help="Measure how often uniform inputs strike.")
@click.option("--trials-out", type=click.Path(dir_okay=False, path_type=Path), help="Store trials here; goes on.")
@click.option("--from", "source", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run nothing.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the JSON here too.")
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path), help="Draw survival curves (SVG).")
@click.option("--no-statistics", is_flag=True, help="Run and store only; needs no scipy.")
def main(
    scale: str,
    as_json: bool,
    jobs: int,
    names: tuple[str, ...],
    arms: tuple[str, ...],
    trials: int | None,
    budget: int | None,
    seconds: float,
    rates: bool,
    trials_out: Path | None,
    source: Path | None,
    out: Path | None,
    figure: Path | None,
    no_statistics: bool,
) -> None:
    """Plant faults, search for them, and say how soon they are found."""
    size = SCALES[scale]
    size = replace(size, trials=trials or size.trials, budget=budget or size.budget, rates=size.rates if rates else 0)
    if source is not None:
        record = read(source)
    else:
        chosen = list(names) or all_names()
        try:
            record = run(size, chosen, arms or size.arms, jobs, store=trials_out, seconds=seconds, say=_say)
        except InputError as error:
            raise click.ClickException(str(error)) from error
    if no_statistics:
        click.echo(json.dumps({"stored": len(record.trials), "rates": len(record.rates), **record.about}))
        return
    _report(record, as_json, out, figure)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(record: Record, as_json: bool, out: Path | None, figure: Path | None) -> None:
    try:
        from benchmarks.planted.summary import summarize
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'xbfuzz[benchmarks]'") from error
    found = summarize(record)
    text = json.dumps(found, indent=1)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if figure is not None:
        from benchmarks.planted.figure import draw

        draw(record, figure)
    click.echo(text if as_json else _table(found))


def _table(found: dict[str, Any]) -> str:
    lines = ["fault                 uniform rate   found at, median (trials found) by arm           label given"]
    for name, fault in found["by_fault"].items():
        if not fault["arms"]:
            continue
        rate = _rate(fault.get("uniform_rate"))
        arms = "  ".join(
            f"{arm} {a['median']:g} ({a['detected']}/{a['trials']})" for arm, a in sorted(fault["arms"].items())
        )
        lines.append(f"{name:20}  {rate:>12}   {arms:52} {', '.join(fault['given'])}")
    funnel = ", ".join(f"{step} {found[step]}" for step in ("reached", "triggered", "detected", "reduced", "labelled"))
    if found["left_out"]:
        lines.append(f"{found['left_out']} trials of a round that is not whole are left out of comparisons")
    lines.append(f"of {found['faults']} faults: {funnel}")
    if found["rmst_ratio"] is not None:
        claim = found["compared"]["uniform"]
        low, high = claim["rmst_ratio"]["low"], claim["rmst_ratio"]["high"]
        lines.append(
            f"restricted mean, uniform over full: {found['rmst_ratio']:.2f} ({low:.2f} to {high:.2f}) over "
            f"{len(claim['faults'])} faults; log-rank p = {found['logrank_p']:.2g}"
        )
    lines.append(f"controls reported: {found['controls_reported']} in {found['controls_executions']} executions")
    return "\n".join(lines)


def _rate(rate: dict[str, float] | None) -> str:
    if rate is None:
        return "-"
    return f"{rate['rate']:.1e}" if rate["struck"] else f"< {rate['high']:.1e}"


if __name__ == "__main__":
    main()
