"""A study's record as one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from statistics import median  # the standard library
from typing import Any

import numpy as np

from benchmarks.controls import wilson
from benchmarks.planted.fault import Mechanism
from benchmarks.planted.faults import CONTROLS, FAULTS
from benchmarks.planted.statistics import Estimate, Times, holm, log_rank, mean_of, ratio_and_difference
from benchmarks.planted.study import Record, whole_rounds
from benchmarks.planted.trial import Trial, fault_named

#: The arms that are compared, and the one that the claim is against.
FULL, UNIFORM = "full", "uniform"
#: Faults that uniform inputs find less often than once in so many executions are the ones that need a search.
HARD = 0.01


def times_of(trials: Iterable[Trial]) -> Times:
    """Each trial's executions to detection, or its budget."""
    pairs = [(t.detected_at or t.budget, t.detected_at is not None) for t in trials]
    return Times(tuple(float(time) for time, _ in pairs), tuple(found for _, found in pairs))


def in_whole_rounds(record: Record) -> list[Trial]:
    """The trials that comparisons may rest on."""
    rounds = whole_rounds(record)
    return [trial for trial in record.trials if trial.number < rounds]


def by_arm(record: Record) -> dict[str, dict[str, Times]]:
    """Arm → fault → times, for faults that a search has to find; trials that could not run are left out."""
    found: dict[str, dict[str, list[Trial]]] = {}
    for trial in in_whole_rounds(record):
        if fault_named(trial.fault).mechanism not in (Mechanism.CONTROL, Mechanism.INDUCTOR) and not trial.failed:
            found.setdefault(trial.arm, {}).setdefault(trial.fault, []).append(trial)
    return {arm: {name: times_of(trials) for name, trials in sorted(faults.items())} for arm, faults in found.items()}


def hard_faults(arms: dict[str, dict[str, Times]]) -> list[str]:
    """Faults that uniform inputs find slower than 1 in 100 executions."""
    return [name for name, times in arms.get(UNIFORM, {}).items() if times.per_execution < HARD]


def summarize(record: Record, rng_seed: int = 0) -> dict[str, Any]:
    """Everything that is reported. What no trial tells is absent or None."""
    arms = by_arm(record)
    hard = hard_faults(arms)
    rng = np.random.default_rng(rng_seed)
    full = [t for t in record.trials if t.arm == FULL and t.fault in FAULTS]
    compared = {arm: _compared(arms, arm, hard, rng) for arm in arms if arm != FULL and arms.get(FULL)}
    claim = compared.get(UNIFORM, {})
    return {
        "faults": len({t.fault for t in full}),
        **_funnel(full),
        "rmst_ratio": claim.get("rmst_ratio", {}).get("value"),
        "logrank_p": claim.get("logrank_p"),
        "controls_reported": sum(t.false for t in record.trials if t.fault in CONTROLS),
        "controls_executions": sum(t.executions for t in record.trials if t.fault in CONTROLS),
        "controls_near_ties": sum(t.near_ties for t in record.trials if t.fault in CONTROLS),
        "false_reports": sum(t.false for t in record.trials if t.fault in FAULTS),
        "executions": sum(t.executions for t in record.trials),
        "compared_executions": sum(t.compared for t in record.trials),
        "rounds": whole_rounds(record),
        "left_out": len(record.trials) - len(in_whole_rounds(record)),
        "hard_faults": hard,
        "recall": {
            arm: _recall(t for t in in_whole_rounds(record) if t.arm == arm and t.fault in FAULTS) for arm in arms
        },
        "rmst": {
            arm: _json(mean_of({name: times[name] for name in hard if name in times}, rng))
            for arm, times in arms.items()
            if any(name in times for name in hard)
        },
        "compared": compared,
        "confusion": _confusion(full),
        "by_fault": {name: _fault(record, arms, name) for name in {**FAULTS, **CONTROLS}},
        "about": record.about,
    }


