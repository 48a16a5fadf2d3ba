"""`xbfuzz diagnose`: the cause of a stored crash, by running it again with one thing changed."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fuzzer.commands.options import CACHE, CRASHES, JSON, PLUGIN, Duration, echo_json, load
from fuzzer.errors import XbfuzzError


@click.command()
@click.argument("crash_id")
@click.option("--budget", type=Duration(), default="60s", show_default=True, help="How long to look for the cause.")
@click.option("--trust", is_flag=True, help="Run Python code that a crash's seed imports from outside this project.")
@PLUGIN
@CRASHES
@CACHE
@JSON
def diagnose(crash_id: str, budget: float, trust: bool, crashes: Path, cache: Path | None, as_json: bool) -> None:
    """Find the cause of a stored crash, and what avoids it.

    CRASH_ID is its id, a part of it, or its folder. What is found is written to its crash.yaml.

    Exits 0 where a rerun proves the label, 1 where none does or the crash cannot be seen here.
    """
    from fuzzer.crashes.diagnosing import diagnose_crash
    from fuzzer.crashes.store import write_crash
    from fuzzer.crashes.trust import needs_trust
    from fuzzer.place import cache_folder, surroundings
    from fuzzer.triage.diagnosis import lines

    crash = load(crash_id, crashes)
    reason = None if trust else needs_trust(crash, Path.cwd())
    if reason is not None:
        raise XbfuzzError(f"{crash.id}: {reason}; --trust allows it")
    assert crash.folder is not None
    new, found = diagnose_crash(crash, surroundings(cache_folder(cache)), budget_s=budget)
    if new is not crash:
        write_crash(crash.folder.resolve().parent, new)
    if as_json:
        echo_json({"id": crash.id, **found.to_json()})
    else:
        click.echo(f"{crash.id}: {new.label}" + (f": {found.detail}" if found.detail else ""))
        for line in lines(new):
            click.echo(f"  {line}")
    sys.exit(0 if new is not crash and new.label.confirmed else 1)
