"""Arguments that several commands take, and how they find crash folders. Nothing here imports torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json

if TYPE_CHECKING:
    from fuzzer.crashes.crash import Crash

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


class Duration(click.ParamType[float]):
    """`90s`, `10m`, `1h`, `2h30m`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", str(value))
        if not parts or "".join(number + unit for number, unit in parts) != str(value):
            self.fail(f"{value!r} is no duration: it reads 90s, 10m, 1h or 2h30m", param, ctx)
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        if seconds <= 0:
            self.fail("a budget must be longer than nothing", param, ctx)
        return seconds


PATHS = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
INPUT = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=SHAPE[:DTYPE[:LOW..HIGH]]",
    help="An input of a model that is named, such as x=1x3x64x64:float32:0..1, in forward's order; repeatable.",
)
CACHE = click.option("--cache", type=click.Path(path_type=Path), help="Where weights and compiled code are cached.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
CRASHES = click.option(
    "--crashes", type=click.Path(path_type=Path), default=Path("crashes"), show_default=True, help="The crash folder."
)


def _load_plugins(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> None:
    """Runs before the command does: what plug-ins bring must be known when seeds and crashes are read."""
    if context.resilient_parsing:
        return
    from fuzzer.plugins import load_plugins

    for plugin in load_plugins(names):
        if plugin.failure is not None:
            click.echo(f"xbfuzz: {plugin.failure} ({plugin.source}); going on without it", err=True)


PLUGIN = click.option(
    "--plugin",
    multiple=True,
    metavar="MODULE_OR_FILE",
    expose_value=False,
    callback=_load_plugins,
    help="Import this first: it brings backends, mutators, tasks or interventions of your own; repeatable.",
)


def echo_json(value: Mapping[str, Any]) -> None:
    """Print a value as strict JSON, indented."""
    click.echo(json.dumps(json.loads(to_json(dict(value))), indent=1))


def crash_folders(paths: list[Path]) -> list[Path]:
    """Crash folders among `paths` and in them. Raises XbfuzzError where a path holds none."""
    from fuzzer.crashes.store import list_crashes

    found = []
    for path in paths:
        inside = [path] if (path / "crash.yaml").exists() else list_crashes(path)
        if not inside and not path.exists():
            raise XbfuzzError(f"{path}: there is no such folder")
        if not inside and any(path.iterdir() if path.is_dir() else [path]) and paths != [Path("crashes")]:
            raise XbfuzzError(f"{path}: holds no crash")
        found += inside
    return found


def load(crash_id: str, crashes: Path) -> Crash:
    """A crash by its folder, its id, or a part of its id that no other has. Raises XbfuzzError."""
    from fuzzer.crashes.store import list_crashes, load_crash

    for folder in (Path(crash_id), crashes / crash_id):
        if (folder / "crash.yaml").exists():
            return load_crash(folder)
    near = [path.name for path in list_crashes(crashes) if crash_id in path.name]
    if len(near) == 1:
        return load_crash(crashes / near[0])
    hint = f"; did you mean one of {', '.join(near)}?" if near else ""
    raise XbfuzzError(f"there is no crash {crash_id} in {crashes}{hint}")
