"""`xbfuzz corpus`: look after kept inputs."""

from __future__ import annotations

from pathlib import Path

import click

from fuzzer.commands.options import JSON, echo_json


@click.group()
def corpus() -> None:
    """Look after the inputs that campaigns kept."""


@corpus.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path("corpus"))
@click.option("--seed", "only", help="Only this seed's inputs.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@JSON
def minimize(folder: Path, only: str | None, dry_run: bool, as_json: bool) -> None:
    """Keep the fewest inputs that have all features.

    FOLDER is a corpus (default: corpus/). Removes only what a campaign wrote and nobody has changed since.
    """
    from fuzzer.campaign.minimize import minimize as minimized
    from fuzzer.errors import InputError

    homes = sorted(path for path in folder.iterdir() if path.is_dir() and only in (None, path.name))
    if only is not None and not homes:
        raise InputError(f"{folder} holds nothing for a seed named {only!r}")
    found = [minimized(home, dry_run=dry_run) for home in homes]
    if as_json:
        echo_json({"corpora": [one.to_json() for one in found], "dry_run": dry_run})
        return
    if not any(one.kept or one.removed for one in found):
        click.echo(f"{folder}: holds no kept inputs")
        return
    for one in found:
        verb = "would go" if dry_run else "removed"
        yours = f" ({len(one.yours)} of them not a campaign's)" if one.yours else ""
        click.echo(f"{one.seed}: {len(one.removed)} {verb}, {len(one.kept)} kept{yours}, {one.features} features")
