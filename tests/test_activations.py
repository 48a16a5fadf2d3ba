"""Tier 2: intermediate values have one name on every side, and drift is traced to the layer where it starts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from crash_samples import builder_seed, pool_crash
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from torch import Tensor, nn

from fuzzer.backends.base import Backend
from fuzzer.backends.observe import MOST_ELEMENTS, Observation, Step, movement, observe_eager, output_values
from fuzzer.backends.oracle_observe import ObservingOracle, split
from fuzzer.backends.registry import backend_class, parse
from fuzzer.backends.session import Where
from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import with_activations
from fuzzer.crashes.replay import close_bench, fresh_bench
from fuzzer.crashes.store import load_crash, write_crash
from fuzzer.errors import CrashFolderError, Unsupported
from fuzzer.models import Model
from fuzzer.seeds import InputSpec, ModelSpec, Seed
from fuzzer.trees import flatten
from fuzzer.triage import show
from fuzzer.verify.activations import MOST_POINTS, Activations, GrowthCurve, Point, align, growth
from fuzzer.verify.observation import conclude, observe_finding

torch.set_num_threads(1)


class Residual(nn.Module):
    """A convolution and a batch norm around which the input is added; one ReLU is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)))
        return self.relu(x + y)


class Net(nn.Module):
    """Residual blocks, a layer that is called twice, dropout, an LSTM with its tuple, a mapping that holds a list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Residual(), Residual())
        self.pool = nn.MaxPool2d(2)
        self.shared = nn.Linear(4, 4)
        self.drop = nn.Dropout()
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.3, 3)  # type: ignore[union-attr,operator]
                module.running_mean.normal_()  # type: ignore[union-attr,operator]

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.pool(self.blocks(x)).flatten(2).transpose(1, 2)
        x = self.shared(F.gelu(self.shared(self.drop(x))))
        return {"last": [self.lstm(x)[0], x]}


NAMES = """blocks.0.conv blocks.0.bn blocks.0.relu blocks.0.relu#2:in blocks.0.relu#2
    blocks.1.conv blocks.1.bn blocks.1.relu blocks.1.relu#2:in blocks.1.relu#2
    pool shared:in shared shared#2:in shared#2 lstm[0] lstm[1][0] lstm[1][1] $.last[0] $.last[1]""".split()


class Mlp(nn.Module):
    """Three linear layers; `narrow` computes the second one in float16."""

    def __init__(self, narrow: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.act = nn.Tanh()
        if narrow:
            self.second.forward = self._narrow  # type: ignore[method-assign]

    def _narrow(self, x: Tensor) -> Tensor:
        return F.linear(x.half(), self.second.weight.half(), self.second.bias.half()).float()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.act(self.second(self.act(self.first(x)))))


def seed(*shape: int) -> Seed:
    inputs = {"x": InputSpec(kind="floats", shape=list(shape))}
    return Seed(name="tiny", model=ModelSpec(source="builder", builder="a:b"), inputs=inputs)


def prepared(spec: str, module: nn.Module, x: Tensor) -> Backend:
    backend = backend_class(parse(spec).runtime)(parse(spec))
    backend.prepare(Model(seed(*x.shape), module.eval().requires_grad_(False)), {"x": x})
    return backend


def seen_by(spec: str, module: nn.Module, x: Tensor) -> Observation:
    """What a backend tells of one input, as it arrives from its process."""
    return Observation.from_leaves(prepared(spec, module, x).observe({"x": x}).to_leaves())


def built(kind: type[nn.Module], **arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(**arguments).eval()


def image(draw: int = 0) -> Tensor:
    return torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(draw))


