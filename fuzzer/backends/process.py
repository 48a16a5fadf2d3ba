"""A worker process and its supervision: deadlines in CPU time, a memory limit, and how it died.

One request is in flight at a time. `poll` never blocks, so that one campaign thread can look after many workers.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

import psutil

from fuzzer.backends.protocol import Frame, ProtocolError, read_frame, write_frame

#: A process that neither computes nor answers is called hung after this many deadlines of wall time.
IDLE_FACTOR = 3.0
#: How often a supervised process is looked at, in seconds.
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Limits:
    """What a request may cost: seconds of CPU time of the process and its children, and resident memory in MiB."""

    deadline_s: float
    memory_mb: int


class Ending(StrEnum):
    """How a worker can end; the words are those of the differences that `verify` reports."""

    CRASH = "crash"
    HANG = "hang"
    MEMORY = "out-of-memory"


@dataclass(frozen=True)
class Death:
    """How a worker ended: one word, one line for a reader, and the end of its standard error."""

    kind: Ending
    message: str
    signal: int | None = None
    stderr: str = ""


class Worker:
    """A worker process. `send`, then `poll` or `wait` for a `Frame` or a `Death`; after a `Death` it is over."""

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._process = subprocess.Popen(
            list(command or (sys.executable, "-m", "fuzzer.worker")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=worker_environment(environment),
            start_new_session=True,  # Ctrl-C is the campaign's; and its children can be ended with it
        )
        self._frames: queue.SimpleQueue[Frame | ProtocolError | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name=f"reads {name}").start()
        self._limits: Limits | None = None
        self._sent_at = self._looked_at = self._cpu_at_start = 0.0
        self.peak_mb = 0
        self.dead: Death | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def busy(self) -> bool:
        return self._limits is not None

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, limits: Limits) -> None:
        """Begin a request. A worker that is already gone shows up in the next `poll`."""
        if self.busy:
            raise RuntimeError(f"{self.name} already has a request in flight")
        self._limits = limits
        self._sent_at = self._looked_at = self._clock()
        self._cpu_at_start, _ = self._usage()
        self.peak_mb = 0
        with contextlib.suppress(BrokenPipeError, OSError):  # its death is told by poll, with the reason
            write_frame(self._stdin, header, payload)

    def poll(self) -> Frame | Death | None:
        """The answer if there is one; a Death where the worker died, hung or took too much; else None."""
        if self.dead is not None:
            return self.dead
        with contextlib.suppress(queue.Empty):
            return self._received(self._frames.get_nowait())
        if self._limits is not None and self._clock() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = self._clock()
            return self._over_limit(self._limits)
        return None

    def wait(self) -> Frame | Death:
        """Block until `poll` has an answer."""
        while True:
            if self.dead is not None:
                return self.dead
            try:
                return self._received(self._frames.get(timeout=LOOK_EVERY_S))
            except queue.Empty:
                answer = self.poll()
                if answer is not None:
                    return answer

    def kill(self) -> None:
        """End the process and its children. Safe to call at any time, more than once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._stdin.close()
        if self.dead is None:
            self.dead = Death(Ending.CRASH, "ended by xbfuzz")

    def _read(self) -> None:
        stream = self._process.stdout
        assert isinstance(stream, io.BufferedReader)
        while True:
            try:
                frame = read_frame(stream)
            except ProtocolError as error:
                self._frames.put(error)
                return
            self._frames.put(frame)
            if frame is None:
                return

    @property
    def _stdin(self) -> BinaryIO:
        stream = self._process.stdin
        assert isinstance(stream, io.BufferedWriter)
        return stream

    def _received(self, item: Frame | ProtocolError | None) -> Frame | Death:
        limits, self._limits = self._limits, None
        if isinstance(item, Frame):
            return item
        # The stream ended: give the process a moment to leave its exit status behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        code = self._process.poll()
        if item is not None:
            message = f"{self.name} spoke no protocol: {item}"
        elif code is not None and code < 0:
            message = f"{self.name} died of {signal.Signals(-code).name}"
        else:
            message = f"{self.name} exited with status {code}"
        if code == -signal.SIGKILL and limits is not None and self.peak_mb > limits.memory_mb * 0.8:
            return self._die(Ending.MEMORY, f"{message} at {self.peak_mb} MiB", signal_number=signal.SIGKILL)
        return self._die(Ending.CRASH, message, signal_number=-code if code is not None and code < 0 else None)

    def _over_limit(self, limits: Limits) -> Death | None:
        cpu, resident = self._usage()
        self.peak_mb = max(self.peak_mb, resident)
        if resident > limits.memory_mb:
            return self._die(Ending.MEMORY, f"{self.name} took {resident} MiB, its limit is {limits.memory_mb} MiB")
        spent, waited = cpu - self._cpu_at_start, self._clock() - self._sent_at
        if spent > limits.deadline_s:
            return self._die(Ending.HANG, f"{self.name} computed for more than {limits.deadline_s:g} s")
        if waited > limits.deadline_s * IDLE_FACTOR and spent < limits.deadline_s * 0.5:
            return self._die(Ending.HANG, f"{self.name} neither answered nor computed for {waited:.0f} s")
        if waited > limits.deadline_s * IDLE_FACTOR * 4:  # a machine so loaded that CPU time says little
            return self._die(Ending.HANG, f"{self.name} did not answer for {waited:.0f} s")
        return None

    def _usage(self) -> tuple[float, int]:
        """CPU seconds and resident MiB of the process and its children; (0, 0) once it is gone."""
        cpu, resident = 0.0, 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error), one.oneshot():
                    times = one.cpu_times()
                    cpu += times.user + times.system
                    resident += one.memory_info().rss
            times = process.cpu_times()
            cpu += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return cpu, resident // 2**20

    def _die(self, kind: Ending, message: str, *, signal_number: int | None = None) -> Death:
        death = Death(kind, message, signal_number, self._last_words())
        self.dead = death
        self._limits = None
        self.kill()
        return death

    def _last_words(self, length: int = 2000) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - length))
        return self._stderr.read().decode(errors="replace").strip()


def worker_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker: this process's, one thread a library, no compile pool, and `extra`."""
    environment = dict(os.environ)
    # Two threads on a busy machine were measured 80 times slower than one; a backend's `threads` option overrides.
    environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONHASHSEED="0")
    environment.update(extra or {})
    return environment
