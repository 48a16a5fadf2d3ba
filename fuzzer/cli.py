"""The command line: parses, calls the public API, prints. Nothing is decided here."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzer import __version__
from fuzzer.commands.corpus import corpus
from fuzzer.commands.diagnose import diagnose
from fuzzer.commands.options import CACHE, INPUT, JSON, PLUGIN, Duration
from fuzzer.commands.reduce import reduce
from fuzzer.commands.replay import replay
from fuzzer.commands.seeds import refuse_foreign, seeds
from fuzzer.commands.triage import show, triage
from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json

if TYPE_CHECKING:  # torch takes more than a second to import: --help does without
    from fuzzer.campaign import Campaign, Summary


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xbfuzz")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def cli(debug: bool) -> None:
    """Find, prove, explain and shrink the inputs on which a model answers differently on another backend."""


@cli.command()
@click.argument("names", nargs=-1, metavar="[PATHS]...")
@INPUT
@click.option(
    "--budget",
    type=Duration(),
    help="How long to fuzz: 90s, 10m, 1h, 2h30m; what is still being confirmed then gets 90 s more. [default: 10m]",
)
@click.option("--max-execs", type=click.IntRange(min=1), help="Stop after that many executions.")
@click.option("--rng-seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides all inputs.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Where corpus/, crashes/ and runs/ go.")
@click.option("--backend", "backends", multiple=True, help="Compare these instead of the seeds' own; repeatable.")
@click.option(
    "--corpus",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Start from the inputs kept in this folder as well.",
)
@click.option("--private", is_flag=True, help="Keep no original inputs and no corpus.")
@click.option("--resume", is_flag=True, help="Go on with the latest run in --out.")
@click.option(
    "--search",
    type=click.Choice(["full", "blind", "uniform", "seeds"]),
    default="full",
    show_default=True,
    help="How inputs are made: all there is; mutations without feedback; uniform values; base inputs.",
)
@click.option("--trust", is_flag=True, help="Read .pt2 files from outside this folder; they can run code.")
@click.option("--max-workers", type=click.IntRange(min=3), help="At most so many worker processes.")
@PLUGIN
@CACHE
@JSON
def run(names: tuple[str, ...], inputs: tuple[str, ...], as_json: bool, cache: Path | None, **choices: Any) -> None:
    """Fuzz seeds or models.

    PATHS are seeds, folders of them (default: seeds/), or names of models. A model is named torchvision:NAME,
    timm:NAME, transformers:NAME, package.module:callable, FILE.py:callable or FILE.onnx; a seed is made for it.
    """
    from fuzzer.campaign import Campaign, Options
    from fuzzer.campaign.stages import with_stages
    from fuzzer.campaign.status import Status
    from fuzzer.models.named import seeds_named
    from fuzzer.place import cache_folder, surroundings
    from fuzzer.seeds.given import parse_inputs

    seeds, models = seeds_named(list(names) or ["seeds"], parse_inputs(inputs))
    refuse_foreign(seeds, trust=choices.pop("trust"))
    for text in models:
        again = shlex.join(["xbfuzz", "seeds", "new", text, *(f"--input={each}" for each in inputs)])
        click.echo(f"{text} has no seed of yours; the one made for it: {again}", err=True)
    if choices["budget"] is None and choices["max_execs"] is None:
        choices["budget"] = 600.0
    place = cache_folder(cache)
    seeds = with_stages(seeds, place)
    options = Options(budget_s=choices.pop("budget"), cache=place, **choices)
    status = Status(sys.stderr, quiet=as_json, budget_s=options.budget_s, max_execs=options.max_execs)
    campaign = Campaign(seeds, options, surroundings(place), started=_process_start(), watch=status)
    summary = _interruptible(campaign)
    status.close()
    if as_json:
        click.echo(json.dumps(json.loads(to_json(summary.to_json())), indent=1))
    else:
        click.echo("\n".join(summary.lines()))
    if summary.exit_code == 2:
        reasons = "; ".join(f"{entry['seed']}: {entry['reason']}" for entry in summary.seeds if entry["reason"])
        click.echo(f"xbfuzz: nothing was compared{': ' + reasons if reasons else ''}", err=True)
    sys.exit(summary.exit_code)


def _interruptible(campaign: Campaign) -> Summary:
    """Run with Ctrl-C meaning: finish what is in hand, save, and print the summary. A second one ends at once."""

    def handler(number: int, frame: object) -> None:
        if campaign.interrupted:
            raise KeyboardInterrupt
        campaign.stop()

    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        return campaign.run()
    finally:
        for number, old in before:
            signal.signal(number, old)


def _process_start() -> float:
    """When this process started, on the monotonic clock: imports count as waiting too."""
    import psutil

    return time.monotonic() - (time.time() - psutil.Process().create_time())


@cli.command()
@PLUGIN
@JSON
def backends(as_json: bool) -> None:
    """Say which backends can run here, and why the others cannot."""
    from fuzzer.backends.registry import availability, backend_class, known
    from fuzzer.plugins import origin

    found = []
    for spec in known():
        options = {name: list(values) for name, values in backend_class(spec.runtime).options.items()}
        found.append(
            {
                "backend": str(spec),
                "reason": availability(spec),
                "options": options,
                "plugin": origin("backends", spec.runtime),
            }
        )
    if as_json:
        click.echo(json.dumps({"backends": found}, indent=1))
        return
    for entry in found:
        state = "available" if entry["reason"] is None else f"unavailable: {entry['reason']}"
        source = f" (plug-in {entry['plugin']})" if entry["plugin"] else ""
        click.echo(f"{entry['backend']:<20} {state}{source}")


for _command in (replay, triage, show, reduce, diagnose, corpus, seeds):
    cli.add_command(_command)


def main(args: list[str] | None = None) -> None:
    """The entry point: errors are one clear line and exit 2, faults of our own exit 3, interruption 130."""
    given = sys.argv[1:] if args is None else args
    debug = "--debug" in given  # taken anywhere, because it is added to a command that has just failed
    rest = [arg for arg in given if arg != "--debug"] or ["--help"]
    sys.exit(_guarded(lambda: cli.main(rest, prog_name="xbfuzz", standalone_mode=False), debug))


def _guarded(call: Callable[[], Any], debug: bool) -> int:
    try:
        call()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "xbfuzz")
        click.echo(f"{command}: {' '.join(error.format_message().split())}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except XbfuzzError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines():
            click.echo(f"xbfuzz: {line}", err=True)
        return 2
    except BrokenPipeError:  # whoever read our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except Exception as error:  # a fault of xbfuzz's own: told apart from a user's, never called a finding
        if debug:
            traceback.print_exc()
        click.echo(f"xbfuzz: internal error: {type(error).__name__}: {error} (--debug shows where)", err=True)
        return 3
    return 0
