"""What a diagnosis found, in lines: interventions, stages, and what can be switched on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuzzer.crashes.crash import Crash


def lines(crash: Crash) -> list[str]:
    """All that reruns said of a crash; none where it was not diagnosed."""
    found = [_trial(trial) for trial in crash.diagnosis.get("interventions", [])]
    found += [f"stage {text}" for text in crash.diagnosis.get("stages", [])]
    if crash.stage:
        found.append(f"drift enters at: {crash.stage}")
    return found + mitigation_lines(crash)


def mitigation_lines(crash: Crash) -> list[str]:
    """What restores agreement, with its cost, then what does not."""
    ordered = sorted(crash.mitigations, key=lambda one: not one.get("restores"))
    return [_mitigation(one) for one in ordered]


def _trial(trial: Mapping[str, Any]) -> str:
    text = f"{trial.get('changed', '')}: {trial.get('outcome', '')}"
    before, after = trial.get("before", ""), trial.get("after", "")
    if before:
        text += f", {before} → {after or 'agreement' if trial.get('outcome') == 'gone' else after or '-'}"
    return text + (f" ({trial['detail']})" if trial.get("detail") else "")


def _mitigation(one: Mapping[str, Any]) -> str:
    where = " on both sides" if one.get("sides") == "both" else ""
    if not one.get("restores"):
        why = f" ({one['detail']})" if one.get("detail") else ""
        return f"does not help{where}: {one.get('what', '')}{why}"
    held = ", ".join(name for name, state in dict(one.get("tiers", {})).items() if state == "pass")
    what, how = str(one.get("what", "")), str(one.get("how", ""))
    text = f"helps{where}: {what}{f' [{how}]' if how and how not in what else ''}; {held or 'nothing'} agree then"
    with_it, without = one.get("latency_ms"), one.get("unmitigated_ms")
    if isinstance(with_it, int | float) and isinstance(without, int | float) and without > 0:
        text += f"; a run takes {with_it:.3g} ms, {with_it / without:.2g} times the {without:.3g} ms without it"
    return text
