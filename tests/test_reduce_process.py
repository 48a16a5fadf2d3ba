"""Reduction where a backend dies, and where candidates fail otherwise: spare processes, and findings of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from campaign_runs import TARGET
from crash_samples import builder_seed, pool_crash

from fuzzer.backends.process import Worker
from fuzzer.backends.session import Session, State, Where
from fuzzer.crashes.reduction import reduce_crash, write_reduced
from fuzzer.crashes.slips import keep_slips
from fuzzer.crashes.store import load_crash, write_crash

NAN = float("nan")

DIES = """import os

import torch


class Dies(torch.nn.Module):
    def forward(self, x):
        if x.isnan().any():
            os.abort()
        return x * 2
"""

TWO_FAULTS = """import torch


class TwoFaults(torch.nn.Module):
    def forward(self, x):
        if torch.get_num_threads() == 2:  # the target
            if len(x) < 3:
                raise ValueError("too short")
            return x.nan_to_num(0) * 2
        return x * 2
"""


def test_a_spare_process_that_was_started_before_stands_in_for_the_next_that_dies(tmp_path: Path, cache: Path) -> None:
    inputs = {"x": {"kind": "floats", "shape": ["n"]}}
    seed = builder_seed(tmp_path, DIES, "dies:Dies", inputs=inputs, dims={"n": {"size": 2}})
    started: list[int] = []

    def start(name: str, **how: object) -> Worker:
        worker = Worker(name)
        started.append(worker.pid)
        return worker

    session = Session(seed, "eager:cpu", {"x": torch.ones(2)}, Where(cache, start))
    deadly, harmless = {"x": torch.tensor([NAN, 1.0])}, {"x": torch.tensor([3.0, 1.0])}
    try:
        session.keep_spare()
        assert session.prepare() is State.READY
        assert len(started) == 1, "no spare before anything has died"
        assert session.run(deadly).death is not None
        assert session.prepare() is State.READY
        assert (len(started), session.pid) == (3, started[1])
        assert session.run(deadly).death is not None
        assert session.prepare() is State.READY
        assert session.pid == started[2], "the spare, not one that was started now"
        session.take(seed, harmless)  # a spare that holds another model is told of the new one
        assert session.prepare() is State.READY
        assert session.run(deadly).death is not None
        assert session.prepare() is State.READY
        assert session.pid == started[3]
        leaves = session.run(harmless).leaves
        assert leaves is not None
        assert leaves["$"].tolist() == [6.0, 2.0]  # type: ignore[union-attr]
    finally:
        session.close()


@pytest.mark.slow
def test_another_fault_met_on_the_way_is_reproduced_and_stored_as_a_crash_of_its_own(
    tmp_path: Path, cache: Path
) -> None:
    inputs = {"x": {"kind": "floats", "shape": ["n"]}}
    seed = builder_seed(tmp_path / "code", TWO_FAULTS, "two_faults:TwoFaults", inputs=inputs, dims={"n": {"size": 6}})
    x = torch.tensor([1.0, 2.0, NAN, 4.0, 5.0, 6.0])
    folder = tmp_path / "crashes"
    crash = load_crash(write_crash(folder, replace(pool_crash(seed, TARGET), inputs={"x": x}, original={"x": x})))
    where = Where(cache, Worker)
    found = reduce_crash(crash, where, budget_s=60, graph=False)
    write_reduced(folder, found)
    assert found.after.elements == 3, "shorter ones fail otherwise"
    (aside,) = keep_slips(crash, found.slips, where, folder, today=lambda: "2026-01-01")
    assert aside.folder is not None, aside.detail
    other = load_crash(aside.folder)
    assert (other.id, other.kind, other.blame) == (aside.id, "exception", "target")
    assert len(other.inputs["x"]) < 3
    assert other.found == {"reducing": crash.id, "date": "2026-01-01"}
    (again,) = keep_slips(crash, found.slips, where, folder)
    assert (again.folder, again.detail) == (None, "is stored already")
