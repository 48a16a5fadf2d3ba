"""A worker without a process: the same requests, the same answers, in this process.

For backends that cannot take the process with them. Put into `fuzzer.backends.session.Where.start`; deadlines and
memory limits are not watched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fuzzer.backends.process import Limits
from fuzzer.backends.protocol import Frame
from fuzzer.worker import Desk


class Inside:
    """What `fuzzer.backends.process.Worker` is to a session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self.dead = None
        self._desk = Desk()
        self._answer: Frame | None = None

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, limits: Limits) -> None:
        """The answer is there when this returns."""
        self._answer = Frame(*self._desk.answer(Frame(dict(header), payload)))

    def poll(self) -> Frame | None:
        answer, self._answer = self._answer, None
        return answer

    def wait(self) -> Frame:
        """Raises RuntimeError where nothing was asked."""
        answer = self.poll()
        if answer is None:
            raise RuntimeError(f"{self.name} has no request in flight")
        return answer

    def kill(self) -> None:
        self._desk = Desk()
