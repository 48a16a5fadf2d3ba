"""What the study's runs come to: parts joined, and the table of docs/study.md."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

#: Between these lines of docs/study.md stands the table.
START, END = "<!-- table: python -m benchmarks.study --table -->", "<!-- end of the table -->"
_HEAD = (
    "| model | target | executions | pass | mismatch | vacuous | judged | findings | seconds |",
    "|---|---|---|---|---|---|---|---|---|",
)


def report(done: Mapping[str, Any], executions: int) -> dict[str, Any]:
    """The whole result: models by name, what they come to, and the machine that this is."""
    machine = {"processor": platform.machine(), "torch": torch.__version__, "python": platform.python_version()}
    return _summed({"executions": executions, "machine": machine, "models": dict(done)})


def merged(parts: Sequence[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Any]:
    """One result of several, whose models are told in `order`, others after them.

    Raises ValueError where there are none, where they had other budgets or machines, or where two have the same model.
    """
    if not parts:
        raise ValueError("nothing to merge")
    first = parts[0]
    models: dict[str, Any] = {}
    for part in parts:
        for key in ("executions", "machine"):
            if part[key] != first[key]:
                raise ValueError(f"parts of different {key}: {first[key]} and {part[key]}")
        twice = sorted(set(models) & set(part["models"]))
        if twice:
            raise ValueError(f"in two parts: {', '.join(twice)}")
        models |= part["models"]
    names = [name for name in order if name in models] + [name for name in models if name not in order]
    return _summed({**first, "models": {name: models[name] for name in names}})


def _summed(result: dict[str, Any]) -> dict[str, Any]:
    """`ok` counts the models that had all executions, something compared and nothing vacuous."""
    models = result["models"].values()
    return result | {"ok": sum(m["ok"] for m in models), "vacuous": sum(m["vacuous"] for m in models)}


def table(result: Mapping[str, Any]) -> str:
    """The result as a Markdown table, and a line that sums it up."""
    rows = [_row(name, model) for name, model in result["models"].items()]
    machine = result["machine"]
    total = sum(model["executions"] for model in result["models"].values())
    summary = (
        f"{result['ok']} of {len(rows)} models ran {result['executions']} executions each ({total} in all) with "
        f"{result['vacuous']} vacuous. torch {machine['torch']}, Python {machine['python']}, {machine['processor']}."
    )
    return "\n".join([*_HEAD, *rows, "", summary])


def _row(name: str, model: Mapping[str, Any]) -> str:
    outcomes = model["outcomes"]
    findings = ", ".join(f"{label} × {count}" for label, count in model["findings"].items()) or model["not_fuzzed"]
    cells = [name, ", ".join(model["targets"]), model["executions"], outcomes.get("pass", 0)]
    cells += [outcomes.get("mismatch", 0), model["vacuous"], model.get("judged", ""), findings, round(model["seconds"])]
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def with_table(page: str, text: str) -> str:
    """`page` with `text` in the place of its table. Raises ValueError where the page has no place for one."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the page has no lines {START!r} and {END!r}")
    return f"{before}{START}\n{text}\n{END}{after}"
