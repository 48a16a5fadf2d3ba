"""A worker process and its supervision: deadlines in CPU time, a memory limit, and how it died.

One request is in flight at a time. `poll` never blocks, so that one campaign thread can look after many workers.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from typing import IO, Any, BinaryIO, cast

import psutil

from fuzzer.backends.protocol import PROGRESS, Frame, ProtocolError, encode_header, read_frame, send_frame

#: A process that neither computes nor answers is called hung after this many deadlines of wall time.
IDLE_FACTOR = 3.0
#: How often a supervised process is looked at, in seconds.
LOOK_EVERY_S = 0.2
#: How long a process may take to exit after its output was closed: torch takes a second to clear up.
LEAVE_S = 5.0
#: How many bytes a pipe is asked to hold (64 KiB by default, on Linux): a block of small inputs, or its answers.
_PIPE = 2**20
#: Characters of standard error that a Death keeps.
_WORDS = 2000
#: Bytes of standard error after which the file is cut: a model may print in a loop.
_MOST_STDERR = 16 * 2**20


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
    """How a worker ended: one word, one line for a reader, and the end of its standard error.

    `at`: where it was asked for several samples, the place of the one that it was running, if it could say so.
    """

    kind: Ending
    message: str
    signal: int | None = None
    stderr: str = ""
    at: int | None = None


class Worker:
    """A worker process. `send`, then `poll` or `wait` for a `Frame` or a `Death`; after a `Death` it is over."""

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        """`popen` makes the process, with the arguments of `subprocess.Popen`."""
        self.name = name
        self._clock = clock
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        # Appending, so that the file can be cut while the worker goes on writing.
        fcntl.fcntl(self._stderr, fcntl.F_SETFL, fcntl.fcntl(self._stderr, fcntl.F_GETFL) | os.O_APPEND)
        self._earlier_words = b""
        self._progress = tempfile.TemporaryFile()  # noqa: SIM115 - likewise
        self._process = popen(
            list(command or (sys.executable, "-m", "fuzzer.worker")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=worker_environment(environment) | {PROGRESS: str(self._progress.fileno())},
            pass_fds=(self._progress.fileno(),),
            start_new_session=True,  # Ctrl-C is the campaign's; and its children can be ended with it
        )
        self._frames: queue.SimpleQueue[Frame | ProtocolError | None] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        # Each thread owns one stream: a worker that does not read must not block the campaign either.
        self._threads = [
            threading.Thread(
                target=_read, args=(self._process.stdout, self._frames), daemon=True, name=f"reads {name}"
            ),
            threading.Thread(
                target=_write, args=(self._process.stdin, self._requests), daemon=True, name=f"writes {name}"
            ),
        ]
        for thread in self._threads:
            thread.start()
        # A request of up to so many bytes fits into an empty pipe, and so can be written without waiting.
        self._room = min(_widened(self._process.stdin), _widened(self._process.stdout)) // 2
        self._limits: Limits | None = None
        self._sent_at = self._looked_at = 0.0
        self._cpu_at_start: float | None = None  # read at the first look: most requests end before it
        self._ended = False
        self._closed_at: float | None = None
        self._fault: ProtocolError | None = None
        self.peak_mb = 0
        self.dead: Death | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def busy(self) -> bool:
        return self._limits is not None

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, limits: Limits) -> None:
        """Begin a request; never blocks. A worker that is already gone shows up in the next `poll`.

        Raises RuntimeError where a request is in flight; TypeError or ValueError on a header that is not for JSON.
        """
        if self.busy:
            raise RuntimeError(f"{self.name} already has a request in flight")
        start = encode_header(header, len(payload))
        if self.dead is not None:
            return
        self._limits = limits
        self._sent_at = self._looked_at = self._clock()
        self._cpu_at_start = None
        self.peak_mb = 0
        os.ftruncate(self._progress.fileno(), 0)
        if len(start) + len(payload) <= self._room and self._process.stdin is not None:
            # It has read all that it was sent, or it would not have answered: the pipe is empty.
            with contextlib.suppress(OSError, ValueError):  # that it is gone is told by the reader
                send_frame(cast("BinaryIO", self._process.stdin), start, payload)
        else:
            self._requests.put((start, payload))

    def poll(self) -> Frame | Death | None:
        """The answer if there is one; a Death where the worker died, hung or took too much; else None."""
        if self.dead is not None:
            return self.dead
        if self._closed_at is not None:
            return self._closed()
        try:
            item = self._frames.get_nowait()
        except queue.Empty:
            if self._clock() - self._looked_at < LOOK_EVERY_S:
                return None
            self._looked_at = self._clock()
            return self._look()
        return self._received(item)

    def wait(self) -> Frame | Death:
        """Block until `poll` has an answer."""
        answer = None
        while answer is None:
            answer = self.wait_for(LOOK_EVERY_S)
        return answer

    def wait_for(self, seconds: float) -> Frame | Death | None:
        """What `poll` answers, as soon as it does, or None after `seconds`."""
        ends = time.monotonic() + seconds
        while True:
            answer = self.poll()
            left = ends - time.monotonic()
            if answer is not None or left <= 0:
                return answer
            if self._closed_at is None:
                with contextlib.suppress(queue.Empty):
                    answer = self._received(self._frames.get(timeout=min(left, LOOK_EVERY_S)))
            else:
                time.sleep(min(left, LOOK_EVERY_S))
            if answer is not None:
                return answer

    def kill(self) -> None:
        """End the process and its children. Safe to call at any time, more than once."""
        if self.dead is None:
            self.dead = Death(Ending.CRASH, "ended by xbfuzz")
            self._limits = None
        self._end()
        self._close_files()

    @property
    def _reader(self) -> threading.Thread:
        return self._threads[0]

    def _look(self) -> Frame | Death | None:
        if self._process.poll() is not None:
            self._reader.join(0.2)
            if self._reader.is_alive():  # a child of the dead worker holds the pipe open
                self._end()
            try:
                return self._received(self._frames.get_nowait())
            except queue.Empty:
                return self._received(None)
        if os.fstat(self._stderr.fileno()).st_size > _MOST_STDERR:
            self._earlier_words = self._tail()
            os.ftruncate(self._stderr.fileno(), 0)
        return None if self._limits is None else self._over_limit(self._limits)

    def _received(self, item: Frame | ProtocolError | None) -> Frame | Death | None:
        if isinstance(item, Frame):
            self._limits = None
            return item
        self._closed_at, self._fault = self._clock(), item
        return self._closed()

    def _closed(self) -> Death | None:
        """The Death of a worker that will not answer any more, once its exit status is known or long in coming."""
        code = self._process.poll()
        if code is None and self._clock() - (self._closed_at or 0.0) < (LEAVE_S if self._fault is None else 0.5):
            return None
        if code is None:
            how = "closed its output"
        else:
            how = f"died of {_signal_name(-code)}" if code < 0 else f"exited with status {code}"
        message = f"{self.name} {how}"
        if self._fault is not None:
            message = f"{self.name} spoke no protocol: {self._fault}" + ("" if code is None else f" ({how})")
        if code == -signal.SIGKILL and self._limits is not None and self.peak_mb > self._limits.memory_mb * 0.8:
            return self._die(Ending.MEMORY, f"{message} at {self.peak_mb} MiB", signal_number=signal.SIGKILL)
        return self._die(Ending.CRASH, message, signal_number=-code if code is not None and code < 0 else None)

    def _over_limit(self, limits: Limits) -> Death | None:
        cpu, resident = self._usage()
        if resident > limits.memory_mb:  # what a forked child shares with its parent was counted twice
            _, resident = self._usage(shared_once=True)
        self.peak_mb = max(self.peak_mb, resident)
        if resident > limits.memory_mb:
            return self._die(Ending.MEMORY, f"{self.name} took {resident} MiB, its limit is {limits.memory_mb} MiB")
        self._cpu_at_start = cpu if self._cpu_at_start is None else self._cpu_at_start
        spent, waited = cpu - self._cpu_at_start, self._clock() - self._sent_at
        if spent > limits.deadline_s:
            return self._die(Ending.HANG, f"{self.name} computed for more than {limits.deadline_s:g} s")
        if waited > limits.deadline_s * IDLE_FACTOR and spent < limits.deadline_s * 0.5:
            return self._die(Ending.HANG, f"{self.name} neither answered nor computed for {waited:.0f} s")
        if waited > limits.deadline_s * IDLE_FACTOR * 4:  # a machine so loaded that CPU time says little
            return self._die(Ending.HANG, f"{self.name} did not answer for {waited:.0f} s")
        return None

    def _usage(self, *, shared_once: bool = False) -> tuple[float, int]:
        """CPU seconds and resident MiB of the process and its children; (0, 0) once it is gone.

        `shared_once`: memory that processes share is divided among them (Linux; slower).
        """
        cpu, resident = 0.0, 0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            for one in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.Error), one.oneshot():
                    times = one.cpu_times()
                    cpu += times.user + times.system
                    memory = one.memory_full_info() if shared_once else one.memory_info()
                    resident += getattr(memory, "pss", memory.rss)
            times = process.cpu_times()
            cpu += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
        return cpu, resident // 2**20

    def _die(self, kind: Ending, message: str, *, signal_number: int | None = None) -> Death:
        self._limits = None
        self._end()
        words = _without_module_list(self._tail().decode(errors="replace"))
        told = os.pread(self._progress.fileno(), 4, 0)
        at = int.from_bytes(told, "big") if len(told) == 4 else None
        death = Death(kind, message, signal_number, words[-_WORDS:].strip(), at)
        self.dead = death
        self._close_files()
        return death

    def _close_files(self) -> None:
        self._stderr.close()
        self._progress.close()

    def _end(self) -> None:
        """Kill the process and all its children, once: afterwards its number may belong to somebody else."""
        if self._ended:
            return
        self._ended = True
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):  # also those that left its process group
            children = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        self._requests.put(None)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it where no signal reaches
            self._process.wait(timeout=10)
        for thread in self._threads:
            thread.join(1)

    def _tail(self, length: int = 8192) -> bytes:
        """The end of standard error; read by position, because the worker shares this file's offset."""
        size = os.fstat(self._stderr.fileno()).st_size
        return (self._earlier_words + os.pread(self._stderr.fileno(), length, max(0, size - length)))[-length:]


