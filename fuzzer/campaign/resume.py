"""Take up a run where its journal ends: its inputs, what each target has run, and its findings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fuzzer.campaign.findings import Ledger
from fuzzer.campaign.intake import restore
from fuzzer.campaign.journal import Journal
from fuzzer.campaign.lane import Lane
from fuzzer.campaign.plan import Options
from fuzzer.campaign.stream import Learnt
from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds.load import seed_to_json


def start_of(options: Options, lanes: Sequence[Lane]) -> dict[str, Any]:
    """The facts of the event `start`: what tells whether a run that is resumed is the same campaign."""
    seeds = {lane.name: hashlib.sha256(to_json(seed_to_json(lane.seed)).encode()).hexdigest()[:16] for lane in lanes}
    return {"rng_seed": options.rng_seed, "search": options.search, "seeds": seeds}


def take_up(
    journal: Journal, run: str, start: Mapping[str, Any], lanes: Sequence[Lane], ledger: Ledger
) -> tuple[int, int]:
    """Restore `lanes` and `ledger`; gives how many inputs and executions there were.

    Raises XbfuzzError where the journal of `run` is another campaign's than `start` describes, or lacks what is needed.
    """
    try:
        return _take_up(journal, start, {lane.name: lane for lane in lanes}, ledger)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise XbfuzzError(f"{run} cannot be resumed, its journal lacks what is needed ({what})") from error


def _take_up(journal: Journal, start: Mapping[str, Any], lanes: Mapping[str, Lane], ledger: Ledger) -> tuple[int, int]:
    inputs = executions = 0
    for event in journal.events():
        if event["event"] == "start":
            _check_same(event, start)
        restore(ledger, event)
        lane = lanes.get(event.get("seed", ""))
        if lane is not None and event["event"] == "input":
            recipe = Recipe.from_json(event["recipe"])
            lane.restore_input(event["index"], recipe, event["content"], Learnt.from_json(event), event["died"])
            inputs += 1
        elif lane is not None and event["event"] == "run":
            executions += 1
            lane.restore_run(
                event["target"], event["index"], event["outcome"], event["died"], event["notes"], judged=event["judged"]
            )
    return inputs, executions


def _check_same(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if then["rng_seed"] != now["rng_seed"]:
        raise XbfuzzError(f"that run had --rng-seed {then['rng_seed']}; give the same to resume it")
    if then.get("search", "full") != now["search"]:
        raise XbfuzzError(f"that run had --search {then['search']}; give the same to resume it")
    changed = [name for name, text in now["seeds"].items() if then["seeds"].get(name, text) != text]
    if changed:
        raise XbfuzzError(f"{', '.join(changed)} changed since that run; start a new one without --resume")
