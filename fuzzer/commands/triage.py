"""`xbfuzz triage` and `xbfuzz show`: stored crashes for a reader, and what their keepers decide."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzer.commands.options import CRASHES, JSON, crash_folders, echo_json, load
from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.crashes.crash import Crash
    from fuzzer.triage import KnownIssues

_KNOWN = click.option(
    "--known",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Known upstream issues. [default: known.yaml in the crash folder]",
)
_GROUPS = ("label", "target", "stage", "seed", "operator")


@click.command()
@click.argument("crash_id")
@CRASHES
@_KNOWN
@JSON
def show(crash_id: str, crashes: Path, known: Path | None, as_json: bool) -> None:
    """Everything about one crash, by its id or folder."""
    from fuzzer.triage import show as describe
    from fuzzer.triage import to_json

    crash = load(crash_id, crashes)
    issue = _known(known, crashes).match(crash)
    if as_json:
        echo_json(to_json(crash, issue))
    else:
        click.echo(describe(crash, issue))


@click.group(invoke_without_command=True)
@CRASHES
@_KNOWN
@click.option("--by", type=click.Choice(_GROUPS), help="In groups, the gravest first.")
@JSON
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV and nothing else.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report that is one HTML file.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    help="Runs whose statistics the report shows. [default: runs/ beside the crash folder]",
)
@click.pass_context
def triage(
    context: click.Context,
    crashes: Path,
    known: Path | None,
    by: str | None,
    as_json: bool,
    as_csv: bool,
    html: Path | None,
    runs: Path | None,
) -> None:
    """A table of the stored crashes, the gravest first."""
    context.obj = crashes
    if context.invoked_subcommand is not None:
        return
    if as_json and as_csv:
        raise click.UsageError("--json or --csv, not both")
    from fuzzer.crashes.store import load_crash
    from fuzzer.triage import rows, to_csv, to_json

    found = [load_crash(path) for path in crash_folders([crashes])]
    issues = _known(known, crashes)
    if html is not None:
        if runs is not None and not runs.is_dir():
            raise XbfuzzError(f"{runs}: there is no such folder")
        _write_report(html, found, issues, runs or crashes.resolve().parent / "runs")
    if as_json:
        echo_json({"crashes": [to_json(crash, issues.match(crash)) for crash in found], **_groups_json(found, by)})
    elif as_csv:
        click.echo(to_csv(rows(found, issues)), nl=False)
    elif html is None:
        _print_tables(found, issues, by, crashes)


@triage.command("set")
@click.argument("crash_id")
@click.option("--status", required=True, type=click.Choice(("open", "reported", "accepted", "wontfix")))
@click.option("--link", help="Where it was reported or decided: an http(s) address; an empty one removes it.")
@click.pass_obj
def set_status(crashes: Path, crash_id: str, status: str, link: str | None) -> None:
    """Keep in a crash's crash.yaml what was decided about it."""
    from fuzzer.crashes.edit import decide
    from fuzzer.triage.table import status_of

    crash = decide(load(crash_id, crashes), status, link)
    click.echo(f"{crash.id}: {status_of(crash, None)}")


@triage.command()
@click.argument("crash_id")
@click.pass_obj
def draft(crashes: Path, crash_id: str) -> None:
    """Print an issue for the project to blame; nothing is sent."""
    from fuzzer.triage.draft import draft as write

    click.echo(write(load(crash_id, crashes)).text, nl=False)


def _known(given: Path | None, crashes: Path) -> KnownIssues:
    from fuzzer.triage import KNOWN, load_known

    return load_known(crashes / KNOWN if given is None else given)


def _write_report(path: Path, found: list[Crash], issues: KnownIssues, runs: Path) -> None:
    from fuzzer.files import write_atomically
    from fuzzer.triage.passes import read_passes
    from fuzzer.triage.report import report

    made = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z").strip()
    write_atomically(path, report(found, issues, made=made, passes=read_passes(runs)))
    click.echo(f"{path}: {len(found)} crashes", err=True)


def _groups_json(found: list[Crash], by: str | None) -> dict[str, object]:
    from fuzzer.triage import groups

    if by is None:
        return {}
    listed = [
        {"name": group.name, "severity": group.severity, "crashes": [crash.id for crash in group.crashes]}
        for group in groups(found, by)
    ]
    return {"by": by, "groups": listed}


def _print_tables(found: list[Crash], issues: KnownIssues, by: str | None, crashes: Path) -> None:
    from fuzzer.triage import groups, rows, table

    if not found:
        click.echo(f"no crashes in {crashes}")
    elif by is None:
        click.echo(table(rows(found, issues)))
    else:
        parts = [
            f"{by} {group.name}: {len(group.crashes)}, gravest {group.severity}\n{table(rows(group.crashes, issues))}"
            for group in groups(found, by)
        ]
        click.echo("\n\n".join(parts))
