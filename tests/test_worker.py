"""The worker itself: what it answers to which request, and that it does not outlive its campaign."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from test_process import gone
from torch import nn

from fuzzer import tensors, worker
from fuzzer.backends import registry
from fuzzer.backends.base import Sample
from fuzzer.backends.eager import Eager
from fuzzer.backends.process import Limits, Worker
from fuzzer.backends.protocol import Frame, read_frame, write_frame
from fuzzer.errors import Unsupported
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_to_json
from fuzzer.tensors import same_bits

X = torch.tensor([1.0, 2.0])


def request(folder: Path, backend: str, builder: str = "torch.nn:ReLU") -> dict[str, Any]:
    seed = Seed.model_validate(
        {
            "name": "relu",
            "model": {"source": "builder", "builder": builder},
            "inputs": {"x": {"kind": "floats", "shape": [2]}},
        }
    )
    return {"do": "prepare", "seed": seed_to_json(seed), "base": str(folder), "backend": backend, "cache": None}


def served(*requests: tuple[dict[str, Any], bytes]) -> list[Frame]:
    """The answers of a worker's loop, run here, to these requests."""
    asked, answered = io.BytesIO(), io.BytesIO()
    for header, payload in requests:
        write_frame(asked, header, payload)
    asked.seek(0)
    worker._serve(asked, answered)
    answered.seek(0)
    return list(iter(lambda: read_frame(answered), None))  # type: ignore[arg-type]


def failures(*requests: tuple[dict[str, Any], bytes]) -> list[tuple[str, str]]:
    return [("", "") if f.failure is None else (f.failure.kind, f.failure.type) for f in served(*requests)]


class Moody(Eager):
    """A plug-in backend. It refuses samples whose sum is negative, and then gives evidence that is not for JSON."""

    runtime = "moody"
    options: ClassVar[dict[str, tuple[str, ...]]] = {}
    _odd = False

    def run(self, sample: Sample) -> Any:
        self._odd = bool(sample["x"][0] == 99)
        if sample["x"].sum() < 0:
            raise Unsupported("a negative sum", stage="run")
        return super().run(sample)

    def evidence(self) -> dict[str, Any]:
        return {"odd": torch.float32} if self._odd else {}


@pytest.fixture(scope="module", autouse=True)
def moody() -> Iterator[None]:
    registry.register(Moody)
    yield
    del registry._CLASSES["moody"]


