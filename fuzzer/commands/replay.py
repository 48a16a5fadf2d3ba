"""`xbfuzz replay`: stored crashes run again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzer.commands.options import CACHE, JSON, PATHS, PLUGIN, crash_folders, echo_json
from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.backends.session import Where
    from fuzzer.crashes.crash import Crash
    from fuzzer.crashes.replay import Replayed


@click.command()
@PATHS
@click.option("--trust", is_flag=True, help="Run Python code that a crash's seed imports from outside this project.")
@click.option("--update", is_flag=True, help="A crash that is fixed becomes a guard: expected to agree from now on.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="So many crashes at a time.")
@click.option("--attempts", type=click.IntRange(min=1), default=3, show_default=True, help="Tries for each crash.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the outcome as JUnit XML.")
@click.option("--against", metavar="PYTHON", help="Replay under this interpreter too: what is fixed or broken there?")
@PLUGIN
@CACHE
@JSON
def replay(
    paths: tuple[Path, ...],
    trust: bool,
    update: bool,
    jobs: int,
    attempts: int,
    junit: Path | None,
    against: str | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Run stored crashes again, in fresh processes.

    PATHS are crash folders or folders of them (default: crashes/).

    Exits 1 where a crash did not do what its `expect` says; with --against, where one regressed under that interpreter;
    2 where nothing was compared: there is no crash, or none can run here.
    """
    from fuzzer.crashes.replay import replay_all
    from fuzzer.crashes.store import load_crash
    from fuzzer.files import write_atomically
    from fuzzer.place import cache_folder, surroundings

    wanted = list(paths) or [Path("crashes")]
    crashes = [load_crash(path) for path in crash_folders(wanted)]
    if not trust:
        _refuse_foreign_code(crashes)
    where = surroundings(cache_folder(cache))
    if against is not None:
        if update or junit is not None:
            raise click.UsageError("--against only looks: it goes with neither --update nor --junit")
        status = _across(crashes, against, where, jobs, attempts, as_json)
        if status == 2:
            _say_nothing_compared(len(crashes), wanted)
        sys.exit(status)
    results = []
    for crash, result in zip(crashes, replay_all(crashes, where, jobs=jobs, attempts=attempts), strict=True):
        results.append(result)
        updated = update and _guard(crash, result)
        if not as_json:
            _print(crash, result, updated)
    if junit is not None:
        from fuzzer.crashes.junit import junit as document

        write_atomically(junit, document(results, {crash.id: crash.signature.seed for crash in crashes}))
    if as_json:
        echo_json({"crashes": [result.to_json() for result in results]})
    if not any(result.said_something for result in results):
        _say_nothing_compared(len(crashes), wanted)
        sys.exit(2)
    sys.exit(0 if all(result.ok for result in results) else 1)


def _say_nothing_compared(crashes: int, paths: list[Path]) -> None:
    if not crashes:
        why = f"there are no crashes in {', '.join(map(str, paths))}"
    else:
        why = "it cannot run here" if crashes == 1 else f"none of the {crashes} crashes can run here"
    click.echo(f"xbfuzz: nothing was compared: {why}", err=True)


def _refuse_foreign_code(crashes: list[Crash]) -> None:
    from fuzzer.crashes.trust import needs_trust

    for crash in crashes:
        reason = needs_trust(crash, Path.cwd())
        if reason is not None:
            raise XbfuzzError(f"{crash.id}: {reason}; --trust allows it")


def _guard(crash: Crash, result: Replayed) -> bool:
    """Make a guard of a crash that is fixed where it was to diverge; whether it was."""
    from fuzzer.crashes.edit import guard
    from fuzzer.crashes.replay import CrashState

    if result.state is not CrashState.FIXED or result.ok:
        return False
    result.expect = result.expected = guard(crash).expect
    return True


def _print(crash: Crash, result: Replayed, updated: bool) -> None:
    from fuzzer.crashes.github import annotation

    note = "; crash.yaml updated" if updated else ""
    word = "FAIL" if not result.ok else "ok" if result.said_something else "skip"
    click.echo(f"{word:<4} {result.id}: {result.sentence}{note}")
    for line in result.differs:
        click.echo(f"       recorded elsewhere: {line}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
        command = annotation(crash, result, root)
        if command is not None:
            click.echo(command)


def _across(crashes: list[Crash], python: str, where: Where, jobs: int, attempts: int, as_json: bool) -> int:
    from fuzzer.backends.interpreter import availability_there
    from fuzzer.crashes.against import Across, Change, table, under, versions_between
    from fuzzer.crashes.replay import replay_all

    reason = availability_there(python, "eager:cpu")
    if reason is not None:
        raise XbfuzzError(f"--against: {reason}")
    both = [*crashes, *(under(crash, python) for crash in crashes)]
    results = list(replay_all(both, where, jobs=jobs, attempts=attempts))
    pairs = [Across(*pair) for pair in zip(results[: len(crashes)], results[len(crashes) :], strict=True)]
    if as_json:
        echo_json({"versions": versions_between(pairs), "crashes": [pair.to_json() for pair in pairs]})
    else:
        click.echo(table(pairs))
    if all(pair.change is Change.UNKNOWN for pair in pairs):
        return 2
    return int(any(pair.change is Change.REGRESSED for pair in pairs))
