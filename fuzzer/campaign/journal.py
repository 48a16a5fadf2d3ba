"""The journal of a run: one JSON object a line, appended and flushed; what `--resume` reads.

`kill -9` at any moment loses at most the line being written: an unfinished last line is dropped. Two campaigns in one
folder exclude each other by a lock that the system drops with the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json, write_atomically


class Journal:
    """`runs/<stamp>/events.jsonl` and `stats.json` under `out`. Use as a context manager."""

    def __init__(self, out: Path, stamp: str, *, resume: bool) -> None:
        self._lock = FileLock(out / "runs" / ".lock")
        self._out = out
        self._stamp = stamp
        self._resume = resume
        self.folder = out / "runs" / stamp

    def __enter__(self) -> Journal:
        """Raises XbfuzzError where another campaign runs in this folder, or nothing can be written there."""
        try:
            (self._out / "runs").mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise XbfuzzError(f"another campaign is running in {self._out}; use another --out, or wait") from error
        except OSError as error:
            raise self._cannot_write(self._out, error) from error
        try:
            if self._resume:
                self.folder = _latest(self._out / "runs")
            self.folder.mkdir(parents=True, exist_ok=True)
            _drop_unfinished_line(self.folder / "events.jsonl")
            self._stream = (self.folder / "events.jsonl").open("a", encoding="utf-8")
        except OSError as error:
            self._lock.release()
            raise self._cannot_write(self._out, error) from error
        except XbfuzzError:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk was told by `write`; closing tries to write once more
            self._stream.close()
        self._lock.release()

    def write(self, event: str, **facts: Any) -> None:
        """Append one event. Raises XbfuzzError where the disk is full."""
        try:
            self._stream.write(to_json({"event": event, **facts}) + "\n")
            self._stream.flush()
        except OSError as error:
            raise self._cannot_write(self.folder, error) from error

    @staticmethod
    def _cannot_write(path: Path, error: OSError) -> XbfuzzError:
        return XbfuzzError(f"cannot write under {path}: {error.strerror or error}")

    def stats(self, stats: dict[str, Any]) -> None:
        """Replace the statistics file."""
        write_atomically(self.folder / "stats.json", to_json(stats) + "\n")

    def events(self) -> Iterator[dict[str, Any]]:
        """What was written so far."""
        path = self.folder / "events.jsonl"
        if not path.exists():
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for i, line in enumerate(lines):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise XbfuzzError(f"{path}:{i + 1}: not JSON; this journal cannot be resumed") from error
            if isinstance(event, dict):
                yield event


def _drop_unfinished_line(path: Path) -> None:
    """Cut off what a killed process left of its last event, so that the next one starts on a line of its own."""
    if path.exists():
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(path, whole)


def stamp(now: Callable[[], float] = time.time) -> str:
    """A name for a run: UTC date and time, and the process, so that names sort and do not collide."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now())) + f"-{os.getpid()}"


def _latest(runs: Path) -> Path:
    found = sorted(folder for folder in runs.iterdir() if (folder / "events.jsonl").exists())
    if not found:
        raise XbfuzzError(f"there is no run to resume in {runs}")
    return found[-1]
