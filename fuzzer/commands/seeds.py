"""`xbfuzz seeds`: list seeds, write a first one for a model, and check what will run here."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuzzer.commands.options import CACHE, INPUT, JSON, PATHS, PLUGIN, Duration, echo_json
from fuzzer.errors import XbfuzzError

if TYPE_CHECKING:
    from fuzzer.campaign.check import SeedCheck
    from fuzzer.seeds import Seed

#: A preparation that goes on for longer is told of, and again each time so many seconds have passed.
SAY_EVERY_S = 10.0


class _Listing(click.Group):
    """A group whose first word, where it is no subcommand, belongs to `list`: `xbfuzz seeds PATHS`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Listing, no_args_is_help=False)
def seeds() -> None:
    """List seeds, write one for a model, check what will run here.

    `xbfuzz seeds PATHS` is `xbfuzz seeds list PATHS`.
    """


@seeds.command("list")
@PATHS
@PLUGIN
@JSON
def list_seeds(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check seeds without building anything, and list them.

    PATHS are files or folders (default: seeds/).
    """
    from fuzzer.campaign.plan import check_seed
    from fuzzer.seeds.load import load_seeds

    found = load_seeds(list(paths) or [Path("seeds")])
    for seed in found:
        check_seed(seed)
    if as_json:
        listed = [{"name": s.name, "source": s.model.source, "task": s.task.kind, "about": s.about} for s in found]
        echo_json({"seeds": listed})
        return
    for seed in found:
        click.echo(f"{seed.name:<16} {seed.model.source:<8} {seed.task.kind:<16} {seed.about}")


@seeds.command()
@click.argument("spec")
@INPUT
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it there, not on standard output.")
@PLUGIN
def new(spec: str, inputs: tuple[str, ...], out: Path | None) -> None:
    """Write a seed for the model SPEC, with comments.

    SPEC is torchvision:NAME, timm:NAME, transformers:NAME, package.module:callable, FILE.py:callable or FILE.onnx; or a
    seed file, of the study's format too. A file is for its place: relative paths in it start from its folder, on
    standard output from this one.
    """
    from fuzzer.files import write_atomically
    from fuzzer.models.named import seeds_named
    from fuzzer.seeds.given import parse_inputs
    from fuzzer.seeds.written import commented

    (seed, *more), _ = seeds_named([spec], parse_inputs(inputs))
    if more:
        raise XbfuzzError(f"{spec}: holds {1 + len(more)} seeds; name one file")
    text = commented(seed, f"{spec}, as `xbfuzz seeds new` writes it. All keys: docs/seeds.md", out_folder(out))
    if out is None:
        click.echo(text, nl=False)
        return
    if out.exists():
        raise XbfuzzError(f"{out} exists already; it is not overwritten")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, text.encode())
    except OSError as error:
        raise XbfuzzError(f"{out}: cannot be written: {error.strerror or error}") from error
    click.echo(f"{out}; to see what will run: xbfuzz seeds check {out}", err=True)


def out_folder(out: Path | None) -> Path:
    """The folder from which a seed's relative paths start."""
    return Path.cwd() if out is None else out.absolute().parent


@seeds.command()
@click.argument("names", nargs=-1, metavar="[PATHS]...")
@INPUT
@click.option("--backend", "backends", multiple=True, help="Try these instead of the seeds' own; repeatable.")
@click.option(
    "--deadline",
    type=Duration(),
    default="3m",
    show_default=True,
    help="CPU time that preparing a backend may take; a seed's own `prepare_deadline_s` where it is shorter.",
)
@click.option("--trust", is_flag=True, help="Read .pt2 files from outside this folder; they can run code.")
@PLUGIN
@CACHE
@JSON
def check(
    names: tuple[str, ...],
    inputs: tuple[str, ...],
    backends: tuple[str, ...],
    deadline: float,
    trust: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Try each seed on each of its backends, with one input.

    PATHS are files, folders (default: seeds/), or names of models as `xbfuzz seeds new` takes them.

    Exits 1 where a seed cannot be fuzzed at all.
    """
    import torch

    from fuzzer.campaign.check import check as checked
    from fuzzer.campaign.plan import check_seed, size
    from fuzzer.campaign.stages import with_stages
    from fuzzer.models.named import seeds_named
    from fuzzer.place import cache_folder, surroundings
    from fuzzer.seeds.given import parse_inputs

    torch.set_num_threads(1)
    found, _ = seeds_named(list(names) or ["seeds"], parse_inputs(inputs))
    refuse_foreign(found, trust=trust)
    for seed in found:
        check_seed(seed)
    place = cache_folder(cache)
    where = surroundings(place)
    results = []
    whole = sorted(with_stages(found, place), key=size)
    for number, seed in enumerate(whole, start=1):
        result = checked(seed, where, deadline, backends=backends, say=_Progress(seed.name))
        results.append(result)
        if as_json:  # standard output is for the object, which comes last
            click.echo(f"{time.strftime('%H:%M:%S')} {number} of {len(whole)}: {lines(result)[0]}", err=True)
        else:
            click.echo("\n".join(lines(result)))
    if as_json:
        echo_json({"seeds": [each.to_json() for each in results], "ok": all(each.fuzzable for each in results)})
    sys.exit(0 if all(each.fuzzable for each in results) else 1)


def refuse_foreign(found: Sequence[Seed], *, trust: bool) -> None:
    """Raises XbfuzzError where a seed reads a `.pt2` file from outside the current folder, which can run code."""
    from fuzzer.crashes.trust import foreign_program

    for seed in [] if trust else found:
        if reason := foreign_program(seed, Path.cwd()):
            raise XbfuzzError(f"{seed.name}: {reason}; --trust reads it all the same")


class _Progress:
    """Says on standard error what takes long."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: tuple[str, int] = ("", 0)

    def __call__(self, what: str, seconds: float) -> None:
        now = (what, int(seconds / SAY_EVERY_S))
        if now[1] > 0 and now != self._said:
            click.echo(f"{time.strftime('%H:%M:%S')} {self._name}: still busy with {what}, {seconds:.0f} s", err=True)
        self._said = now


def lines(result: SeedCheck) -> list[str]:
    """A seed's check for a person."""
    from fuzzer.campaign.summary import evidence_words

    planted = len(result.caught) + len(result.missed)
    noticed = f"; {len(result.caught)} of {planted} planted faults noticed" if planted else ""
    verdict = "can be fuzzed" if result.fuzzable else f"cannot be fuzzed: {result.reason}"
    found = [f"{result.seed}: {verdict}{noticed}"]
    if result.no_module:
        found.append(f"  it is compared with ONNX Runtime without optimisation, because {result.no_module}")
    for each in result.backends:
        what = each.reason or evidence_words(each.evidence)
        took = f"{each.prepare_s:.1f} s" if each.prepare_s else ""
        found.append(f"  {each.role:<9} {each.backend:<22} {each.status:<11} {took:>7}  {_short(what)}".rstrip())
        breaks = each.evidence.get("graph_breaks")
        if isinstance(breaks, list):
            found += [f"            graph break: {_short(_reason(each))}" for each in breaks[:3]]
    found += [f"  output {path} tells nothing: {reason}" for path, reason in result.vacuous.items()]
    return found


def _reason(graph_break: Any) -> str:
    return str(graph_break.get("reason", graph_break)) if isinstance(graph_break, Mapping) else str(graph_break)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:159]}…"