def _widened(stream: IO[bytes] | None) -> int:
    """How many bytes a pipe holds, after it was asked to hold `_PIPE`; a user has only so many large ones."""
    assert stream is not None
    if not hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux has it
        return 64 * 2**10
    with contextlib.suppress(OSError):
        return fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, _PIPE)
    return fcntl.fcntl(stream, fcntl.F_GETPIPE_SZ)


def _read(stream: BinaryIO, frames: queue.SimpleQueue[Frame | ProtocolError | None]) -> None:
    """Put every frame into `frames`; then None where the stream ended, or the error that makes the rest unreadable."""
    with contextlib.closing(stream):
        while True:
            try:
                frame = read_frame(stream)
            except (ProtocolError, OSError, MemoryError) as error:
                frames.put(error if isinstance(error, ProtocolError) else ProtocolError(f"cannot read: {error!r}"))
                return
            frames.put(frame)
            if frame is None:
                return


def _write(stream: BinaryIO, requests: queue.SimpleQueue[tuple[bytes, bytes] | None]) -> None:
    """Write requests until a None. That the other side is gone is told by the reader, with the reason."""
    with contextlib.suppress(OSError), contextlib.closing(stream):
        while (request := requests.get()) is not None:
            send_frame(stream, *request)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _without_module_list(words: str) -> str:
    """Without faulthandler's list of all extension modules, which would push out what it says before."""
    return "\n".join(line for line in words.splitlines() if not line.startswith("Extension modules: "))


def worker_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a worker: this process's, one thread a library, no compile pool, and `extra`."""
    environment = dict(os.environ)
    # Two threads on a busy machine were measured 80 times slower than one; a backend's `threads` option overrides.
    environment.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONHASHSEED="0")
    environment.update(extra or {})
    return environment