class TestServing:
    def test_an_unknown_request_is_an_internal_error_and_the_loop_goes_on(self) -> None:
        assert failures(({"do": "dance"}, b""), ({}, b""), ({"do": None}, b"")) == [("internal", "ProtocolError")] * 3

    def test_running_before_preparing_is_an_internal_error(self) -> None:
        assert failures(({"do": "run"}, b""), ({"do": "weights"}, b"")) == [("internal", "ProtocolError")] * 2

    def test_exit_ends_the_loop(self) -> None:
        assert served(({"do": "exit"}, b""), ({"do": "dance"}, b"")) == []

    def test_a_seed_that_does_not_hold_together_is_an_internal_error(self, tmp_path: Path) -> None:
        bad = request(tmp_path, "eager:cpu") | {"seed": {"name": "x"}}
        assert failures((bad, tensors.encode({"x": X}))) == [("internal", "SeedError")]

    def test_a_payload_that_holds_no_tensors_is_an_internal_error(self, tmp_path: Path) -> None:
        good = request(tmp_path, "eager:cpu")
        assert failures((good, b"junk"), (good, tensors.encode({"x": X})), ({"do": "run"}, b"junk")) == [
            ("internal", "ValueError"),
            ("", ""),
            ("internal", "ValueError"),
        ]

    def test_a_backend_that_refuses_one_sample_is_unsupported_and_takes_the_next(self, tmp_path: Path) -> None:
        requests = [request(tmp_path, "moody:cpu"), {"do": "run"}, {"do": "run"}]
        payloads = [tensors.encode({"x": x}) for x in (X, -X, X)]
        refused = served(*zip(requests, payloads, strict=True))[1].failure
        assert refused is not None
        assert (refused.kind, refused.type) == ("unsupported", "Unsupported")
        assert "a negative sum" in refused.message
        assert failures(*zip(requests, payloads, strict=True))[2] == ("", "")

    def test_evidence_that_is_not_for_json_is_an_internal_error_not_a_death(self, tmp_path: Path) -> None:
        requests = [request(tmp_path, "moody:cpu"), {"do": "run"}, {"do": "run"}]
        payloads = [tensors.encode({"x": x}) for x in (X, torch.tensor([99.0, 0.0]), X)]
        assert failures(*zip(requests, payloads, strict=True)) == [("", ""), ("internal", "TypeError"), ("", "")]

    def test_an_exception_while_a_backend_prepares_is_unsupported_with_its_traceback(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def prepare(self: Moody, model: Any, example: Sample) -> None:
            raise KeyError("no kernel")

        monkeypatch.setattr(Moody, "prepare", prepare)
        (frame,) = served((request(tmp_path, "moody:cpu"), tensors.encode({"x": X})))
        assert frame.failure is not None
        assert (frame.failure.kind, frame.failure.type, frame.failure.stage) == ("unsupported", "KeyError", "prepare")
        assert "no kernel" in frame.failure.traceback


class TestSameBits:
    def test_it_tells_nan_payloads_signs_of_zero_dtypes_and_shapes_apart(self) -> None:
        nan = torch.tensor([float("nan")])
        other = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
        assert same_bits(nan, nan.clone())
        assert not same_bits(nan, other)
        assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
        assert not same_bits(torch.zeros(1), torch.zeros(1, dtype=torch.int32))
        assert not same_bits(torch.zeros(2, 3), torch.zeros(3, 2))


class TestChanged:
    def test_a_buffer_made_in_inference_mode_has_no_counter_and_is_compared_by_content(self) -> None:
        module = nn.Module()
        module.register_buffer("b", torch.zeros(1))
        before = {"buffer b": (module.b, worker._version(module.b))}
        with torch.inference_mode():
            module.b = torch.zeros(1) + 1
        assert worker._changed(before, {"buffer b": (module.b, worker._version(module.b))}) == ["buffer b"]


PARENT = """
import os, sys, time
from fuzzer.backends.process import Limits, Worker
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_to_json
from fuzzer.tensors import same_bits
from fuzzer import tensors
import torch
seed = Seed.model_validate({"name": "spins", "model": {"source": "builder", "path": ".", "builder": "spins:build"},
                            "inputs": {"x": {"kind": "floats", "shape": [1]}}})
worker = Worker("spins")
header = {"do": "prepare", "seed": seed_to_json(seed), "base": sys.argv[1], "backend": "eager:cpu", "cache": None}
worker.send(header, tensors.encode({"x": torch.zeros(1)}), limits=Limits(600, 10**6))
print(worker.pid, flush=True)
time.sleep(600)
"""
SPINS = """
import os, pathlib, time
child = os.fork()
if child == 0: time.sleep(600)
here = pathlib.Path(__file__).parent
(here / "pid.part").write_text(str(child))
os.rename(here / "pid.part", here / "pid")
def build():
    while True: pass
"""


class TestOrphans:
    def parent(self, folder: Path) -> tuple[subprocess.Popen[str], int]:
        """A campaign whose worker computes without end, and that worker's process."""
        (folder / "spins.py").write_text(SPINS)
        parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        return parent, int(parent.stdout.readline())

    def end(self, parent: subprocess.Popen[str]) -> None:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()

    def test_a_worker_in_the_middle_of_work_dies_with_its_campaign_and_so_do_its_children(self, tmp_path: Path) -> None:
        parent, pid = self.parent(tmp_path)
        while not (tmp_path / "pid").exists():
            assert parent.poll() is None
        self.end(parent)
        assert gone(pid, 5)
        assert gone(int((tmp_path / "pid").read_text()), 5)

    def test_one_whose_campaign_died_before_it_could_look_dies_too(self, tmp_path: Path) -> None:
        parent, pid = self.parent(tmp_path)
        self.end(parent)
        assert gone(pid, 15)
        if (tmp_path / "pid").exists():
            assert gone(int((tmp_path / "pid").read_text()), 5)


class TestRealWorker:
    def test_a_slow_exit_is_no_lost_parent(self) -> None:
        """The stream is closed at the end of `main`; what watches the parent must not take that for its death."""
        code = "import fuzzer.worker as w, time; w.main(); time.sleep(2)"
        real = Worker("slow", command=[sys.executable, "-c", code])
        real.send({"do": "exit"}, limits=Limits(60, 4096))
        assert "exited with status 0" in str(real.wait())

    def test_it_ends_by_itself_when_asked_to(self) -> None:
        real = Worker("real")
        real.send({"do": "exit"}, limits=Limits(60, 4096))
        answer = real.wait()
        assert "exited with status 0" in str(answer)
        assert real.dead is not None
        with pytest.raises(ProcessLookupError):
            os.kill(real.pid, 0)