def measured(module: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Floors and truth of a module on one input."""
    oracle = ObservingOracle(BackendSpec.parse("oracle:cpu"))
    oracle.prepare(Model(seed(*x.shape), module.eval().requires_grad_(False)), {"x": x})
    truth, floors, reason = split(oracle.observe_variant({"x": x}, {"draws": 4, "amplitude": 1, "rng_seed": 0}))
    assert reason == ""
    return floors, truth


# names


def test_eager_names_follow_the_module_tree() -> None:
    seen = prepared("eager:cpu", built(Net), image()).observe({"x": image()})
    assert list(seen.values) == NAMES
    assert seen.how == "hooks"


def test_values_are_those_of_the_call_and_survive_what_writes_over_them_later() -> None:
    net = built(Net)
    first = net.blocks[0]  # type: ignore[index]
    conv = first.conv(image())
    bn = first.bn(conv)
    values = prepared("eager:cpu", net, image()).observe({"x": image()}).values
    torch.testing.assert_close(values["blocks.0.bn"], bn, rtol=0, atol=0)
    torch.testing.assert_close(values["blocks.0.relu"], bn.clamp(min=0), rtol=0, atol=0)
    torch.testing.assert_close(values["blocks.0.relu#2:in"], image() + bn.clamp(min=0), rtol=0, atol=0)


def test_sources_are_known_where_one_module_feeds_the_next() -> None:
    steps = prepared("eager:cpu", built(Net), image()).observe({"x": image()}).steps
    assert steps["blocks.0.conv"].sources == ()  # the model's own input
    assert steps["blocks.0.bn"].sources == ("blocks.0.conv",)
    assert steps["blocks.0.relu#2:in"].sources is None  # a sum: of what is not told
    assert steps["blocks.1.conv"].sources == ("blocks.0.relu#2",)
    assert steps["$.last[0]"].sources == ("lstm[0]",)
    assert steps["pool"].module == "MaxPool2d"


@pytest.mark.parametrize("spec", ["dynamo:cpu", "aot_eager:cpu"])
def test_compilers_tell_the_same_names_and_their_evidence_stays(spec: str) -> None:
    backend = prepared(spec, built(Net), image())  # the LSTM breaks the graph
    before, output = backend.evidence(), backend.run({"x": image()})
    for draw in (1, 2):  # the second time nothing is compiled
        seen = backend.observe({"x": image(draw)})
        assert list(seen.values) == NAMES
        assert seen.how == "extra outputs"
    expected = prepared("eager:cpu", built(Net), image()).observe({"x": image(2)}).values
    torch.testing.assert_close(seen.values, expected, rtol=1e-5, atol=1e-5)
    assert backend.evidence() == before
    torch.testing.assert_close(backend.run({"x": image()}), output, rtol=0, atol=0)


@pytest.mark.slow
def test_inductor_tells_the_same_names() -> None:
    x = torch.randn(3, 8)
    seen = prepared("inductor:cpu", built(Mlp), x).observe({"x": x})
    expected = prepared("eager:cpu", built(Mlp), x).observe({"x": x})
    assert list(seen.values) == ["first", "act", "second", "act#2", "third", "$"] == list(expected.values)
    torch.testing.assert_close(seen.values, expected.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_onnx_values_get_the_names_of_the_modules_they_come_from(exporter: str) -> None:
    net = built(Net)
    seen = prepared(f"onnxruntime:cpu?exporter={exporter}", net, image()).observe({"x": image(1)})
    expected = prepared("eager:cpu", net, image()).observe({"x": image(1)}).values
    # both exporters fold the convolution into the batch norm and drop what nobody uses
    gone = {"blocks.0.conv", "blocks.1.conv", "lstm[1][0]", "lstm[1][1]"}
    assert list(seen.values) == [name for name in NAMES if name not in gone]
    assert set(seen.lost) == gone
    torch.testing.assert_close(seen.values, {name: expected[name] for name in seen.values}, rtol=1e-5, atol=1e-5)


def test_an_onnx_file_has_the_names_of_its_own_values_as_its_conversion_to_pytorch_does(tmp_path: Path) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["size"]), helper.make_node("Sqrt", ["size"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    path = tmp_path / "g.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    backend = backend_class("onnxruntime")(parse("onnxruntime:cpu"))
    x = torch.tensor([-4.0, 1.0, 9.0])
    backend.prepare(Model(seed(3), None, path), {"x": x})
    seen = backend.observe({"x": x})
    assert {name: value.tolist() for name, value in seen.values.items()} == {
        "onnx.size": [4.0, 1.0, 9.0],
        "onnx.y": [2.0, 1.0, 3.0],
        "$.y": [2.0, 1.0, 3.0],
    }
    assert seen.steps["onnx.y"].sources == ("onnx.size",)


class Drawn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.rand(4)


@pytest.mark.parametrize("spec", ["eager:cpu", "dynamo:cpu"])
def test_observing_draws_the_random_numbers_that_running_draws(spec: str) -> None:
    backend = prepared(spec, built(Drawn), torch.ones(2, 4))
    torch.manual_seed(3)
    expected = backend.run({"x": torch.ones(2, 4)})
    torch.manual_seed(3)
    assert torch.equal(backend.observe({"x": torch.ones(2, 4)}).output, expected)


def test_a_backend_that_cannot_look_inside_says_so() -> None:
    class Blind(Backend):
        runtime = "blind"

        @classmethod
        def unavailable(cls, spec: BackendSpec) -> str | None:
            return None

        def prepare(self, model: Model, example: Any) -> None: ...

        def run(self, sample: Any) -> Any:
            return sample["x"]

    with pytest.raises(Unsupported, match="blind does not tell intermediate values"):
        Blind(BackendSpec("blind", "cpu")).observe({})


def test_an_observation_travels_as_leaves() -> None:
    seen = prepared("eager:cpu", built(Net), image()).observe({"x": image()})
    again = Observation.from_leaves(seen.to_leaves())
    assert again.steps == seen.steps
    assert list(again.values) == NAMES
    torch.testing.assert_close(again.values, seen.values, rtol=0, atol=0)
    assert list(again.output) == list(flatten(seen.output))


def test_what_is_too_much_to_send_is_listed() -> None:
    huge = torch.zeros(1).expand(MOST_ELEMENTS + 1)
    seen = Observation(torch.ones(1), {"small": torch.ones(2), "huge": huge}, "hooks")
    again = Observation.from_leaves(seen.to_leaves())
    assert list(again.values) == ["small", "$"]
    assert "huge" in again.lost


def test_other_leaves_are_no_observation() -> None:
    with pytest.raises(ValueError, match="not an observation"):
        Observation.from_leaves({"$": torch.ones(1)})


# truth and noise


def test_the_oracle_knows_float64_values_and_noise_of_every_step() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    mlp = built(Mlp)
    floors, truth = measured(mlp, x)
    first = F.linear(x.double(), mlp.first.weight.double(), mlp.first.bias.double())  # type: ignore[union-attr,operator,arg-type]
    torch.testing.assert_close(truth["first"], first, rtol=1e-14, atol=1e-14)
    assert list(truth) == ["first", "act", "second", "act#2", "third", "$"]
    for name, floor in floors.items():
        assert floor.shape == truth[name].shape
        assert 0 < float(floor.max()) < 1e-5  # a few steps of float32 at values near 1


def test_movement_is_the_farthest_of_the_draws_and_blind_to_other_shapes() -> None:
    plain = {"a": torch.tensor([1.0, 2.0]), "i": torch.tensor([1])}
    draws = [{"a": torch.tensor([1.5, math.nan])}, {"a": torch.tensor([0.75, 2.25])}, {"a": torch.tensor([9.0])}]
    moved = movement(plain, draws)
    assert list(moved) == ["a"]
    assert moved["a"].tolist() == [0.5, 0.25]


# growth


def test_a_layer_in_float16_is_where_drift_starts() -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    reference, target = (seen_by("eager:cpu", built(Mlp, narrow=n), x) for n in (False, True))
    floors, truth = measured(built(Mlp), x)
    seen = conclude(reference, target, reference.output, target.output, floors, truth)
    points = {point.name: point for point in seen.curve.points}
    assert [name for name, point in points.items() if point.past] == ["second", "act#2", "third", "$"]
    assert [name for name, point in points.items() if point.origin] == ["second"]
    assert points["second"].gap_before == 0.0  # the same PyTorch on both sides up to here
    assert points["second"].gap > 50  # float16 has 2¹³ times float32's step
    assert points["second"].drift_target > 50 > 5 > points["second"].drift_reference  # type: ignore[operator]
    assert seen.status == "fail"
    assert seen.sentence().startswith("drift starts at second (Linear): ")


def test_the_same_module_on_both_sides_passes() -> None:
    x = torch.randn(3, 8)
    seen = seen_by("eager:cpu", built(Mlp), x)
    found = conclude(seen, seen, seen.output, seen.output, *measured(built(Mlp), x))
    assert (found.status, found.changed, found.vanishes) == ("pass", (), False)
    assert "all 6 values are within 5" in found.sentence()


@given(st.integers(1, 12), st.data())
def test_drift_starts_where_it_was_planted(length: int, data: st.DataObject) -> None:
    planted = data.draw(st.integers(0, length - 1))
    gaps = [data.draw(st.floats(0, 4)) for _ in range(planted)] + [100.0] * (length - planted)
    names = [f"layer.{i}" for i in range(length)]
    ones = {name: torch.ones(2, 2) for name in names}
    floors = {name: torch.full((2, 2), 1e-3, dtype=torch.float64) for name in names}
    target = {name: 1 + torch.tensor([[0.0, 0.0], [gap * 1e-3, 0.0]]) for name, gap in zip(names, gaps, strict=True)}
    truth = {name: value.double() for name, value in ones.items()}
    curve = growth(ones, target, floors, truth)
    assert curve.origin is not None
    assert curve.origin.name == names[planted]
    assert [point.name for point in curve.points if point.origin] == [names[planted]]
    assert curve.origin.gap == pytest.approx(100, rel=1e-3)
    assert curve.origin.gap_before == pytest.approx(max(gaps[:planted], default=0), rel=1e-3, abs=1e-3)


def curve_of(gaps: dict[str, float], sources: dict[str, tuple[str, ...] | None]) -> GrowthCurve:
    reference = {name: torch.ones(1) for name in gaps}
    target = {name: torch.full((1,), 1 + gap * 1e-3) for name, gap in gaps.items()}
    floors = {name: torch.full((1,), 1e-3, dtype=torch.float64) for name in gaps}
    truth = {name: torch.ones(1, dtype=torch.float64) for name in gaps}
    return growth(reference, target, floors, truth, {name: Step(name, sources=s) for name, s in sources.items()})


def test_two_branches_can_each_start_to_drift() -> None:
    curve = curve_of({"a": 0, "b": 50, "c": 60, "d": 70}, {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")})
    assert [point.name for point in curve.points if point.origin] == ["b", "c"]


def test_a_source_that_was_not_seen_is_looked_through() -> None:
    sources = {"a": (), "hidden": ("a",), "b": ("hidden",), "late": None}
    curve = curve_of({"a": 50, "b": 60, "late": 70}, sources)
    assert [point.name for point in curve.points if point.origin] == ["a"]
    curve = curve_of({"a": 1, "b": 60, "late": 70}, sources)
    assert [point.name for point in curve.points if point.origin] == ["b"]


def test_a_gap_that_float64_calls_rounding_is_not_past() -> None:
    """Six floors apart, each three from the truth on its own side."""
    one, floor = torch.ones(1), {"a": torch.full((1,), 1e-3, dtype=torch.float64)}
    truth = {"a": torch.full((1,), 1.003, dtype=torch.float64)}
    curve = growth({"a": one}, {"a": one + 6e-3}, floor, truth)
    assert curve.points[0].gap == pytest.approx(6, rel=1e-3)
    assert not curve.points[0].past
    assert growth({"a": one}, {"a": one + 6e-3}, floor, {}).points[0].past  # nobody to say so


@pytest.mark.parametrize(
    ("reference", "target", "kind"),
    [
        (torch.ones(2), torch.ones(3), "shape"),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), "dtype"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "integer"),
        (torch.tensor([True]), torch.tensor([False]), "integer"),
        (torch.tensor([1.0, math.nan]), torch.ones(2), "nonfinite"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "nonfinite"),
    ],
)
def test_what_no_noise_explains_is_past_the_floor_at_once(reference: Tensor, target: Tensor, kind: str) -> None:
    curve = growth({"a": reference}, {"a": target}, {}, {})
    assert curve.origin is not None
    assert (curve.origin.kind, curve.origin.gap) == (kind, math.inf)
    assert kind in curve.sentence()


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e-45]),
        torch.ones(0),
        torch.tensor([1 + 2j]),
        torch.eye(2).bool(),
    ],
)
def test_odd_values_are_equal_to_themselves(value: Tensor) -> None:
    assert growth({"a": value}, {"a": value.clone()}, {}, {}).points[0].gap == 0.0


def test_only_what_both_sides_have_is_aligned_in_the_reference_order() -> None:
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    pairs = align({"c": c, "a": a, "b": b}, {"a": a, "c": c, "d": b})
    assert [pair.name for pair in pairs] == ["c", "a"]


# what is said and kept


def test_a_divergence_that_observation_removes_is_not_called_a_pass() -> None:
    x = torch.randn(3, 8)
    seen = seen_by("eager:cpu", built(Mlp), x)
    apart = {"$": seen.output["$"] + 1}
    found = conclude(seen, seen, seen.output, apart, *measured(built(Mlp), x))
    assert found.vanishes
    assert found.changed == ("target",)
    assert found.status == "not-run"
    assert found.sentence().startswith("vanishes under observation")


def test_nothing_seen_on_both_sides_is_no_pass() -> None:
    assert Activations(GrowthCurve()).status == "not-run"


def test_what_is_kept_is_bounded_and_holds_the_origin_and_the_output() -> None:
    points = [Point(f"layer.{i}", "Linear", i / 10, i > 50, origin=i == 517) for i in range(1000)]
    kept = Activations(GrowthCurve((*points, Point("$", "output", math.inf, True)))).to_json()
    names = [point["name"] for point in kept["points"]]
    assert len(names) <= MOST_POINTS
    assert {"layer.0", "layer.516", "layer.517", "layer.518", "$"} <= set(names)
    assert names == sorted(names, key=lambda name: int(name[6:] or 0) if name != "$" else 1000)
    assert kept["aligned"] == 1001
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept


def test_a_crash_keeps_its_activations_and_show_tells_them(tmp_path: Path) -> None:
    points = (Point("scale", "Scale", 0.5, False), Point("pool", "MaxPool2d", math.inf, True, "nonfinite", origin=True))
    crash = with_activations(pool_crash(builder_seed(tmp_path / "m")), Activations(GrowthCurve(points)))
    assert crash.tiers["activations"] == "fail"
    crash = load_crash(write_crash(tmp_path / "crashes", crash))
    assert crash.tiers["activations"] == "fail"
    assert crash.activations["origin"] == "pool"
    assert crash.activations["points"][1]["gap"] == "inf"
    text = show(crash)
    assert "drift starts at pool (MaxPool2d)" in text
    assert "scale (Scale): 0.5 floors" in text


def test_a_crash_without_activations_loads_and_a_damaged_one_does_not(tmp_path: Path) -> None:
    home = write_crash(tmp_path / "crashes", pool_crash(builder_seed(tmp_path / "m")))
    assert load_crash(home).activations == {}
    text = (home / "crash.yaml").read_text()
    (home / "crash.yaml").write_text(text + "\nactivations: {status: maybe}\n")
    with pytest.raises(CrashFolderError, match="activations"):
        load_crash(home)


# real processes

POOLED = """import torch
from torch import nn


class Scale(nn.Module):
    def forward(self, x):
        return x * 2


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.pool, self.act = Scale(), nn.MaxPool2d(2), nn.LeakyReLU()

    def forward(self, x):
        return self.act(self.pool(self.scale(x)))
"""


def test_a_nan_that_onnxruntime_drops_is_traced_to_the_pool(tmp_path: Path, where: Where) -> None:
    of = builder_seed(tmp_path, POOLED, "pooled:Pooled")
    x = torch.arange(16.0).view(1, 1, 4, 4)
    x[0, 0, 0, 1] = math.nan
    bench = fresh_bench(of, "eager:cpu", "onnxruntime:cpu", where)
    try:
        seen = observe_finding(bench, {"x": x}, rng_seed=0)
    finally:
        close_bench(bench)
    assert seen.status == "fail"
    assert seen.curve.origin is not None
    assert (seen.curve.origin.name, seen.curve.origin.kind) == ("pool", "nonfinite")
    assert seen.curve.origin.gap_before == 0.0
    assert [point.name for point in seen.curve.points] == ["scale", "pool", "act", "$"]
    assert seen.observed == {"reference": "hooks", "target": "extra outputs"}
    assert "drift starts at pool (MaxPool2d): a difference of nonfinite" in seen.sentence()


RAISES = """import torch
from torch import nn


class Raises(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            raise ValueError("too much")
        return x * 2
"""


def test_an_input_on_which_a_side_raises_is_not_observed_and_the_sessions_go_on(tmp_path: Path, where: Where) -> None:
    bench = fresh_bench(builder_seed(tmp_path, RAISES, "raises:Raises"), "eager:cpu", "eager:cpu?threads=1", where)
    try:
        failed = observe_finding(bench, {"x": torch.ones(1, 1, 4, 4)}, rng_seed=0)
        fine = observe_finding(bench, {"x": -torch.ones(1, 1, 4, 4)}, rng_seed=0)
    finally:
        close_bench(bench)
    assert failed.status == "not-run"
    assert "the reference: ValueError: too much" in failed.sentence()
    assert fine.status == "pass"
    assert fine.curve.output[0].gap == 0.0


def test_observe_eager_keeps_what_a_block_computes_itself_and_not_what_it_hands_on() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2), nn.Identity())
            self.sum = Summed()

        def forward(self, x: Tensor) -> Tensor:
            return self.sum(self.inner(x))

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.linear(x)

    with torch.no_grad():
        seen = observe_eager(Outer(), (torch.ones(1, 2),), {})
    assert list(seen.values) == ["inner.0", "sum.linear", "sum", "$"]
    assert seen.steps["sum"].sources is None
    assert seen.steps["$"].sources == ("sum",)
    assert torch.equal(output_values(flatten(seen.output))["$"], seen.values["sum"])
