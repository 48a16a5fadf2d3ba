"""Sessions: a prepared backend in a real worker process, and a model that does whatever the first number says."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import onnx
import pytest
import torch
from torch import Tensor

from fuzzer import tensors
from fuzzer.backends.process import Ending
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Answer, Forward, Session, State, Where
from fuzzer.seeds import Seed
from fuzzer.tensors import raw_bytes
from fuzzer.trees import Leaves

MODEL = '''
import ctypes, dataclasses, os, random, sys, time, warnings
import numpy as np
import torch
from torch import nn

print("printed at import")

@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    note: str

class Behaves(nn.Module):
    """Does what `x[0]` names; `weight` is 2."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("hidden", torch.zeros(1), persistent=False)

    def forward(self, x):
        return getattr(self, NAMES[round(x[0].item())])(x)

    def double(self, x): return x * 2
    def write_input(self, x): x[1:].add_(1); return x * 1
    def write_buffer(self, x): self.count.add_(1); return x
    def write_parameter(self, x): self.weight.mul_(1.5); return x
    def negate_data(self, x): self.weight.data.neg_(); return x
    def negate_hidden(self, x): self.hidden.data.neg_(); return x
    def assign_buffer(self, x): self.count = self.count + 1; return x
    def assign_equal(self, x): self.count = self.count.clone(); return x
    def new_buffer(self, x): self.register_buffer("cached", x.clone()); return x
    def raise_error(self, x): raise ValueError("first line\\n\\n   second line")
    def recurse(self, x): return self.recurse(x)
    def draw(self, x): return torch.rand(4), torch.randn(2), float(np.random.rand()), random.random()
    def threads(self, x): return torch.get_num_threads()
    def dataclass(self, x): return Output(x * 2, "a note")

    def chatter(self, x):
        print("by print")
        sys.stdout.write("by write")
        sys.stdout.flush()
        os.write(1, b"by descriptor")
        libc = ctypes.CDLL(None)
        libc.printf(b"by printf\\n")
        libc.fflush(None)
        sys.__stdout__.write("by the first stdout")
        sys.__stdout__.flush()
        return x * 2

    def read_stdin(self, x): return sys.stdin.read()

    def leaves(self, x):
        return {"nan": float("nan"), "inf": -float("inf"), "zero": -0.0, "none": None, "text": "é", "yes": True,
                "whole": 2**60, "nested": [x, (1, {"deep": 0.1})]}

    def dtypes(self, x):
        nan = torch.tensor([float("nan"), 1.0, -0.0])
        return {"complex": torch.tensor([1 + 2j]), "bf16": nan.bfloat16(), "fp8": nan.to(torch.float8_e4m3fn),
                "half": nan.half(), "empty": torch.empty(0, 3), "sparse": torch.tensor([[0.0, 3.0]]).to_sparse(),
                "csr": torch.tensor([[0.0, 3.0]]).to_sparse_csr(), "bool": nan > 0, "lone": torch.tensor(1.5),
                "view": torch.arange(6.0).reshape(2, 3).t()}

    def unpackable(self, x): return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    def segfault(self, x): ctypes.string_at(0)
    def abort(self, x): os.abort()
    def exit(self, x): sys.exit(3)
    def killed(self, x): os.kill(os.getpid(), 9)
    def spin(self, x):
        while True: pass
    def sleep(self, x): time.sleep(100)
    def grow(self, x):
        kept = []
        while True:
            kept.append(torch.ones(25 * 2**20))

NAMES = [name for name in vars(Behaves) if not name.startswith("_") and name != "forward"]

def build(then="nothing"):
    if then == "raise": raise RuntimeError("no such weights")
    if then == "exit": os._exit(9)
    if then == "segfault": ctypes.string_at(0)
    if then == "spin":
        while True: pass
    return Behaves()

