"""Workers and their deaths, with real processes. They speak the protocol by hand, so that none has to load torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fuzzer.backends.process import Death, Ending, Limits, Worker
from fuzzer.backends.protocol import Frame

PRELUDE = """
import json, os, signal, struct, sys, time

def reply(head=b'{"ok": true}', payload=b""):
    sys.stdout.buffer.write(b"XBF1" + struct.pack(">IQ", len(head), len(payload)) + head + payload)
    sys.stdout.buffer.flush()

def request():
    start = sys.stdin.buffer.read(16)
    if not start:
        sys.exit(0)
    head, payload = struct.unpack(">IQ", start[4:])
    return json.loads(sys.stdin.buffer.read(head)), sys.stdin.buffer.read(payload)

def tell(**values):
    reply(json.dumps({"ok": True, **values}).encode())

def allocate(mib):
    block = bytearray(mib * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    return block
"""
PLENTY = Limits(deadline_s=60, memory_mb=4096)


class Starter:
    """Starts workers that run a script, and ends them after the test."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def __call__(self, script: str) -> Worker:
        worker = Worker("worker", command=[sys.executable, "-c", PRELUDE + script])
        self.workers.append(worker)
        return worker


@pytest.fixture
def start() -> Iterator[Starter]:
    starter = Starter()
    yield starter
    for worker in starter.workers:
        worker.kill()


def ask(worker: Worker, limits: Limits = PLENTY, payload: bytes = b"") -> Frame | Death:
    worker.send({"do": "it"}, payload, limits=limits)
    return worker.wait()


def death_of(worker: Worker, limits: Limits = PLENTY, payload: bytes = b"") -> Death:
    answer = ask(worker, limits, payload)
    assert isinstance(answer, Death), answer
    return answer


def gone(pid: int, within_s: float = 10) -> bool:
    """Whether the process ends within that time; a zombie counts as ended."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


class TestAnswers:
    def test_a_worker_gets_what_was_sent_and_its_answer_comes_back(self, start: Starter) -> None:
        worker = start("while True:\n  head, body = request()\n  reply(json.dumps(head).encode(), body[::-1])")
        for payload in (b"", b"abc", bytes(range(256)) * 4096):
            worker.send({"do": "it", "x": [1, "é"]}, payload, limits=PLENTY)
            answer = worker.wait()
            assert isinstance(answer, Frame)
            assert answer.header == {"do": "it", "x": [1, "é"]}
            assert answer.payload == payload[::-1]

    def test_one_request_is_in_flight_at_a_time(self, start: Starter) -> None:
        worker = start("request(); time.sleep(60)")
        worker.send({}, limits=PLENTY)
        with pytest.raises(RuntimeError, match="in flight"):
            worker.send({}, limits=PLENTY)

    def test_a_header_that_is_not_for_json_is_refused_and_the_worker_goes_on(self, start: Starter) -> None:
        worker = start("while True:\n  request(); reply()")
        with pytest.raises(TypeError):
            worker.send({"do": object()}, limits=PLENTY)
        assert isinstance(ask(worker), Frame)

    def test_polling_and_sending_never_block(self, start: Starter) -> None:
        worker = start("time.sleep(60)")  # reads nothing, and a pipe holds 64 KiB
        began = time.monotonic()
        worker.send({}, bytes(20 * 2**20), limits=PLENTY)
        assert worker.poll() is None
        assert worker.busy
        assert time.monotonic() - began < 1.0


class TestWhatIsNoFrame:
    @pytest.mark.parametrize(
        ("script", "message"),
        [
            ("os.write(1, b'hello, I am a program that prints')", "does not hold a frame"),
            ("os.write(1, b'XBF')", "does not hold a frame"),
            ("os.write(1, b'XBF1' + struct.pack('>IQ', 10, 0) + b'{')", "ended inside a frame"),
            ("os.write(1, b'XBF1' + struct.pack('>IQ', 2, 2**30) + b'{}abc')", "ended inside a frame"),
            ("os.write(1, b'XBF1' + struct.pack('>IQ', 2**32 - 1, 0))", "header is too long"),
            ("os.write(1, b'XBF1' + struct.pack('>IQ', 2, 2**63) + b'{}')", "payload is too long"),
            ("reply(b'\\xff\\xfe')", "not JSON"),
            ("reply(b'{' * 9)", "not JSON"),
            ("reply(b'[' * 100_000)", "not JSON"),
            ("reply(b'[1]')", "not a mapping"),
        ],
    )
    def test_it_is_the_worker_s_death_with_a_clear_message(self, start: Starter, script: str, message: str) -> None:
        death = death_of(start(f"request()\n{script}"))
        assert death.kind is Ending.CRASH
        assert "worker spoke no protocol" in death.message
        assert message in death.message

    def test_a_worker_that_lives_on_after_garbage_is_ended_at_once(self, start: Starter) -> None:
        worker = start("request(); os.write(1, b'x' * 100); time.sleep(60)")
        began = time.monotonic()
        death_of(worker)
        assert time.monotonic() - began < 10
        assert gone(worker.pid)

    def test_a_cut_answer_tells_the_signal_too(self, start: Starter) -> None:
        script = "request(); os.write(1, b'XBF1' + struct.pack('>IQ', 10, 0)); os.kill(os.getpid(), signal.SIGKILL)"
        death = death_of(start(script))
        assert "ended inside a frame" in death.message
        assert "SIGKILL" in death.message
        assert death.signal == signal.SIGKILL

    def test_a_worker_that_closes_its_output_is_dead(self, start: Starter) -> None:
        death = death_of(start("request(); os.close(1); time.sleep(60)"))
        assert death.message == "worker closed its output"


class TestEndings:
    @pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT", "SIGFPE", "SIGBUS"])
    def test_a_signal_is_told_by_name(self, start: Starter, name: str) -> None:
        death = death_of(start(f"request(); os.kill(os.getpid(), signal.{name})"))
        assert (death.kind, death.message) == (Ending.CRASH, f"worker died of {name}")
        assert death.signal == getattr(signal, name)

    def test_a_signal_without_a_name_is_told_by_number(self, start: Starter) -> None:
        death = death_of(start("request(); os.kill(os.getpid(), 40)"))
        assert (death.kind, death.message, death.signal) == (Ending.CRASH, "worker died of signal 40", 40)

    @pytest.mark.parametrize(("script", "status"), [("os._exit(7)", 7), ("sys.exit(0)", 0)])
    def test_an_exit_is_told_with_its_status(self, start: Starter, script: str, status: int) -> None:
        death = death_of(start(f"request(); {script}"))
        assert (death.kind, death.message, death.signal) == (Ending.CRASH, f"worker exited with status {status}", None)

    def test_an_exception_while_it_starts_is_in_what_it_wrote(self, start: Starter) -> None:
        death = death_of(start("import no_such_module"))
        assert death.message == "worker exited with status 1"
        assert death.stderr.endswith("ModuleNotFoundError: No module named 'no_such_module'")

    def test_a_death_between_requests_is_told_by_the_next(self, start: Starter) -> None:
        worker = start("while True:\n  request(); reply()")
        assert isinstance(ask(worker), Frame)
        os.kill(worker.pid, signal.SIGKILL)
        assert death_of(worker).message == "worker died of SIGKILL"

    def test_a_dead_worker_stays_dead(self, start: Starter) -> None:
        worker = start("request(); os._exit(1)")
        first = death_of(worker)
        assert ask(worker) is first
        assert worker.poll() is first
        worker.kill()
        assert worker.dead is first

    def test_only_the_end_of_standard_error_is_kept(self, start: Starter) -> None:
        death = death_of(
            start("request(); sys.stderr.write('a' * 50_000 + 'the end'); sys.stderr.flush(); os._exit(1)")
        )
        assert death.stderr.endswith("aaathe end")
        assert len(death.stderr) == 2000

    def test_a_worker_that_writes_without_end_does_not_fill_the_disk(self, start: Starter) -> None:
        worker = start("""
while True:
  head, _ = request()
  for _ in range(100):
    os.write(2, b"x" * 2**20); time.sleep(0.005)
  os.write(2, b"the end")
  reply()
""")
        assert isinstance(ask(worker), Frame)
        assert os.stat(f"/proc/{worker.pid}/fd/2").st_size < 64 * 2**20
        os.kill(worker.pid, signal.SIGKILL)
        assert death_of(worker).stderr.endswith("xxxthe end")


class TestHangs:
    def test_one_that_computes_is_ended_after_its_cpu_time(self, start: Starter) -> None:
        worker = start("request()\nwhile True: pass")
        death = death_of(worker, Limits(0.4, 4096))
        assert (death.kind, death.message) == (Ending.HANG, "worker computed for more than 0.4 s")
        assert gone(worker.pid)

    def test_so_is_one_whose_child_computes(self, start: Starter) -> None:
        death = death_of(start("request()\nif os.fork() == 0:\n  while True: pass\nos.wait()"), Limits(0.4, 4096))
        assert "computed for more than" in death.message

    @pytest.mark.parametrize("script", ["time.sleep(60)", "os.kill(os.getpid(), signal.SIGSTOP)"])
    def test_one_that_sleeps_or_is_stopped_is_ended_after_three_deadlines(self, start: Starter, script: str) -> None:
        worker = start(f"request(); {script}")
        began = time.monotonic()
        death = death_of(worker, Limits(0.3, 4096))
        assert death.kind is Ending.HANG
        assert "neither answered nor computed" in death.message
        assert 0.9 <= time.monotonic() - began < 10
        assert gone(worker.pid)

    def test_one_that_never_reads_its_request_is_ended_too(self, start: Starter) -> None:
        assert death_of(start("time.sleep(60)"), Limits(0.2, 4096), bytes(2**20)).kind is Ending.HANG

    def test_the_deadline_counts_from_the_request_not_from_the_start(self, start: Starter) -> None:
        worker = start("""
def spin(seconds):
  ends = time.process_time() + seconds
  while time.process_time() < ends: pass
while True:
  request(); spin(0.25); reply()
""")
        answers = [ask(worker, Limits(0.5, 4096)) for _ in range(4)]
        assert all(isinstance(answer, Frame) for answer in answers)


class TestMemory:
    LIMIT = Limits(30, 300)

    def test_a_worker_over_its_limit_is_ended(self, start: Starter) -> None:
        worker = start("request()\nkept = []\nwhile True: kept.append(allocate(20)); time.sleep(0.01)")
        death = death_of(worker, self.LIMIT)
        assert death.kind is Ending.MEMORY
        assert "its limit is 300 MiB" in death.message
        assert 300 < worker.peak_mb < 2000

    def test_what_a_child_takes_counts(self, start: Starter) -> None:
        death = death_of(
            start("request()\nif os.fork() == 0: kept = allocate(400); time.sleep(60)\ntime.sleep(60)"), self.LIMIT
        )
        assert death.kind is Ending.MEMORY

    def test_what_a_child_shares_with_it_does_not_count_twice(self, start: Starter) -> None:
        worker = start("request()\nkept = allocate(200)\nif os.fork() == 0: time.sleep(60)\ntime.sleep(0.5); reply()")
        assert isinstance(ask(worker, self.LIMIT), Frame)

    def test_a_kill_from_outside_near_the_limit_is_put_down_to_memory(self, start: Starter) -> None:
        worker = start("request(); kept = allocate(290); time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)")
        death = death_of(worker, self.LIMIT)
        assert (death.kind, death.signal) == (Ending.MEMORY, signal.SIGKILL)

    def test_one_far_from_the_limit_is_not(self, start: Starter) -> None:
        worker = start("request(); time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)")
        assert death_of(worker, self.LIMIT).kind is Ending.CRASH


class TestChildren:
    @pytest.mark.parametrize("first", ["pass", "os.setsid()"])
    def test_they_are_ended_with_their_worker_even_from_a_session_of_their_own(
        self, start: Starter, first: str
    ) -> None:
        worker = start(
            f"pid = os.fork()\nif pid == 0:\n  {first}\n  time.sleep(60)\nrequest(); tell(pid=pid); request()"
        )
        answer = ask(worker)
        assert isinstance(answer, Frame)
        child = int(answer.header["pid"])
        assert psutil.pid_exists(child)
        worker.kill()
        assert gone(child)

    def test_one_that_holds_the_pipe_open_does_not_hide_the_death(self, start: Starter) -> None:
        worker = start("request()\nif os.fork() == 0: time.sleep(60)\nos.kill(os.getpid(), signal.SIGSEGV)")
        began = time.monotonic()
        assert death_of(worker).message == "worker died of SIGSEGV"
        assert time.monotonic() - began < 10


class TestLeaks:
    def test_many_lives_leave_no_descriptors_no_threads_and_no_zombies(self, start: Starter) -> None:
        def lives() -> None:
            for script in (
                "while True:\n  request(); reply()",
                "request(); os._exit(1)",
                "request(); os.write(1, b'garbage' * 9); time.sleep(60)",
                "request()\nif os.fork() == 0: time.sleep(60)\nos._exit(1)",
            ):
                worker = start(script)
                ask(worker, payload=bytes(2**20))
                worker.kill()
                worker.kill()
            unread = start("time.sleep(60)")
            unread.send({}, bytes(2**20), limits=PLENTY)
            unread.kill()

        lives()
        me = psutil.Process()
        before = me.num_fds(), threading.active_count()
        for _ in range(4):
            lives()
        assert (me.num_fds(), threading.active_count()) == before
        assert [child for child in me.children() if child.status() == psutil.STATUS_ZOMBIE] == []

    def test_a_program_that_forgets_its_workers_ends_cleanly_and_so_do_they(self, tmp_path: Path) -> None:
        script = (
            "import sys\n"
            "from fuzzer.backends.process import Limits, Worker\n"
            "command = [sys.executable, '-c', 'import sys; sys.stdin.read()']\n"
            "worker = Worker('forgotten', command=command)\n"
            "worker.send({}, bytes(100), limits=Limits(60, 4096))\n"
            "print(worker.pid)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert gone(int(done.stdout))
