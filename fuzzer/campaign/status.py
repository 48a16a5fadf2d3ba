"""The state of a campaign for a person: lines redrawn in place on a terminal, a plain line now and then elsewhere.

`look` reads the campaign, `Meter` remembers what a rate and an age need, `screen` and `line` are pure text; `Status` is
the thin part that writes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from fuzzer.backends.session import State
from fuzzer.campaign.findings import Standing

if TYPE_CHECKING:
    from fuzzer.campaign.loop import Campaign

#: Rates are those of the last so many seconds.
WINDOW_S = 10.0
#: Seconds between two drawings on a terminal, and between two lines elsewhere.
REDRAW_S, LINE_S = 0.5, 10.0
_BAR = 24
#: What a terminal that is too small to tell is taken for.
_SIZE = (80, 24)


@dataclass(frozen=True)
class BackendState:
    """One target over all seeds. `seeds`: how many have it; `ready` of them have a process that is prepared."""

    executions: int = 0
    mismatches: int = 0
    seeds: int = 0
    ready: int = 0
    compiling: int = 0
    deaths: int = 0
    given_up: int = 0


@dataclass(frozen=True)
class Snapshot:
    """A campaign at one moment. `elapsed_s` in seconds; `corpus` counts inputs; `labels`: findings by label.

    `prepared` of `targets` (seed and backend) have been ready once. `compiling` names what is being prepared, `deaths`
    counts the processes of references and targets that died; they are started again.
    """

    elapsed_s: float
    executions: int
    inputs: int
    corpus: int
    backends: Mapping[str, BackendState]
    labels: Mapping[str, int]
    standings: Mapping[str, int]
    confirming: int
    compiling: Sequence[str]
    workers: int
    deaths: int
    prepared: int
    targets: int
    interrupted: bool = False

    @property
    def findings(self) -> int:
        return sum(self.labels.values())


@dataclass(frozen=True)
class Rates:
    """`now`: executions a second of each target over the last seconds. Ages in seconds; None where nothing was seen."""

    now: Mapping[str, float] = field(default_factory=dict)
    feature_age_s: float | None = None
    finding_age_s: float | None = None


class Meter:
    """Makes rates and ages of the snapshots that it is shown, oldest first."""

    def __init__(self) -> None:
        self._past: deque[tuple[float, dict[str, int]]] = deque()
        self._corpus = self._findings = -1
        self._feature_at: float | None = None
        self._finding_at: float | None = None

    def __call__(self, seen: Snapshot) -> Rates:
        now = seen.elapsed_s
        if self._corpus >= 0 and seen.corpus > self._corpus:  # what a resumed run begins with is not new
            self._feature_at = now
        if self._findings >= 0 and seen.findings > self._findings:
            self._finding_at = now
        self._corpus, self._findings = seen.corpus, seen.findings
        counts = {name: backend.executions for name, backend in seen.backends.items()}
        self._past.append((now, counts))
        while len(self._past) > 2 and self._past[1][0] <= now - WINDOW_S:
            self._past.popleft()
        then, before = self._past[0]
        span = now - then
        rates = {name: (count - before.get(name, 0)) / span if span > 0 else 0.0 for name, count in counts.items()}
        ages = [None if at is None else now - at for at in (self._feature_at, self._finding_at)]
        return Rates(rates, *ages)


def look(campaign: Campaign) -> Snapshot:
    """What there is to see of a campaign that runs."""
    backends: dict[str, Counter[str]] = {}
    compiling: list[str] = []
    prepared = targets = workers = deaths = 0
    for lane in campaign.lanes:
        deaths += lane.reference_deaths
        workers += sum(session.pid is not None for session in lane.sessions)
        compiling += [f"{s.backend} for {lane.name}" for s in lane.sessions if s.state is State.PREPARING]
        for target in lane.targets:
            if target.session is None:
                continue
            deaths += target.deaths
            targets += 1
            prepared += target.session.prepare_s > 0.0
            backends.setdefault(target.spec, Counter()).update(
                executions=target.executions,
                mismatches=target.outcomes["mismatch"],
                seeds=1,
                ready=int(target.runs),
                compiling=int(target.session.state is State.PREPARING),
                deaths=target.deaths,
                given_up=int(target.over),
            )
    findings = list(campaign.ledger.findings.values())
    return Snapshot(
        elapsed_s=campaign.elapsed_s,
        executions=campaign.executions,
        inputs=campaign.inputs,
        corpus=sum(len(lane.stream.corpus) for lane in campaign.lanes),
        backends={name: BackendState(**counts) for name, counts in backends.items()},
        labels=Counter(finding.label for finding in findings),
        standings=Counter(str(finding.standing) for finding in findings),
        confirming=campaign.confirming,
        compiling=compiling,
        workers=workers,
        deaths=deaths,
        prepared=prepared,
        targets=targets,
        interrupted=campaign.interrupted,
    )


def line(seen: Snapshot) -> str:
    """One plain line: what a log has of it."""
    rate = seen.executions / max(seen.elapsed_s, 1e-9)
    text = f"{seen.executions} exec, {rate:.1f}/s, {seen.prepared}/{seen.targets} targets ready, "
    text += f"{seen.findings} findings ({seen.standings.get(Standing.STORED, 0)} stored)"
    return text + (f", {seen.confirming} being confirmed" if seen.confirming else "")


def screen(
    seen: Snapshot, rates: Rates, *, budget_s: float | None, max_execs: int | None, size: tuple[int, int]
) -> list[str]:
    """What a terminal of `size` (columns, rows) shows: lines that fit into it."""
    columns, rows = size
    lines = [
        _goal(seen, budget_s, max_execs),
        f"executions {seen.executions:>9,}  {sum(rates.now.values()):.1f} a second, {seen.inputs:,} inputs",
        f"corpus     {seen.corpus:>9,}  last new feature {_age(rates.feature_age_s)}",
        f"findings   {seen.findings:>9,}  {_standings(seen, rates)}",
        f"workers    {seen.workers:>9,}  {_workers(seen)}",
    ]
    lines += _backends(seen, rates)
    lines += [
        f"  {count:>4}  {label}" for label, count in sorted(seen.labels.items(), key=lambda one: (-one[1], one[0]))
    ]
    if len(lines) > rows - 1:
        lines = [*lines[: max(1, rows - 2)], f"  … {len(lines) - max(1, rows - 2)} more lines"]
    return [text if len(text) < columns else text[: max(0, columns - 2)] + "…" for text in lines]


def _goal(seen: Snapshot, budget_s: float | None, max_execs: int | None) -> str:
    if budget_s is not None:
        done, text = seen.elapsed_s / budget_s, f"{clock_text(seen.elapsed_s)} of {clock_text(budget_s)}"
    else:
        done = seen.executions / max(max_execs or 1, 1)
        text = f"{clock_text(seen.elapsed_s)}, {seen.executions:,} of {max_execs or 0:,} executions"
    full = round(min(max(done, 0.0), 1.0) * _BAR)
    text = f"time       {text}  [{'=' * full}{' ' * (_BAR - full)}]"
    if seen.interrupted:
        return f"{text}  interrupted, saving"
    return f"{text}  confirming what was found" if done >= 1 and seen.confirming else text


def _standings(seen: Snapshot, rates: Rates) -> str:
    known = [
        f"{count} {standing}" for standing, count in sorted(seen.standings.items()) if standing != Standing.PENDING
    ]
    parts = [*known, *([f"{seen.confirming} being confirmed"] if seen.confirming else [])]
    if seen.findings and rates.finding_age_s is not None:
        parts.append(f"last {_age(rates.finding_age_s)}")
    return ", ".join(parts) or "none yet"


def _workers(seen: Snapshot) -> str:
    deaths = f"{seen.deaths} died and started again" if seen.deaths else ""
    compiling = f"compiling {', '.join(seen.compiling)}" if seen.compiling else ""
    return "; ".join(part for part in (deaths, compiling) if part) or "all ready"


def _backends(seen: Snapshot, rates: Rates) -> list[str]:
    if not seen.backends:
        return []
    wide = max(7, *(len(name) for name in seen.backends))
    lines = [f"  {'backend':<{wide}}  {'a second':>8}  {'executions':>10}  {'differ':>6}  seeds ready"]
    for name, one in seen.backends.items():
        state = f"{one.ready} of {one.seeds}"
        state += f", {one.compiling} compiling" if one.compiling else ""
        state += f", {one.given_up} given up" if one.given_up else ""
        state += f", died {one.deaths}×" if one.deaths else ""
        rate = rates.now.get(name, 0.0)
        lines.append(f"  {name:<{wide}}  {rate:>8.1f}  {one.executions:>10,}  {one.mismatches:>6,}  {state}")
    return lines


def _age(seconds: float | None) -> str:
    return "not yet" if seconds is None else f"{clock_text(seconds)} ago"


def clock_text(seconds: float) -> str:
    """Seconds as a clock shows them: 0:07, 12:34, 1:02:03."""
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def redraws(stream: TextIO, variables: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal on which the cursor can be moved."""
    return stream.isatty() and variables.get("TERM", "dumb") != "dumb"