class Affine(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
    def forward(self, x): return {"product": x * self.weight, "drawn": torch.rand(2)}
'''
NAMES = [
    line.split("def ")[1].split("(")[0]
    for line in MODEL.split("class Affine")[0].splitlines()
    if line.startswith("    def ") and "forward" not in line and "__init__" not in line
]
EXAMPLE = {"x": torch.zeros(3)}


def seed(folder: Path, builder: str = "build", **more: Any) -> Seed:
    model = {"source": "builder", "path": ".", "builder": f"behaves:{builder}", "args": more.pop("args", {})}
    text = {
        "name": "behaves",
        "model": model,
        "inputs": {"x": {"kind": "floats", "shape": [3]}},
        "deadline_s": 1.5,
        "prepare_deadline_s": 60.0,
        "memory_mb": 1200,
    }
    return Seed.model_validate(text | more).at(folder)


def sample(behaviour: str) -> dict[str, Tensor]:
    return {"x": torch.tensor([float(NAMES.index(behaviour)), 0.5, -1.0])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "behaves.py").write_text(MODEL)
    return folder


@pytest.fixture(scope="module")
def shared(folder: Path, where: Where) -> Iterator[Session]:
    session = Session(seed(folder), "eager:cpu", EXAMPLE, where)
    yield session
    session.close()


@pytest.fixture
def session(shared: Session) -> Session:
    """A session that is ready; started again where a test before has killed it."""
    if shared.state is not State.READY:
        assert shared.prepare() is State.READY, shared.reason
    return shared


def leaves(answer: Answer) -> Leaves:
    assert answer.leaves is not None, answer.error
    return answer.leaves


def tensor(found: Leaves, path: str) -> Tensor:
    leaf = found[path]
    assert isinstance(leaf, Tensor)
    return leaf


class TestAnswers:
    def test_the_output_comes_back_by_path(self, session: Session) -> None:
        x = sample("double")
        answer = session.run(x)
        assert torch.equal(tensor(leaves(answer), "$"), x["x"] * 2)
        assert (answer.error, answer.changed, answer.death, answer.failure) == ("", [], None, None)
        assert 0 <= answer.seconds < 1

    def test_plain_values_survive_those_that_json_lacks_too(self, session: Session) -> None:
        found = leaves(session.run(sample("leaves")))
        assert list(found) == [
            *(".nan", ".inf", ".zero", ".none", ".text", ".yes", ".whole"),
            *(".nested[0]", ".nested[1][0]", ".nested[1][1].deep"),
        ]
        assert math.isnan(found[".nan"])  # type: ignore[arg-type]
        assert found[".inf"] == -math.inf
        assert repr(found[".zero"]) == "-0.0"
        assert found[".none"] is None
        assert (found[".text"], found[".yes"], found[".whole"]) == ("é", True, 2**60)
        assert found[".nested[1][1].deep"] == 0.1

    @pytest.mark.filterwarnings("ignore:Sparse")
    def test_every_dtype_and_layout_survives(self, session: Session) -> None:
        found = leaves(session.run(sample("dtypes")))
        nan = torch.tensor([float("nan"), 1.0, -0.0])
        assert tensor(found, ".complex").tolist() == [1 + 2j]
        for name, dtype in (("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn), ("half", torch.float16)):
            assert raw_bytes(tensor(found, f".{name}")) == raw_bytes(nan.to(dtype))
            assert tensor(found, f".{name}").dtype == dtype
        assert tensor(found, ".empty").shape == (0, 3)
        assert tensor(found, ".sparse").layout == torch.sparse_coo
        assert tensor(found, ".csr").layout == torch.sparse_csr
        assert tensor(found, ".sparse").to_dense().tolist() == [[0, 3]]
        assert tensor(found, ".bool").tolist() == [False, True, False]
        assert (tensor(found, ".lone").shape, tensor(found, ".lone").item()) == ((), 1.5)
        assert tensor(found, ".view").tolist() == [[0, 3], [1, 4], [2, 5]]

    def test_a_dataclass_is_walked(self, session: Session) -> None:
        found = leaves(session.run(sample("dataclass")))
        assert list(found) == [".logits", ".note"]

    def test_the_first_and_later_runs_draw_the_same_numbers(self, session: Session) -> None:
        runs = [leaves(session.run(sample("draw"), rng_seed=number)) for number in (1, 1, 2, 1, -1, 2**40)]
        texts = [
            str({path: getattr(leaf, "tolist", lambda leaf=leaf: leaf)() for path, leaf in run.items()}) for run in runs
        ]
        assert texts[0] == texts[1] == texts[3]
        assert len(set(texts)) == 4
        torch.manual_seed(1)
        assert torch.equal(tensor(runs[0], "[0]"), torch.rand(4))

    def test_what_a_model_prints_does_not_reach_the_protocol(self, session: Session) -> None:
        for _ in range(3):
            assert torch.equal(tensor(leaves(session.run(sample("chatter"))), "$"), sample("chatter")["x"] * 2)

    def test_a_model_that_reads_its_input_stream_gets_nothing(self, session: Session) -> None:
        assert leaves(session.run(sample("read_stdin"))) == {"$": ""}

    def test_a_worker_computes_on_one_thread(self, session: Session) -> None:
        assert leaves(session.run(sample("threads"))) == {"$": 1}
        assert session.evidence["threads"] == 1


class TestFailures:
    def test_an_exception_is_told_with_type_message_and_traceback(self, session: Session) -> None:
        answer = session.run(sample("raise_error"))
        assert answer.failure is not None
        assert (answer.failure.kind, answer.failure.type) == ("exception", "ValueError")
        assert answer.failure.message == "first line / second line"
        assert "raise_error" in answer.failure.traceback
        assert answer.error == "ValueError: first line / second line"
        assert session.state is State.READY

    def test_endless_recursion_is_an_exception_like_any_other(self, session: Session) -> None:
        answer = session.run(sample("recurse"))
        assert answer.failure is not None
        assert (answer.failure.kind, answer.failure.type) == ("exception", "RecursionError")

    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_an_answer_that_cannot_be_sent_is_the_harness_s_fault(self, session: Session) -> None:
        answer = session.run(sample("unpackable"))
        assert answer.failure is not None
        assert answer.failure.kind == "internal"
        assert leaves(session.run(sample("double")))

    def test_a_session_that_is_not_ready_runs_nothing(self, folder: Path, where: Where) -> None:
        idle = Session(seed(folder), "eager:cpu", EXAMPLE, where)
        with pytest.raises(RuntimeError, match="not ready"):
            idle.run(sample("double"))
        assert idle.weights() is None


class TestChanges:
    @pytest.mark.parametrize(
        ("behaviour", "changed"),
        [
            ("double", []),
            ("write_input", ["input x"]),
            ("write_buffer", ["buffer count"]),
            ("write_parameter", ["parameter weight"]),
            ("assign_buffer", ["buffer count"]),
            ("assign_equal", []),
            ("new_buffer", ["buffer cached"]),
        ],
    )
    def test_a_run_that_changes_something_says_what(self, session: Session, behaviour: str, changed: list[str]) -> None:
        x = sample(behaviour)
        before = x["x"].clone()
        answer = session.run(x)
        assert leaves(answer)
        assert answer.changed == changed
        assert torch.equal(x["x"], before)

    def test_only_the_content_hash_sees_what_goes_past_the_version_counter(self, session: Session) -> None:
        session.prepare()
        for behaviour in ("negate_data", "negate_hidden"):
            assert session.run(sample("double"), check=True).changed == []
            assert session.run(sample(behaviour)).changed == []
            assert session.run(sample("double"), check=True).changed == ["parameters (content hash)"]
            assert session.run(sample(behaviour), check=True).changed == []  # as it was
        weights = session.weights()
        assert weights is not None
        assert {name: value.tolist() for name, value in weights.items()} == {"weight": [2, 2, 2], "count": [0]}


class TestSeveralAtOnce:
    def test_each_sample_gets_an_answer_of_its_own(self, session: Session) -> None:
        names = ["double", "raise_error", "write_input", "double"]
        session.begin_all([Forward(tensors.encode(sample(name)), rng_seed=1) for name in names])
        first, error, changed, last = (answer for answer in session.finish_all(4) if answer is not None)
        assert torch.equal(tensor(leaves(first), "$"), sample("double")["x"] * 2)
        assert torch.equal(tensor(leaves(last), "$"), sample("double")["x"] * 2)
        assert error.failure is not None
        assert (error.failure.type, error.leaves) == ("ValueError", None)
        assert changed.changed == ["input x"]

    def test_a_death_is_that_of_the_sample_that_was_running(self, session: Session) -> None:
        session.begin_all([Forward(tensors.encode(sample(name))) for name in ("double", "killed", "double")])
        before, died, after = session.finish_all(3)
        assert died is not None
        assert died.death is not None
        assert (before, after, session.state) == (None, None, State.IDLE)


class TestDeaths:
    @pytest.mark.parametrize(
        ("behaviour", "message", "number"),
        [
            ("segfault", "died of SIGSEGV", signal.SIGSEGV),
            ("abort", "died of SIGABRT", signal.SIGABRT),
            ("exit", "exited with status 3", None),
        ],
    )
    def test_a_worker_that_dies_is_told_with_the_reason(
        self, session: Session, behaviour: str, message: str, number: int | None
    ) -> None:
        answer = session.run(sample(behaviour))
        assert answer.death is not None
        assert (answer.death.kind, answer.death.signal) == (Ending.CRASH, number)
        assert answer.error == f"eager:cpu for behaves {message}"
        assert (session.state, session.pid) == (State.IDLE, None)
        if behaviour in ("segfault", "abort"):
            assert "Fatal Python error" in answer.death.stderr
            assert f"in {behaviour}" in answer.death.stderr

    def test_it_can_be_started_again_and_answers_as_before(self, session: Session) -> None:
        starts = session.starts
        assert session.run(sample("killed")).death is not None
        assert session.prepare() is State.READY
        assert session.starts == starts + 1
        assert torch.equal(tensor(leaves(session.run(sample("double"))), "$"), sample("double")["x"] * 2)

    @pytest.mark.parametrize(("behaviour", "longest_s"), [("spin", 8), ("sleep", 12)])
    def test_finish_returns_within_about_the_deadline_when_it_hangs(
        self, session: Session, behaviour: str, longest_s: float
    ) -> None:
        began = time.monotonic()
        answer = session.run(sample(behaviour))
        assert answer.death is not None
        assert answer.death.kind is Ending.HANG
        assert 1.4 < time.monotonic() - began < longest_s

    def test_one_over_its_memory_limit_is_told(self, session: Session) -> None:
        answer = session.run(sample("grow"))
        assert answer.death is not None
        assert answer.death.kind is Ending.MEMORY
        assert "its limit is 1200 MiB" in answer.death.message

    def test_one_that_was_killed_between_runs_is_told_by_the_next(self, session: Session) -> None:
        assert session.pid is not None
        os.kill(session.pid, signal.SIGKILL)
        answer = session.run(sample("double"))
        assert answer.death is not None
        assert answer.death.message.endswith("died of SIGKILL")
        assert session.prepare() is State.READY
        assert session.pid is not None
        os.kill(session.pid, signal.SIGKILL)
        assert session.weights() is None
        assert session.state is State.IDLE


class TestPreparing:
    def test_a_backend_is_ready_with_evidence_versions_and_a_hash(self, session: Session) -> None:
        assert session.versions["torch"] == torch.__version__
        assert session.evidence["torch"] == torch.__version__
        assert len(session.weights_hash) == 16
        assert session.failure is None

    def test_polling_does_not_block_and_comes_to_ready(self, folder: Path, where: Where) -> None:
        session = Session(seed(folder), "eager:cpu", {"x": torch.zeros(2**20)}, where)  # more than a pipe holds
        began = time.monotonic()
        session.prepare_begin()
        assert session.prepare_poll() is State.PREPARING
        assert time.monotonic() - began < 0.5
        while session.prepare_poll() is State.PREPARING:
            time.sleep(0.02)
        assert session.state is State.READY
        pid = session.pid
        session.close()
        assert (session.state, session.pid) == (State.IDLE, None)
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    def test_a_model_that_cannot_be_built_is_refused_with_the_reason(self, folder: Path, where: Where) -> None:
        session = Session(seed(folder, args={"then": "raise"}), "eager:cpu", EXAMPLE, where)
        assert session.prepare() is State.REFUSED
        assert session.failure is not None
        assert session.failure.kind == "model"
        assert "no such weights" in session.reason
        assert session.pid is None
        session.close()
        assert session.state is State.REFUSED

    def test_a_backend_that_cannot_take_the_model_is_refused_with_stage_and_reason(
        self, tmp_path: Path, where: Where
    ) -> None:
        x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
        graph = onnx.helper.make_graph([onnx.helper.make_node("Hardmax", ["x"], ["y"])], "g", [x], [y])
        opset = [onnx.helper.make_opsetid("", 18)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "hardmax.onnx")
        hardmax = seed(tmp_path, model={"source": "onnx", "path": "hardmax.onnx"})
        session = Session(hardmax, "eager:cpu", EXAMPLE, where)
        assert session.prepare() is State.REFUSED
        assert session.failure is not None
        assert session.failure.kind == "unsupported"
        assert session.reason.startswith("load: this ONNX file has no PyTorch module: NotImplementedError")

    def test_a_backend_that_a_worker_does_not_know_is_unsupported_there(self, folder: Path, where: Where) -> None:
        # the command line knows it, so its plug-in is missing in the worker's interpreter: no fault of the harness
        session = Session(seed(folder), "tvm:cpu", EXAMPLE, where)
        assert session.prepare() is State.REFUSED
        assert session.failure is not None
        assert (session.failure.kind, session.failure.type) == ("unsupported", "SpecError")
        assert session.reason.startswith("plug-in: no backend is called 'tvm'")

    @pytest.mark.parametrize(
        ("then", "kind", "message"),
        [
            ("exit", Ending.CRASH, "exited with status 9"),
            ("segfault", Ending.CRASH, "died of SIGSEGV"),
            ("spin", Ending.HANG, "computed for more than 4 s"),
        ],
    )
    def test_a_worker_that_dies_while_it_prepares_is_told(
        self, folder: Path, where: Where, then: str, kind: Ending, message: str
    ) -> None:
        session = Session(seed(folder, args={"then": then}, prepare_deadline_s=4.0), "eager:cpu", EXAMPLE, where)
        assert session.prepare() is State.DEAD
        assert session.death is not None
        assert session.death.kind is kind
        assert message in session.reason
        assert "printed at import" in session.death.stderr
        assert session.pid is None


@pytest.fixture(scope="module")
def oracle(folder: Path, where: Where) -> Iterator[Session]:
    session = Session(seed(folder, "Affine"), ORACLE, EXAMPLE, where)
    assert session.prepare() is State.READY, session.reason
    yield session
    session.close()


class TestOracle:
    X: ClassVar[dict[str, Tensor]] = {"x": torch.tensor([0.7, 11.0, -3.3])}
    WEIGHT = torch.tensor([0.1, 0.2, 0.3])

    def ask(self, oracle: Session, **variant: Any) -> Leaves:
        asked = {"kind": "judge", "draws": 4, "amplitude": 1, "decide": False} | variant
        answer = oracle.run(self.X, rng_seed=5, check=True, **asked)
        assert answer.changed == []
        return leaves(answer)

    def test_it_answers_as_it_is_and_in_float64_on_the_same_inputs_and_weights(self, oracle: Session) -> None:
        found = self.ask(oracle)
        assert torch.equal(tensor(found, ".plain.product"), self.X["x"] * self.WEIGHT)
        assert torch.equal(tensor(found, ".truth.product"), self.X["x"].double() * self.WEIGHT.double())

    def test_its_draws_move_by_a_few_places_and_not_all_alike(self, oracle: Session) -> None:
        found = self.ask(oracle)
        draws = [tensor(found, f".draws[{draw}].product") for draw in range(4)]
        assert len({str(draw.tolist()) for draw in draws}) > 1
        exact = self.X["x"].double() * self.WEIGHT.double()
        for draw in draws:  # input, weight and result each move by at most a place: 2⁻²³ of the value, and rounding
            assert bool(((draw.double() - exact).abs() <= 4 * 2**-23 * exact.abs()).all())
        assert ".draws[4].product" not in found

    def test_every_run_draws_the_same_random_numbers(self, oracle: Session) -> None:
        found = self.ask(oracle)
        plain = tensor(found, ".plain.drawn")
        torch.manual_seed(5)
        assert torch.equal(plain, torch.rand(2))
        for draw in range(4):
            assert torch.allclose(tensor(found, f".draws[{draw}].drawn"), plain, rtol=1e-6)

    def test_without_truth_there_is_none(self, oracle: Session) -> None:
        found = self.ask(oracle, truth=False, draws=1)
        assert not any(path.startswith(".truth") for path in found)
