"""Confirmation beside the campaign: a thread that reproduces findings from their files, in fresh processes, one by one.

A finding is first written under `runs/<stamp>/findings/`, so that nothing is lost if the campaign is killed; the replay
reads that folder and nothing else; what reproduces is stored under `crashes/`. Only then is its input reduced, in the
processes that have just reproduced it, and stored once more where the smaller one reproduces in fresh ones too. Then
it is diagnosed, on the smaller input. Last its model is taken apart: tier 2 and the diagnosis ask for the layers of the
whole, and what they said stays. Findings that wait for an earlier step go before those that wait for a later one, and a
crash says which steps its turn did not come for.
"""

from __future__ import annotations

import queue
import threading
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzzer.backends.process import Worker
from fuzzer.backends.session import Where
from fuzzer.crashes.crash import Crash, seed_of, with_activations
from fuzzer.crashes.diagnosing import diagnose_crash
from fuzzer.crashes.reduction import reduce_crash, write_reduced
from fuzzer.crashes.replay import CrashState, close_bench, diagnosed, fresh_bench, replay
from fuzzer.crashes.sides import export_found
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import XbfuzzError
from fuzzer.verify.examine import Bench
from fuzzer.verify.observation import observe_finding


@dataclass
class Confirmed:
    """What came of one finding. `folder` is under `crashes/` where it reproduced, else under the run's findings.

    A finding is told when it is stored, when it is reduced, and when it is diagnosed; the last time it is `final`.
    """

    id: str
    folder: Path
    stored: bool = False
    detail: str = ""
    label: str = ""  # as stored
    final: bool = True


