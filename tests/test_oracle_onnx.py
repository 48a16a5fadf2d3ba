"""The oracle of an ONNX file that has no torch module: float64, noise, and a fault seen by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from fuzzer.backends.onnx_oracle import OnnxNodes, widened
from fuzzer.backends.oracle import Oracle
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Session, State, Where
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.seeds import InputSpec, ModelSpec, Seed
from fuzzer.trees import flatten
from fuzzer.verify.examine import DRAWS, ask_oracle
from fuzzer.verify.noise import OracleAnswer, noise_floor

torch.set_num_threads(1)
WEIGHT = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
X = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))


def file_of(folder: Path, nodes: list[Any], dtype: int = TensorProto.FLOAT) -> Path:
    """A file from x (n, 64) to y through `nodes`, with the weight w."""
    weight = numpy_helper.from_array(WEIGHT.numpy(), "w")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])]
    outputs = [helper.make_tensor_value_info("y", dtype, ["n", "m"])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path = folder / "model.onnx"
    onnx.save(proto, str(path))
    return path


def oracle_of(path: Path, *, exact: bool = False) -> Oracle:
    inputs = {"x": InputSpec(kind="floats", shape=[2, 64], exact=exact)}
    seed = Seed(name="tiny", model=ModelSpec(source="onnx", path="model.onnx"), inputs=inputs).at(path.parent)
    oracle = Oracle(BackendSpec.parse("oracle:cpu"))
    oracle.prepare(Model(seed, None, path, "as the test wants it"), {"x": X})
    return oracle


def asked(oracle: Oracle, x: Tensor = X, draws: int = 8) -> OracleAnswer:
    variant = {"kind": "judge", "draws": draws, "amplitude": 1, "rng_seed": 0}
    return OracleAnswer.from_leaves(flatten(oracle.run_variant({"x": x}, variant)))


PRODUCT = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]


def test_the_truth_is_the_formula_in_float64(tmp_path: Path) -> None:
    found = asked(oracle_of(file_of(tmp_path, PRODUCT)))
    expected = torch.tanh(X.double() @ WEIGHT.double())
    assert found.truth is not None
    torch.testing.assert_close(found.truth[".y"], expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(found.plain[".y"], expected.float(), rtol=1e-5, atol=1e-5)


def test_the_noise_is_that_of_a_product_of_64_terms(tmp_path: Path) -> None:
    """A sum of n terms rounds by some √n ulp of its largest: 64 terms of about 1 by 1e-7 to 1e-5."""
    floor = noise_floor(".y", asked(oracle_of(file_of(tmp_path, [PRODUCT[0], helper.make_node("Neg", ["h"], ["y"])]))))
    assert floor is not None
    assert 1e-7 < float(floor.median()) < 1e-5


def test_what_chooses_and_copies_moves_nothing(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Flatten", ["h"], ["y"])]
    floor = noise_floor(".y", asked(oracle_of(file_of(tmp_path, nodes), exact=True)))
    assert floor is not None
    assert float(floor.max()) == 0.0


def test_an_exact_input_stays_and_the_results_computed_from_it_move(tmp_path: Path) -> None:
    nodes = [helper.make_node("Floor", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])]
    edge = torch.full((2, 64), 2.0)  # one place down would be 1
    floor = noise_floor(".y", asked(oracle_of(file_of(tmp_path, nodes), exact=True), edge))
    assert floor is not None
    assert 0 < float(floor.max()) < 1e-5


def test_an_exponent_of_two_stays_two(tmp_path: Path) -> None:
    two = helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2)))
    squares = oracle_of(file_of(tmp_path, [two, PRODUCT[0], helper.make_node("Pow", ["h", "two"], ["y"])]))
    answer = asked(squares)
    assert bool((X @ WEIGHT < 0).any())
    assert all(isinstance(run[".y"], Tensor) and bool(run[".y"].isfinite().all()) for run in answer.draws)


def test_a_cast_to_half_still_rounds_and_one_to_float_does_not(tmp_path: Path) -> None:
    casts = [("x", "h", TensorProto.FLOAT16), ("h", "y", TensorProto.FLOAT)]
    nodes = [helper.make_node("Cast", [a], [b], to=to) for a, b, to in casts]
    found = asked(oracle_of(file_of(tmp_path, nodes)))
    assert found.truth is not None
    assert torch.equal(torch.as_tensor(found.truth[".y"]), X.half().double())


def test_a_subgraph_and_its_constants_are_widened_too(tmp_path: Path) -> None:
    third = numpy_helper.from_array(np.array([1 / 3], dtype=np.float32), "third")
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Constant", [], ["c"], value=third), helper.make_node("Mul", ["x", "c"], ["b"])],
            name,
            [],
            [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        )
        for name in ("then", "else")
    }
    true = numpy_helper.from_array(np.array(True), "true")
    nodes = [helper.make_node("Constant", [], ["t"], value=true), helper.make_node("If", ["t"], ["y"], **branches)]
    found = asked(oracle_of(file_of(tmp_path, nodes)))
    assert found.truth is not None
    expected = X.double() * float(np.float32(1 / 3))
    torch.testing.assert_close(found.truth[".y"], expected, rtol=1e-15, atol=0)


def test_widening_leaves_the_file_as_it_was_and_no_float32_behind(tmp_path: Path) -> None:
    proto = onnx.load(str(file_of(tmp_path, PRODUCT)))
    before = proto.SerializeToString()
    wide = widened(proto)
    assert proto.SerializeToString() == before
    assert {tensor.data_type for tensor in wide.graph.initializer} == {TensorProto.DOUBLE}
    assert {v.type.tensor_type.elem_type for v in (*wide.graph.input, *wide.graph.output)} == {TensorProto.DOUBLE}


def test_an_operator_that_the_evaluator_has_not_is_refused_with_a_reason(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mystery", ["x"], ["y"], domain="nowhere")]
    path = file_of(tmp_path, nodes)
    with pytest.raises(Unsupported, match="ONNX's evaluator refuses"):
        oracle_of(path)


def test_nothing_moves_outside_of_moving(tmp_path: Path) -> None:
    module = OnnxNodes(file_of(tmp_path, PRODUCT), ["x"])
    first = module(X)["y"]
    with module.moving(lambda tensor: tensor + 1):
        assert not torch.equal(module(X)["y"], first)
    assert torch.equal(module(X)["y"], first)


@pytest.mark.slow
def test_a_worker_judges_a_file_that_does_not_convert(tmp_path: Path) -> None:
    """Shrink is an operator that no conversion has: x − bias above lambd, x + bias below −lambd, else 0."""
    nodes = [PRODUCT[0], helper.make_node("Shrink", ["h"], ["y"], lambd=0.5, bias=0.25)]
    path = file_of(tmp_path, nodes)
    inputs = {"x": InputSpec(kind="floats", shape=[2, 64])}
    seed = Seed(name="tiny", model=ModelSpec(source="onnx", path="model.onnx"), inputs=inputs).at(path.parent)
    session = Session(seed, ORACLE, {"x": X}, Where(cache=None))
    try:
        assert session.prepare() is State.READY, session.reason
        found = ask_oracle(session, {"x": X}, rng_seed=0)
    finally:
        session.close()
    h = X.double() @ WEIGHT.double()
    expected = torch.where(h > 0.5, h - 0.25, torch.where(h < -0.5, h + 0.25, 0.0))
    assert found.truth is not None
    torch.testing.assert_close(found.truth[".y"], expected, rtol=1e-12, atol=1e-12)
    assert len(found.draws) == DRAWS
    assert any(not torch.equal(draw[".y"], found.plain[".y"]) for draw in found.draws)  # type: ignore[arg-type]