def _funnel(trials: list[Trial]) -> dict[str, Any]:
    """How many faults came how far in at least one trial of the full search, and which did not."""
    steps = {
        "reached": {t.fault for t in trials if t.reached_at},
        "triggered": {t.fault for t in trials if t.triggered_at},
        "detected": {t.fault for t in trials if t.detected_at},
        "reduced": {t.fault for t in trials if t.after and t.after.reduced},
        "labelled": {t.fault for t in trials if t.after and t.after.label.rstrip("?") in fault_named(t.fault).labels},
    }
    tried = {t.fault for t in trials}
    return {
        **{step: len(names) for step, names in steps.items()},
        "not": {step: sorted(tried - names) for step, names in steps.items()},
    }


def _recall(trials: Iterable[Trial]) -> dict[str, Any]:
    """Trials that found their fault, with Wilson's interval."""
    listed = [t for t in trials if not t.failed]
    found = sum(t.detected_at is not None for t in listed)
    low, high = wilson(found, len(listed))
    return {"found": found, "trials": len(listed), "low": low, "high": high}


def _compared(
    arms: dict[str, dict[str, Times]], other: str, hard: list[str], rng: np.random.Generator
) -> dict[str, Any]:
    """The full search beside another arm. `rmst_ratio` is the other's restricted mean over the full search's."""
    both = sorted(set(arms[FULL]) & set(arms[other]))
    alone = {name: log_rank([(arms[FULL][name], arms[other][name])]) for name in both}
    result: dict[str, Any] = {
        "fewest_trials": min((len(arms[arm][name].times) for arm in (FULL, other) for name in both), default=0),
        "logrank_p": log_rank((arms[FULL][name], arms[other][name]) for name in both),
        "logrank_p_by_fault": alone,
        "logrank_p_holm": holm(alone),
    }
    chosen = [{name: arms[arm][name] for name in both if name in hard} for arm in (other, FULL)]
    if chosen[0]:
        ratio, difference = ratio_and_difference(chosen[0], chosen[1], rng)
        result |= {"faults": sorted(chosen[0]), "rmst_ratio": _json(ratio), "rmst_difference": _json(difference)}
    return result


def _json(estimate: Estimate) -> dict[str, float]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _confusion(trials: list[Trial]) -> dict[str, dict[str, int]]:
    """Expected label → label that was given, without its `?` → findings."""
    found: dict[str, Counter[str]] = {}
    for trial in trials:
        if trial.after is not None:
            found.setdefault(fault_named(trial.fault).label, Counter())[trial.after.label.rstrip("?")] += 1
    return {label: dict(given) for label, given in sorted(found.items())}


def _fault(record: Record, arms: dict[str, dict[str, Times]], name: str) -> dict[str, Any]:
    fault = fault_named(name)
    trials = [t for t in record.trials if t.fault == name]
    whole = [t for t in in_whole_rounds(record) if t.fault == name]
    rates = [rate for rate in record.rates if rate.fault == name]
    found: dict[str, Any] = {
        "label": fault.label,
        "about": fault.about,
        "mechanism": str(fault.mechanism),
        "minimal": fault.minimal,
        "missed": sum(t.missed for t in trials),
        "unconfirmed": sum(t.unconfirmed for t in trials),
        "false": sum(t.false for t in trials),
        "arms": {arm: _arm([t for t in whole if t.arm == arm]) for arm in dict.fromkeys(t.arm for t in whole)},
        "given": sorted({t.after.label for t in trials if t.after}),
        "sizes": [[t.after.before.get("filled"), t.after.after.get("filled")] for t in trials if t.after],
        "notes": sorted({note for t in trials for note in (*t.notes, t.failed) if note})[:3],
    }
    if rates:
        executions, struck = sum(r.executions for r in rates), sum(r.struck for r in rates)
        low, high = wilson(struck, executions)
        found["uniform_rate"] = {
            "executions": executions,
            "struck": struck,
            "rate": struck / executions,
            "low": low,
            "high": high,
        }
    return found


def _arm(trials: list[Trial]) -> dict[str, Any]:
    times = times_of(trials)
    return {
        "trials": len(trials),
        "detected": sum(times.found),
        "median": median(times.times),
        "rmst": times.restricted_mean,
        "median_seconds": round(median(t.seconds for t in trials), 3),
        "ms_per_execution": round(1e3 * sum(t.seconds for t in trials) / max(1, sum(t.executions for t in trials)), 3),
    }
