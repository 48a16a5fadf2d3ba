"""What the tests of campaigns share: a builder that misbehaves on demand, seeds for it, and xbfuzz as a user runs it.

The target is `eager:cpu?threads=2`, by which the builder knows that it is the target: the cheapest process that can be
made to disagree, to die and to hang without any compiler.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from crash_samples import builder_seed, pool_crash
from torch import Tensor

from fuzzer.crashes.crash import Crash

TARGET = "eager:cpu?threads=2"
ROOT = Path(__file__).parent.parent

TRICK = '''from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).parent


class Trick(nn.Module):
    """A linear layer; what else it does depends on `mode`, on who runs it, and on which input it is."""

    def __init__(self, mode: str = "agrees") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.mode = mode
        self.calls = 0
        if os.environ.get("TRICK_LATE"):
            with open(os.environ["TRICK_LATE"], "ab") as stream:
                stream.write(b".")
                if stream.tell() == 4:  # after the reference, the oracle and one target
                    time.sleep(5)

    def forward(self, x):
        y = self.linear(x)
        target = torch.get_num_threads() == 2
        if self.mode == "counts-rows":
            return y * 16.0 ** len(x)
        if self.mode == "few-rows":
            if len(x) > 4:
                raise ValueError("too many rows")
            rows = HERE / f"rows-{os.getpid()}"
            rows.write_text(str(max(len(x), int(rows.read_text()) if rows.exists() else 0)))
            return y
        index = torch.initial_seed() % 1_000_003  # the generators are seeded anew for each input
        if self.mode == "reference-dies" and not target and index == 5:
            ctypes.string_at(0)
        if target:
            self.calls += 1
            time.sleep(float(os.environ.get("TRICK_SLEEP", "0")))
            while index >= 6 and "TRICK_HOLD" in os.environ and Path(os.environ["TRICK_HOLD"]).exists():
                time.sleep(0.02)
            return self.on_target(x, y, index)
        return y

    def on_target(self, x, y, index):
        if self.mode == "dies" and index >= 1:
            ctypes.string_at(0)
        if self.mode == "hangs" and index == 2:
            while True:
                pass
        if self.mode == "waits" and index == 3 and (HERE / "wait").exists():
            (HERE / "pid").write_text(str(os.getpid()))
            time.sleep(60)
        if self.mode == "drops-nan":
            if (HERE / "first").exists() and self.calls > 2:
                return y
            flag = HERE / "flaky"  # names the process that drops NaN, in its first two calls
            if flag.exists():
                flag.write_text(flag.read_text() or str(os.getpid()))
                if self.calls > 2 or flag.read_text() != str(os.getpid()):
                    return y
            y = torch.where(torch.isnan(y), 0.0, y)
            return y + 1e6 if bool((x == 1234).all()) else y
        return y
'''


def seed_folder(
    folder: Path, modes: Mapping[str, str], *, targets: tuple[str, ...] = (TARGET,), extra: str = ""
) -> Path:
    """A folder with the builder and a seed for each name → mode; `extra` is YAML that every seed gets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trick.py").write_text(TRICK)
    for name, mode in modes.items():
        (folder / f"{name}.yaml").write_text(
            f"name: {name}\n"
            f"model: {{source: builder, path: ., builder: 'trick:Trick', args: {{mode: {mode}}}}}\n"
            "inputs:\n  x: {kind: floats, shape: [2, 4]}\n"
            f"backends: {json.dumps(list(targets))}\n{extra}"
        )
    return folder


def trick_crash(folder: Path, name: str, x: Tensor, mode: str = "drops-nan", source: str = TRICK) -> Crash:
    """A crash of the trick, as a campaign stores it; the builder's file is put into `folder`."""
    model = {"source": "builder", "path": ".", "builder": "trick:Trick", "args": {"mode": mode}}
    inputs = {"x": {"kind": "floats", "shape": [2, 4]}}
    seed = builder_seed(folder, source, "trick:Trick", name=name, model=model, inputs=inputs)
    return replace(pool_crash(seed, TARGET), inputs={"x": x}, original=None, recipe=None)


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "fuzzer", *map(str, args)]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra}


def xbfuzz(*args: str | Path, cwd: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run xbfuzz to its end."""
    return subprocess.run(
        command(*args), cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=240, check=False
    )


def start(*args: str | Path, cwd: Path, **extra: str) -> subprocess.Popen[str]:
    """Start xbfuzz and go on."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*args), cwd=cwd, env=environment(**extra), stdout=pipe, stderr=pipe, text=True)


def events(out: Path) -> list[dict[str, Any]]:
    """Every whole line of the latest run's journal."""
    journals = sorted((out / "runs").glob("*/events.jsonl"))
    if not journals:
        return []
    return [json.loads(line) for line in journals[-1].read_text().splitlines(keepends=True) if line.endswith("\n")]


def count(out: Path, event: str) -> int:
    return sum(one["event"] == event for one in events(out))


def until(condition: Callable[[], bool], *, process: subprocess.Popen[str] | None = None, seconds: float = 180) -> None:
    """Wait for `condition`. Fails where the process ends first, or after `seconds`; then it is killed."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            if process is not None:
                process.kill()
            raise AssertionError("waited in vain")
        assert process is None or process.poll() is None, f"ended early: {process and process.communicate()}"
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)
