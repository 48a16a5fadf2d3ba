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

from fuzzer.backends.session import Where
from fuzzer.crashes.replay import CrashState, Replayed, diagnosed, replay
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import XbfuzzError


@dataclass
class Confirmed:
    """What came of one finding. `folder` is under `crashes/` where it reproduced, else under the run's findings."""

    id: str
    folder: Path
    replayed: Replayed | None
    error: str = ""

    @property
    def stored(self) -> bool:
        return self.replayed is not None and self.replayed.state is CrashState.REPRODUCES


class Confirmer:
    """Takes staged crash folders, gives `Confirmed`. `close` waits for the one in hand and drops the rest."""

    def __init__(self, crashes: Path, where: Where, *, private: bool) -> None:
        self._crashes = crashes
        self._where = where
        self._private = private
        self._todo: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Confirmed] = queue.SimpleQueue()
        self._stop = threading.Event()
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
        self._stop.set()
        self._todo.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while not self._stop.is_set():
            staged = self._todo.get()
            if staged is None:
                return
            self._done.put(self._confirm(staged))

    def _confirm(self, staged: Path) -> Confirmed:
        try:
            return self._replayed(staged)
        except XbfuzzError as error:
            return Confirmed(staged.name, staged, None, str(error))
        except Exception:  # recorded with the finding: a confirmation that failed is not one that did not reproduce
            return Confirmed(staged.name, staged, None, traceback.format_exc(limit=5))

    def _replayed(self, staged: Path) -> Confirmed:
        crash = load_crash(staged)
        found = replay(crash, self._where, keep_weights=True)
        if found.state is not CrashState.REPRODUCES or found.examined is None:
            return Confirmed(crash.id, staged, found)
        onnx = staged / "model.onnx"
        diagnosis = diagnosed(crash, found.examined, reproduced=True)
        home = write_crash(
            self._crashes,
            replace(crash, label=diagnosis.label, folder=None, files={}),
            weights=found.weights,
            onnx=onnx.read_bytes() if onnx.exists() else None,
            private=self._private,
        )
        return Confirmed(crash.id, home, found)
