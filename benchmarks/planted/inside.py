"""A worker without a process: the same requests, the same answers, in this process.

For backends that cannot take the process with them. Put into `fuzzer.backends.session.Where.start`; deadlines and
memory limits are not watched. A request that changes what holds for a whole process gets one of its own after all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fuzzer.backends.adapted import Adaptation
from fuzzer.backends.process import Death, Limits, Worker
from fuzzer.backends.protocol import Frame
from fuzzer.worker import Desk


class Inside:
    """What `fuzzer.backends.process.Worker` is to a session."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()
        self._desk = Desk()
        self._answer: Frame | None = None
        self._outside: Worker | None = None

    @property
    def dead(self) -> Death | None:
        return None if self._outside is None else self._outside.dead

    def send(self, header: Mapping[str, Any], payload: bytes = b"", *, limits: Limits) -> None:
        """The answer is there when this returns."""
        if header.get("do") == "prepare":
            self.kill()
            if Adaptation.from_json(header.get("adaptation") or {}).of_process:
                self._outside = Worker(self.name)
        if self._outside is not None:
            self._outside.send(header, payload, limits=limits)
        else:
            self._answer = Frame(*self._desk.answer(Frame(dict(header), payload)))

    def poll(self) -> Frame | Death | None:
        if self._outside is not None:
            return self._outside.poll()
        answer, self._answer = self._answer, None
        return answer

    def wait(self) -> Frame | Death:
        """Raises RuntimeError where nothing was asked."""
        answer = self.poll() if self._outside is None else self._outside.wait()
        if answer is None:
            raise RuntimeError(f"{self.name} has no request in flight")
        return answer

    def kill(self) -> None:
        self._desk = Desk()
        if self._outside is not None:
            self._outside.kill()
            self._outside = None