class Status:
    """Watches a campaign: called at every turn of its loop, it draws when it is time to.

    `stream` is where it writes; nothing where `quiet`. It is redrawn in place only on a terminal that can do so.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet: bool,
        budget_s: float | None,
        max_execs: int | None,
        clock: Callable[[], float] = time.monotonic,
        size: Callable[[], tuple[int, int]] = lambda: shutil.get_terminal_size(_SIZE),
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._goal = (budget_s, max_execs)
        self._clock = clock
        self._size = size
        self._terminal = redraws(stream, os.environ)
        self._meter = Meter()
        self._next = clock()
        self._drawn = 0

    def __call__(self, campaign: Campaign) -> None:
        if self._quiet or self._clock() < self._next:
            return
        self._next = self._clock() + (REDRAW_S if self._terminal else LINE_S)
        seen = look(campaign)
        if self._terminal:
            budget_s, max_execs = self._goal
            self._draw(screen(seen, self._meter(seen), budget_s=budget_s, max_execs=max_execs, size=self._size()))
        else:
            self._write(f"[{seen.elapsed_s:6.0f} s] {line(seen)}\n")

    def close(self) -> None:
        """Leave the last drawing where it stands, and go on below it."""
        if self._drawn:
            self._write("\n")
            self._drawn = 0

    def _draw(self, lines: Sequence[str]) -> None:
        """Over the last drawing: up to its first line, each line erased before it is written, what is left erased."""
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(up + "".join(f"\r\x1b[2K{text}\n" for text in lines) + "\x1b[J")
        self._drawn = len(lines)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
