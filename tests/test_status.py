"""The state of a campaign at a glance: redrawn in place on a terminal, plain lines elsewhere, nothing that wraps."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from dataclasses import replace
from pathlib import Path

import pytest
from campaign_runs import command, environment, seed_folder, xbfuzz
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.campaign.status import BackendState, Meter, Rates, Snapshot, Status, clock_text, line, redraws, screen

SEEN = Snapshot(
    elapsed_s=83.0,
    executions=2717,
    inputs=1024,
    corpus=143,
    backends={"inductor:cpu": BackendState(1302, 3, 3, 2, 1), "onnxruntime:cpu": BackendState(1415, 11, 3, 3, 0, 2)},
    labels={"order/nms?": 2, "numeric/nonfinite?": 1},
    standings={"stored": 2, "pending": 1},
    confirming=1,
    compiling=["inductor:cpu for digits"],
    workers=7,
    deaths=2,
    prepared=5,
    targets=6,
)


def shown(seen: Snapshot = SEEN, rates: Rates | None = None, budget_s: float | None = 600.0) -> str:
    given_rates = rates or Rates({"inductor:cpu": 12.5, "onnxruntime:cpu": 15.25}, 3.0, 61.0)
    max_execs = None if budget_s is not None else 5434
    return "\n".join(screen(seen, given_rates, budget_s=budget_s, max_execs=max_execs, size=(120, 40)))


@pytest.mark.parametrize(
    "words",
    [
        "1:23 of 10:00",
        "executions     2,717  27.8 a second, 1,024 inputs",
        "corpus           143  last new feature 0:03 ago",
        "findings           3  2 stored, 1 being confirmed, last 1:01 ago",
        "workers            7  2 died and started again; compiling inductor:cpu for digits",
        "inductor:cpu         12.5       1,302       3  2 of 3, 1 compiling",
        "onnxruntime:cpu      15.2       1,415      11  3 of 3, died 2×",
        "     2  order/nms?\n     1  numeric/nonfinite?",
    ],
)
def test_a_reader_sees_everything_in_one_look(words: str) -> None:
    assert words in shown()


def test_the_bar_follows_the_budget_or_the_executions() -> None:
    assert f"[{'=' * 3}{' ' * 21}]" in shown()
    assert f"1:23, 2,717 of 5,434 executions  [{'=' * 12}{' ' * 12}]" in shown(budget_s=None)
    assert "[========================]  confirming what was found" in shown(budget_s=80.0)
    assert "interrupted, saving" in shown(replace(SEEN, interrupted=True))


def test_before_anything_happened_it_says_so() -> None:
    nothing = replace(SEEN, labels={}, standings={}, confirming=0, compiling=[], deaths=0, corpus=0)
    assert "findings           0  none yet" in shown(nothing)
    assert "last new feature not yet" in shown(nothing, Rates())
    assert "workers            7  all ready" in shown(nothing)


COUNTS = st.integers(0, 10**12)
SECONDS = st.floats(0, 1e9)
SNAPSHOTS = st.builds(
    Snapshot,
    SECONDS,
    *[COUNTS] * 3,
    st.dictionaries(
        st.text(st.characters(codec="ascii", exclude_categories=["C"])), st.builds(BackendState, *[COUNTS] * 7)
    ),
    *[st.dictionaries(st.sampled_from(["order/tie?", "numeric/rounding", "stored", "pending"]), COUNTS)] * 2,
    COUNTS,
    st.lists(st.just("inductor:cpu for a seed with a name"), max_size=9),
    *[COUNTS] * 4,
    st.booleans(),
)


@given(SNAPSHOTS, st.integers(2, 200), st.integers(3, 60))
def test_nothing_is_wider_or_higher_than_the_terminal(seen: Snapshot, columns: int, rows: int) -> None:
    lines = screen(seen, Rates(), budget_s=600.0, max_execs=None, size=(columns, rows))
    assert all(len(text) < columns for text in lines)
    assert len(lines) < rows


@given(SECONDS)
def test_a_clock_reads_back_as_its_seconds(seconds: float) -> None:
    parts = [int(part) for part in clock_text(seconds).split(":")]
    assert sum(part * 60**i for i, part in enumerate(reversed(parts))) == int(seconds)


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    meter = Meter()
    counts = [0, 0, 100, 200, 300]
    found = [
        meter(replace(SEEN, elapsed_s=10.0 * i, backends={"x": BackendState(count)})).now["x"]
        for i, count in enumerate(counts)
    ]
    assert found == [0.0, 0.0, 10.0, 10.0, 10.0]


def test_an_age_starts_with_what_is_new_and_not_with_what_was_there() -> None:
    meter = Meter()
    assert meter(replace(SEEN, elapsed_s=1.0)).feature_age_s is None, "a resumed run begins with a corpus"
    assert meter(replace(SEEN, elapsed_s=2.0, corpus=144)).feature_age_s == 0.0
    later = meter(replace(SEEN, elapsed_s=5.0, corpus=144, labels={"order/tie?": 9}))
    assert (later.feature_age_s, later.finding_age_s) == (3.0, 0.0)


def test_a_log_gets_a_plain_line() -> None:
    assert line(SEEN) == "2717 exec, 32.7/s, 5/6 targets ready, 3 findings (2 stored), 1 being confirmed"


def test_quiet_writes_nothing() -> None:
    stream = io.StringIO()
    status = Status(stream, quiet=True, budget_s=1.0, max_execs=None)
    status(None)  # type: ignore[arg-type]
    status.close()
    assert stream.getvalue() == ""


def test_only_a_terminal_that_can_move_its_cursor_is_redrawn() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        assert redraws(stream, {"TERM": "xterm"})
        assert not redraws(stream, {"TERM": "dumb"})
        assert not redraws(stream, {})
    os.close(ours)
    assert not redraws(io.StringIO(), {"TERM": "xterm"})


def terminal(said: str, rows: int = 40) -> list[str]:
    """What a screen shows after `said`: line feeds, carriage returns, cursor up, erasing of lines and of the rest."""
    lines, row, column = [""], 0, 0
    for up, erase, text in re.findall(r"\x1b\[(\d+)A|(\x1b\[2K|\x1b\[J|\r|\n)|([^\x1b\r\n]+)", said):
        if up:
            row = max(0, row - int(up))
        elif erase == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif erase == "\r":
            column = 0
        elif erase == "\x1b[2K":
            lines[row] = ""
        elif erase == "\x1b[J":
            lines[row:] = [lines[row][:column]]
        else:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        assert len(lines) <= rows
    return lines


def on_a_terminal(words: list[str], cwd: Path, columns: int = 100, **extra: str) -> tuple[int, str, str]:
    """Run xbfuzz with standard error on a terminal; gives exit status, standard output, and what the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    variables = environment(TERM="xterm", COLUMNS=str(columns), LINES="40", **extra)
    process = subprocess.Popen(words, cwd=cwd, env=variables, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said = b""
    ends = time.monotonic() + 240
    while time.monotonic() < ends:
        ready, _, _ = select.select([ours], [], [], 0.2)
        try:
            said += os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
    out, _ = process.communicate(timeout=30)
    os.close(ours)
    return process.returncode, out, said.decode()


@pytest.mark.slow
def test_a_campaign_on_a_terminal_is_redrawn_in_place_and_its_summary_comes_below(tmp_path: Path, cache: Path) -> None:
    seeds = seed_folder(tmp_path / "seeds", {"plain": "agrees", "odd": "drops-nan"})
    words = command("run", seeds, "--max-execs", "60", "--out", tmp_path / "out", "--cache", cache)
    status, out, said = on_a_terminal(words, tmp_path)
    assert status in (0, 1), said
    assert said.count("\x1b[2K") > 10, "it was drawn more than once"
    screen_lines = terminal(said)
    for start in ("time  ", "executions", "corpus", "findings", "workers"):
        assert sum(text.startswith(start) for text in screen_lines) == 1, (start, screen_lines)
    (row,) = (text for text in screen_lines if "eager:cpu?threads=2" in text)
    assert int(row.split()[2]) > 0
    assert "of 60 executions" in screen_lines[0]
    assert "executions in" in out


def test_elsewhere_there_are_plain_lines(tmp_path: Path, cache: Path) -> None:
    seeds = seed_folder(tmp_path / "seeds", {"plain": "agrees"})
    done = xbfuzz("run", seeds, "--max-execs", "4", "--out", tmp_path / "out", "--cache", cache, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert re.match(r"\[ +\d+ s\] 0 exec, 0\.0/s, 0/1 targets ready, 0 findings \(0 stored\)\n", done.stderr)
