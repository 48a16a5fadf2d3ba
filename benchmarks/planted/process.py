"""Faults that take the process with them: when they strike, and how. Only for workers with deadlines and limits."""

from __future__ import annotations

import os
import signal
import time

import torch

from benchmarks.planted.fault import Call

#: Numbers from here on are too large to count.
LARGE = 995
#: Bytes of memory that are taken at a time.
_CHUNK = 2**26


def crash(call: Call) -> None:
    """The square root of a negative number is a segmentation fault."""
    call.acted = bool((call.x < 0).any())


def hang(call: Call) -> None:
    """A remainder by repeated subtraction never ends where the divisor is lost in the dividend's rounding."""
    x, y = call.args
    call.acted = bool(((x - y == x) & (x.abs() >= y.abs())).any())


def memory(call: Call) -> None:
    """Counting large numbers takes more and more memory."""
    call.acted = call.x.numel() > 0 and int(call.x.max()) >= LARGE


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def spin() -> None:
    while True:
        pass


def swell() -> None:
    kept = []
    while True:
        kept.append(torch.ones(_CHUNK, dtype=torch.uint8))  # ones, so that the pages are really taken
        time.sleep(0.02)
