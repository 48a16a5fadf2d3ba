"""`xbfuzz reduce`: a stored crash on a smaller input and a smaller model."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzer.commands.options import CACHE, CRASHES, JSON, PLUGIN, Duration, echo_json, load
from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.reduce import Size
    from fuzzer.reduce.case import CaseSize


@click.command()
@click.argument("crash_id")
@click.option("--budget", type=Duration(), default="60s", show_default=True, help="How long to try smaller inputs.")
@click.option("--graph/--no-graph", default=True, show_default=True, help="Also take the model apart.")
@click.option("--trust", is_flag=True, help="Run Python code that a crash's seed imports from outside this project.")
@CRASHES
@PLUGIN
@CACHE
@JSON
def reduce(
    crash_id: str, budget: float, graph: bool, trust: bool, crashes: Path, cache: Path | None, as_json: bool
) -> None:
    """Make a stored crash smaller: its input and its model.

    CRASH_ID is its id, a part of it, or its folder. Goes on where the last reduction of it ended.

    Exits 0 where nothing smaller is left to try, 1 where the budget ended it or the crash cannot be seen here.
    """
    from fuzzer.crashes.reduced import Outcome
    from fuzzer.crashes.reduction import reduce_crash, write_reduced
    from fuzzer.crashes.slips import keep_slips
    from fuzzer.crashes.trust import needs_trust
    from fuzzer.place import cache_folder, surroundings

    crash = load(crash_id, crashes)
    reason = None if trust else needs_trust(crash, Path.cwd())
    if reason is not None:
        raise XbfuzzError(f"{crash.id}: {reason}; --trust allows it")
    assert crash.folder is not None
    home = crash.folder.resolve().parent
    where = surroundings(cache_folder(cache))
    found = reduce_crash(crash, where, budget_s=budget, notes=home, graph=graph, watch=_Progress(quiet=as_json))
    if found.outcome is not Outcome.IMPOSSIBLE:
        write_reduced(home, found)
    asides = keep_slips(crash, found.slips, where, home)
    if as_json:
        echo_json(found.to_json() | {"aside": [aside.to_json() for aside in asides]})
    else:
        click.echo(f"{crash.id}: {found.sentence}")
        for aside in asides:
            became = f"stored as {aside.id}, {aside.detail}" if aside.folder is not None else aside.detail
            click.echo(f"  put aside {aside.count}×: {aside.fault}: {became}")
    sys.exit(0 if found.finished and found.outcome is not Outcome.UNCONFIRMED else 1)


class _Progress:
    """A line now and then on standard error: every second on a terminal, every ten elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._every = 1.0 if sys.stderr.isatty() else 10.0
        self._began = self._last = time.monotonic()

    def __call__(self, tests: int, size: Size | CaseSize) -> None:
        now = time.monotonic()
        if not self._quiet and now - self._last >= self._every:
            self._last = now
            text = f"{tests} tried, now {size.elements} elements, {size.filled} not of the background"
            text += f", {size.nodes} operators" if hasattr(size, "nodes") else ""
            click.echo(f"[{now - self._began:6.0f} s] {text}", err=True)
