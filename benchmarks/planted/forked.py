"""Workers that start in milliseconds: forks of a process that has imported PyTorch and done nothing else.

What a fault that kills its worker costs is starting the next one, and that is nearly all imports. A fork shares them
and nothing more: no model was prepared, no operator ran. Everything else is `fuzzer.backends.process.Worker`.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any, BinaryIO

from fuzzer.backends.process import Worker
from fuzzer.backends.protocol import PROGRESS

#: What the process that forks has imported.
_IMPORTS = ["torch", "torchvision", "fuzzer.worker", "fuzzer.crashes.replay", "benchmarks.planted.backend"]


def worker(name: str, **how: Any) -> Worker:
    """A worker, forked. Raises TypeError where a `command` is asked for: another interpreter cannot be forked."""
    return Worker(name, popen=Fork, **how)  # type: ignore[arg-type]  # what a worker asks of its process


class Fork:
    """What `subprocess.Popen` is to a worker. `args` is not run: a fork serves as `python -m fuzzer.worker` does."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        stderr: BinaryIO,
        env: Mapping[str, str],
        pass_fds: tuple[int],
        start_new_session: bool,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTS)
        theirs, mine = os.pipe()
        answers, words = os.pipe()
        numbers = (theirs, words, stderr.fileno(), *pass_fds)
        self._process = context.Process(target=_serve, args=(*map(_Descriptor, numbers), dict(env)))
        self._process.start()
        os.close(theirs)
        os.close(words)
        self.stdin: BinaryIO = os.fdopen(mine, "wb")
        self.stdout: BinaryIO = os.fdopen(answers, "rb")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status, the negative number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        """As `poll`, at most so many seconds later."""
        self._process.join(timeout)
        return self._process.exitcode


class _Descriptor:
    """A file descriptor that travels to the process being started."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.number)

    def __setstate__(self, state: Any) -> None:
        self.number = state.detach()


def _serve(
    requests: _Descriptor,
    answers: _Descriptor,
    errors: _Descriptor,
    progress: _Descriptor,
    environment: Mapping[str, str],
) -> None:
    os.setsid()
    os.environ.update(environment)
    os.environ[PROGRESS] = str(progress.number)  # the number that it has here
    for there, here in ((requests, 0), (answers, 1), (errors, 2)):
        os.dup2(there.number, here)
        os.close(there.number)
    from fuzzer import worker as served

    served.main()