class Confirmer:
    """Takes staged crash folders, gives `Confirmed`. `close` drops what is not done: it stays staged.

    `reduce_s`: how long to look for a smaller input for each crash, and again for a smaller graph; 0: not at all.
    `diagnose_s`: so for its cause.
    """

    def __init__(
        self, crashes: Path, where: Where, *, private: bool, reduce_s: float = 0.0, diagnose_s: float = 0.0
    ) -> None:
        self._crashes = crashes
        self._where = where
        self._private = private
        self._reduce_s = reduce_s
        self._diagnose_s = diagnose_s
        self._todo: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
        self._to_reduce: list[Confirmed] = []
        self._to_diagnose: list[Confirmed] = []
        self._to_take_apart: list[Confirmed] = []
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
        self.pending -= found.final
        return found

    def close(self, timeout_s: float) -> None:
        """End the replay in hand, with its processes, and wait for the thread at most that long."""
        self._stop.set()
        self._todo.put(None)
        with self._lock:
            for worker in self._workers:
                worker.kill()
        self._thread.join(timeout_s)

    def _start(self, name: str, **how: Any) -> Worker:
        with self._lock:
            if self._stop.is_set():
                raise XbfuzzError("the campaign ended before this was tried")
            worker = self._where.start(name, **how)
            self._workers = [one for one in self._workers if one.dead is None]
            self._workers.append(worker)
            return worker

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._to_reduce and self._todo.empty():
                self._reduce(self._to_reduce.pop(0), None)
                continue
            if self._to_diagnose and self._todo.empty():
                self._diagnose(self._to_diagnose.pop(0))
                continue
            if self._to_take_apart and self._todo.empty():
                self._tell(self._taken_apart(self._to_take_apart.pop(0)))
                continue
            staged = self._todo.get()
            if staged is None:
                return
            self._confirm(staged)

    def _tell(self, confirmed: Confirmed) -> None:
        if not self._stop.is_set():  # once stopped, its processes did not die of the finding
            self._done.put(confirmed)

    def _confirm(self, staged: Path) -> None:
        bench: Bench | None = None
        try:
            crash = load_crash(staged)
            where = Where(self._where.cache, self._start)
            bench = fresh_bench(seed_of(crash), crash.reference, crash.target, where)
            confirmed = self._replayed(staged, crash, bench, where)
        except XbfuzzError as error:
            confirmed = Confirmed(staged.name, staged, detail=str(error))
        except Exception:  # recorded with the finding: a confirmation that failed is not one that did not reproduce
            confirmed = Confirmed(staged.name, staged, detail=traceback.format_exc(limit=5))
        try:
            self._tell(confirmed)
            if confirmed.final:
                return
            if not self._todo.empty():
                self._to_reduce.append(confirmed)
                return
            self._reduce(confirmed, bench)
        finally:
            if bench is not None:
                close_bench(bench)

    def _replayed(self, staged: Path, crash: Crash, bench: Bench, where: Where) -> Confirmed:
        found = replay(crash, where, keep_weights=True, bench=bench)
        if found.state is not CrashState.REPRODUCES or found.examined is None or self._stop.is_set():
            reason = f"{found.state}: {found.detail}" if found.detail else str(found.state)
            return Confirmed(crash.id, staged, detail=f"in fresh processes: {reason}")
        onnx = staged / "model.onnx"
        diagnosis = diagnosed(crash, found.examined, reproduced=True)
        exported = export_found(bench.target.evidence)
        waits = {"reduction": {"outcome": "waiting", "detail": "its turn has not come; `xbfuzz reduce` looks further"}}
        about = {**crash.found, **exported, **(waits if self._reduce_s > 0 else {})}
        named = replace(crash, label=diagnosis.label, found=about, folder=None, files={})
        home = write_crash(
            self._crashes,
            named,
            weights=found.weights,
            onnx=onnx.read_bytes() if onnx.exists() else None,
            private=self._private,
        )
        return Confirmed(crash.id, home, stored=True, label=str(diagnosis.label), final=self._later_s <= 0)

    @property
    def _later_s(self) -> float:
        """What is left to do with a crash once it is stored."""
        return self._reduce_s + self._diagnose_s

    def _reduce(self, confirmed: Confirmed, bench: Bench | None) -> None:
        """Tell the crash reduced, and put it aside for the next step, where either is wanted."""
        if self._reduce_s > 0:
            confirmed = self._reduced(confirmed, bench)
        if self._diagnose_s > 0:
            self._to_diagnose.append(confirmed)
            self._tell(replace(confirmed, final=False))
        else:
            self._last(confirmed)

    def _diagnose(self, confirmed: Confirmed) -> None:
        self._last(self._diagnosed(confirmed))

    def _last(self, confirmed: Confirmed) -> None:
        """Tell it, and put it aside to be taken apart, where that is wanted."""
        if self._reduce_s > 0:
            self._to_take_apart.append(confirmed)
        self._tell(replace(confirmed, final=self._reduce_s <= 0))

    def _taken_apart(self, confirmed: Confirmed) -> Confirmed:
        """Look for a smaller graph of a crash that is stored. If anything goes wrong it stays as it is."""
        try:
            crash = load_crash(confirmed.folder)
            where = Where(self._where.cache, self._start)
            found = reduce_crash(crash, where, budget_s=self._reduce_s, notes=self._crashes, inputs=False)
            if self._stop.is_set():  # what its processes said then is not the finding's doing
                raise XbfuzzError("the campaign ended before this was done")
            write_reduced(self._crashes, found, private=self._private)
            label, detail = str(found.crash.label), found.graph_sentence
        except XbfuzzError as error:
            label, detail = confirmed.label, f"not taken apart: {error}"
        except Exception:  # recorded with the finding, which stays as it was
            label, detail = confirmed.label, f"not taken apart: {traceback.format_exc(limit=5)}"
        detail = "; ".join(filter(None, (confirmed.detail, detail)))
        return replace(confirmed, label=label, detail=detail, final=True)

    def _diagnosed(self, confirmed: Confirmed) -> Confirmed:
        """Diagnose a crash that is stored. If anything goes wrong it stays as it is."""
        try:
            crash = load_crash(confirmed.folder)
            new, found = diagnose_crash(crash, Where(self._where.cache, self._start), budget_s=self._diagnose_s)
            if self._stop.is_set():  # what its processes said then is not the finding's doing
                raise XbfuzzError("the campaign ended before this was done")
            if new is not crash:
                write_crash(self._crashes, new, private=self._private)
            detail = f"{len(found.trials)} interventions, {new.label}" if new is not crash else found.detail
            confirmed = replace(confirmed, label=str(new.label))
        except XbfuzzError as error:
            detail = f"not diagnosed: {error}"
        except Exception:  # recorded with the finding, which stays as it was
            detail = f"not diagnosed: {traceback.format_exc(limit=5)}"
        return replace(confirmed, detail="; ".join(filter(None, (confirmed.detail, detail))), final=True)

    def _reduced(self, confirmed: Confirmed, bench: Bench | None) -> Confirmed:
        """Reduce a crash that is stored, and look where its drift starts. If anything goes wrong it stays as it is."""
        label = confirmed.label
        try:
            where = Where(self._where.cache, self._start)
            crash = load_crash(confirmed.folder)
            # The model stays whole until tier 2 and the diagnosis have asked for its layers.
            how: Any = {"notes": self._crashes, "bench": bench, "graph": False}
            found = reduce_crash(crash, where, budget_s=self._reduce_s, **how)
            crash = self._observed(found.crash, where)
            if self._stop.is_set():  # what its processes said then is not the finding's doing
                raise XbfuzzError("the campaign ended before this was done")
            write_crash(self._crashes, crash, private=self._private)
            label = str(crash.label)
            detail = found.input_sentence
        except XbfuzzError as error:
            detail = f"not reduced: {error}"
        except Exception:  # recorded with the finding, which stays as it was
            detail = f"not reduced: {traceback.format_exc(limit=5)}"
        return replace(confirmed, label=label, detail=detail, final=True)

    @staticmethod
    def _observed(crash: Crash, where: Where) -> Crash:
        """The crash with the layer where its drift starts; as it was where a side raises or dies: it has no layers."""
        if crash.signature.cls in ("execution", "state"):
            return crash
        bench = fresh_bench(seed_of(crash), crash.reference, crash.target, where)
        try:
            return with_activations(crash, observe_finding(bench, crash.inputs, crash.rng_seed))
        finally:
            close_bench(bench)
