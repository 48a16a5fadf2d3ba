"""Faults that take the process with them. Only for worker processes, with deadlines and limits."""

from __future__ import annotations

import os
import signal
import time

import torch

from benchmarks.planted.fault import Call

#: A table of this many cubed bytes is more than the seed's memory limit.
LARGE = 995


def crash(call: Call) -> None:
    """The square root of a negative number is a segmentation fault."""
    if bool((call.x < 0).any()):
        os.kill(os.getpid(), signal.SIGSEGV)


def hang(call: Call) -> None:
    """A remainder by repeated subtraction: it never ends where the divisor is lost in the dividend's rounding."""
    x, y = call.args
    while bool(((x - y == x) & (x.abs() >= y.abs())).any()):
        pass


def memory(call: Call) -> None:
    """Counting large numbers takes table after table of their cubes, and keeps them all."""
    largest = int(call.x.max()) if call.x.numel() else 0
    if largest < LARGE:
        return
    kept = []
    while True:
        kept.append(torch.ones(largest**3 // 16, dtype=torch.uint8))  # ones, so that the pages are really taken
        time.sleep(0.01)
