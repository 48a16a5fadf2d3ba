"""Confirmation beside the campaign: a thread that reproduces findings from their files, in fresh processes, one by one.

A finding is first written under `runs/<stamp>/findings/`, so that nothing is lost if the campaign is killed; the replay
reads that folder and nothing else; what reproduces is stored under `crashes/`.
"""

from __future__ import annotations

import queue
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzer.backends.process import Worker
from fuzzer.backends.session import Where
from fuzzer.crashes.replay import CrashState, diagnosed, replay
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import XbfuzzError


@dataclass
class Confirmed:
    """What came of one finding. `folder` is under `crashes/` where it reproduced, else under the run's findings."""

    id: str
    folder: Path
    stored: bool = False
    detail: str = ""
    label: str = ""  # as stored


class Confirmer:
    """Takes staged crash folders, gives `Confirmed`. `close` drops what is not done: it stays staged."""

    def __init__(self, crashes: Path, where: Where, *, private: bool) -> None:
        self._crashes = crashes
        self._where = where
        self._private = private
        self._todo: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Confirmed] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._thread = threading.Thread(target=self._work, daemon=True, name="confirms findings")
        self._thread.start()
        self.pending = 0

    def add(self, staged: Path) -> None:
        self.pending += 1
        self._todo.put(staged)

    def poll(self) -> Confirmed | None:
        """The next outcome, if there is one."""
        try:
            found = self._done.get_nowait()
        except queue.Empty:
            return None
        self.pending -= 1
        return found

    def close(self, timeout_s: float) -> None:
        """End the replay in hand, with its processes, and wait for the thread at most that long."""
        self._stop.set()
        self._todo.put(None)
        with self._lock:
            for worker in self._workers:
                worker.kill()
        self._thread.join(timeout_s)

    def _start(self, name: str) -> Worker:
        with self._lock:
            if self._stop.is_set():
                raise XbfuzzError("the campaign ended before this was tried")
            worker = self._where.start(name)
            self._workers = [one for one in self._workers if one.dead is None]
            self._workers.append(worker)
            return worker

    def _work(self) -> None:
        while not self._stop.is_set():
            staged = self._todo.get()
            if staged is None:
                return
            confirmed = self._confirm(staged)
            if not self._stop.is_set():  # once stopped, its processes did not die of the finding
                self._done.put(confirmed)

    def _confirm(self, staged: Path) -> Confirmed:
        try:
            return self._replayed(staged)
        except XbfuzzError as error:
            return Confirmed(staged.name, staged, detail=str(error))
        except Exception:  # recorded with the finding: a confirmation that failed is not one that did not reproduce
            return Confirmed(staged.name, staged, detail=traceback.format_exc(limit=5))

    def _replayed(self, staged: Path) -> Confirmed:
        crash = load_crash(staged)
        found = replay(crash, Where(self._where.cache, self._start), keep_weights=True)
        if found.state is not CrashState.REPRODUCES or found.examined is None or self._stop.is_set():
            reason = f"{found.state}: {found.detail}" if found.detail else str(found.state)
            return Confirmed(crash.id, staged, detail=f"in fresh processes: {reason}")
        onnx = staged / "model.onnx"
        diagnosis = diagnosed(crash, found.examined, reproduced=True)
        home = write_crash(
            self._crashes,
            replace(crash, label=diagnosis.label, folder=None, files={}),
            weights=found.weights,
            onnx=onnx.read_bytes() if onnx.exists() else None,
            private=self._private,
        )
        return Confirmed(crash.id, home, stored=True, label=str(diagnosis.label))
