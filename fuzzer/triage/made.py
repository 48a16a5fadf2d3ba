"""How the input of a crash was made, reduced and found, in lines. What a folder holds beyond that is told as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzer.crashes.crash import Crash

#: Parameters of a mutator that choose places by a number which tells a reader nothing.
_SEEDS = ("key",)
_OUTCOMES = {
    "reduced": "reduced",
    "minimal": "nothing smaller shows it",
    "unfinished": "not reduced: the time ended before anything smaller was found",
    "unconfirmed": "not reduced: what was smaller did not reproduce in fresh processes",
    "impossible": "not reduced: it was not seen again",
    "waiting": "not reduced yet",
    "whole": "the input is reduced, the model not yet",
}


def made_of(crash: Crash) -> list[str]:
    """How the input was made, how it was reduced and where it was found, in lines."""
    found = dict(crash.found)
    recipe, reduction = found.pop("recipe", None), found.pop("reduction", None)
    if crash.recipe is not None:
        lines = _steps(crash.recipe.to_json())
    elif isinstance(recipe, Mapping):
        lines = [*_steps(recipe), "then reduced by shape and values: what is stored is in inputs.safetensors"]
    else:
        lines = ["from no recipe: the inputs are in inputs.safetensors"]
    if isinstance(reduction, Mapping):
        lines += _reduction(reduction, crash.sizes)
    else:
        lines.append(f"{size_of(crash.sizes)} elements")
    lines.append(f"random generators seeded with {crash.rng_seed}")
    return lines + _found(found)


def size_of(sizes: Mapping[str, int]) -> str:
    """Elements of the inputs, as found → reduced; `-` where it is not recorded."""
    before, after = sizes.get("original"), sizes.get("reduced")
    if before is None or after is None:
        return "-"
    return str(after) if before == after else f"{before}→{after}"


def words(value: Any) -> str:
    """A value of a crash's file as text: lists and mappings without their brackets."""
    if isinstance(value, list):
        return ", ".join(words(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {words(item)}" for key, item in value.items())
    return str(value)


def _steps(recipe: Mapping[str, Any]) -> list[str]:
    """A recipe as it is stored, in lines; it may be that of an input as found, which nothing but this text reads."""
    dims = recipe.get("dims")
    sizes = f" with {words(dims)}" if isinstance(dims, Mapping) and dims else ""
    steps = recipe.get("steps")
    lines = [f"base input {recipe.get('draw')}{sizes}"]
    for step in steps if isinstance(steps, list) else []:
        lines.append(_step(step) if isinstance(step, Mapping) else str(step))
    return lines


def _step(step: Mapping[str, Any]) -> str:
    """A mutator, the input that it changes, and with what: `nonfinite of features: where some, count 8; values nan`."""
    given = dict(step["params"]) if isinstance(step.get("params"), Mapping) else {}
    which = given.pop("input", None)
    parts = [f"{name} {_places(value)}" for name, value in given.items() if name not in _SEEDS]
    head = f"{step.get('mutator')} of {which}" if which is not None else str(step.get("mutator"))
    return f"{head}: {'; '.join(parts)}" if parts else head


def _places(value: Any) -> str:
    """A parameter; of places the sort comes first, without its name."""
    if not isinstance(value, Mapping):
        return words(value)
    told = {name: item for name, item in value.items() if name not in (*_SEEDS, "place")}
    return ", ".join(part for part in (words(value.get("place", "")), words(told)) if part)


def _reduction(told: Mapping[str, Any], sizes: Mapping[str, int]) -> list[str]:
    """`reduced from 17 operators to 1, from 792 elements to 4: 13 candidates tried in 55.1 s, nothing left to try`."""
    outcome = str(told.get("outcome", "reduced"))
    text = _OUTCOMES.get(outcome, outcome)
    nodes = told.get("nodes")
    if outcome == "reduced":
        pair = (sizes.get("original"), sizes.get("reduced"))
        spans = [(nodes, "operators")] if isinstance(nodes, list) and len(nodes) == 2 else []
        changes = [f"from {a} {what} to {b}" for (a, b), what in (*spans, (pair, "elements")) if None not in (a, b)]
        text += f" {', '.join(changes)}" if changes else ""
    tried = []
    if "tests" in told:
        spent = f" in {told['seconds']} s" if "seconds" in told else ""
        tried.append(f"{told['tests']} {'candidate' if told['tests'] == 1 else 'candidates'} tried{spent}")
    if outcome == "reduced" and "finished" in told:
        tried.append("nothing is left to try" if told["finished"] else "not all was tried: `xbfuzz reduce` goes on")
    lines = [f"{text}: {', '.join(tried)}" if tried else text]
    lines += [f"the model stays whole: {told['whole']}"] if told.get("whole") else []
    return lines + ([str(told["detail"])] if told.get("detail") else [])


def _found(found: dict[str, Any]) -> list[str]:
    """Where and when it was found, how the model was exported, and what else the folder says."""
    run, number, date, export = (found.pop(name, None) for name in ("run", "execution", "date", "export"))
    parts = [f"by run {run}"] if run is not None else []
    parts += [f"at execution {number}"] if number is not None else []
    parts += [f"on {date}"] if date is not None else []
    lines = [f"found {', '.join(parts)}"] if parts else []
    if isinstance(export, Mapping):
        how = {name: value for name, value in export.items() if name not in ("exporter", "dynamic")}
        sizes = "with sizes left free" if export.get("dynamic") else "with the sizes of the input"
        by = {"dynamo": "torch.export", "torchscript": "TorchScript"}.get(str(export.get("exporter")), "")
        lines.append(f"exported by {by or export.get('exporter')}, {sizes}" + (f"; {words(how)}" if how else ""))
    elif export is not None:
        found = {**found, "export": export}
    return lines + [f"{name}: {words(value)}" for name, value in found.items()]
