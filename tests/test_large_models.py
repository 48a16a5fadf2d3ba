"""Large models: weights moved at little cost, as small ones are, and residual branches that do not amplify noise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuzzer.backends.oracle import Oracle
from fuzzer.backends.rounding import RandomRounding
from fuzzer.backends.spec import BackendSpec
from fuzzer.backends.steps import LARGE, ROW
from fuzzer.inputs import base_sample
from fuzzer.models import build_model
from fuzzer.models.branches import WEIGHT
from fuzzer.models.calibrate import calibrate
from fuzzer.models.checkpoint import load_weights
from fuzzer.seeds import Seed
from fuzzer.verify.ulp import ulp_distance

torch.set_num_threads(1)


def steps(x: Tensor, moved: Tensor) -> Tensor:
    return (torch.sign(moved.double() - x.double()) * ulp_distance(x, moved)).int()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("amplitude", [1, 5])
def test_each_step_of_a_large_tensor_is_as_likely_as_any_other(dtype: torch.dtype, amplitude: int) -> None:
    x = torch.full((LARGE * 4,), 1.5, dtype=dtype)
    found, counts = steps(x, RandomRounding(0, amplitude).move(x)).unique(return_counts=True)
    assert found.tolist() == list(range(-amplitude, amplitude + 1))
    expected = x.numel() / (2 * amplitude + 1)
    assert bool(((counts - expected).abs() < 6 * expected**0.5).all())


def test_zeros_infinities_nan_and_the_ends_of_the_range_of_a_large_tensor_do_not_move() -> None:
    info = torch.finfo(torch.float32)
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), info.max, -info.max, 1.0])
    x = odd.repeat(LARGE)
    moved = RandomRounding(0, 3).move(x).view(-1, 8)
    assert torch.equal(moved[:, :7].contiguous().view(torch.uint8), x.view(-1, 8)[:, :7].contiguous().view(torch.uint8))
    assert len(moved[:, 7].unique()) == 7


def test_zeros_of_a_large_tensor_move_to_subnormals_of_both_signs_where_that_is_asked_for() -> None:
    moved = RandomRounding(0, 5, move_zeros=True).move(torch.zeros(LARGE))
    assert sorted((moved.double() / 2.0**-149).int().unique().tolist()) == list(range(-5, 6))


def test_a_large_tensor_keeps_its_layout_and_the_original_its_values() -> None:
    x = torch.randn(300, 500, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    moved = RandomRounding(0, 1).move(x.t())
    assert moved.stride() == x.t().stride()
    assert torch.equal(x, before)
    assert int(ulp_distance(x.t(), moved).max()) == 1
    assert bool((RandomRounding(0, 1).move(x[:, ::2]) != x[:, ::2]).any())


def test_the_row_of_steps_is_longer_than_the_layers_that_repeat_it_and_prime() -> None:
    assert all(ROW % i for i in range(2, int(ROW**0.5) + 1))


def test_the_floor_of_a_large_layer_is_that_of_the_same_layer_in_small_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(256, 256, generator=generator), torch.randn(8, 256, generator=generator)
    exact = x.double() @ weight.double().t()
    whole, parts = [], []
    for seed in range(16):
        with RandomRounding(seed):
            whole.append((x @ weight.t()).double() - exact)
        with RandomRounding(seed):
            parts.append(torch.cat([x @ part.t() for part in weight.split(32)], 1).double() - exact)
    ratio = torch.stack(whole).std() / torch.stack(parts).std()
    assert 0.9 < float(ratio) < 1.1


def wide_seed(folder: Path) -> Seed:
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Linear(256, 256), nn.ReLU())\n"
    (folder / "wide.py").write_text(code)
    return Seed.model_validate(
        {
            "name": "wide",
            "model": {"source": "builder", "path": ".", "builder": "wide:build"},
            "inputs": {"x": {"kind": "floats", "shape": [2, 256]}},
        }
    ).at(folder)


def test_the_oracle_leaves_large_weights_as_it_found_them(tmp_path: Path) -> None:
    seed = wide_seed(tmp_path)
    model = build_model(seed, None)
    assert model.module is not None
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    oracle = Oracle(BackendSpec.parse("oracle:cpu"))
    oracle.prepare(model, base_sample(seed, 0))
    answer = oracle.run_variant(base_sample(seed, 0), {"draws": 3, "amplitude": 1, "rng_seed": 0})
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())
    assert len({tuple(draw.flatten().tolist()) for draw in answer["draws"]}) == 3


# Weights that come without the versions of their layers.


class Versioned(nn.Linear):
    """Like MNASNet, refuses weights that do not say of which version they are."""

    _version = 2

    def _load_from_state_dict(self, state: object, prefix: str, metadata: dict[str, object], *rest: object) -> None:
        if metadata.get("version") not in (1, 2):
            raise ValueError(f"version should be set to 1 or 2 instead of {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[misc]


def test_weights_from_a_file_are_of_the_modules_own_version() -> None:
    module, weights = nn.Sequential(Versioned(2, 2)), nn.Linear(2, 2).state_dict()
    load_weights(module, {f"0.{name}": value for name, value in weights.items()}, "test")
    assert torch.equal(module[0].weight, weights["weight"])


# Residual branches.


class Block(nn.Module):
    def __init__(self, channels: int, *, in_place: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x))
        if self.in_place:
            out += x
            return torch.relu_(out)
        return torch.relu(x + out)


def calibrated(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    calls = [((torch.randn(1, 8, 6, 6, generator=generator),), {}) for _ in range(4)]
    module.eval().requires_grad_(False)
    calibrate(module, calls, 0)
    return module


@pytest.mark.parametrize("in_place", [False, True])
def test_the_norm_at_the_end_of_each_residual_branch_is_made_weak_once(in_place: bool) -> None:
    torch.manual_seed(0)
    module = calibrated(nn.Sequential(*[Block(8, in_place=in_place) for _ in range(3)]))
    for block in module:
        assert torch.equal(block.norm.weight, torch.full((8,), WEIGHT))


def test_a_norm_that_is_not_added_to_anything_keeps_its_weight() -> None:
    torch.manual_seed(0)
    module = calibrated(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True)))
    assert torch.equal(module[1].weight, torch.ones(8))


def test_calibration_sees_what_the_weak_branches_give() -> None:
    """The second block's statistics are those of its input as the first block, made weak, hands it on."""
    torch.manual_seed(0)
    module = calibrated(nn.Sequential(*[Block(8, in_place=True) for _ in range(2)]))
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(1, 8, 6, 6, generator=generator) for _ in range(4)])
    with torch.no_grad():
        seen = module[1].conv(module[0](x))
    assert torch.allclose(module[1].norm.running_mean, seen.mean((0, 2, 3)), atol=1e-5)


def test_a_rounding_error_hardly_grows_through_many_blocks() -> None:
    torch.manual_seed(0)
    module = calibrated(nn.Sequential(*[Block(8, in_place=True) for _ in range(24)])).double()
    x = torch.randn(1, 8, 6, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    moved = x + 1e-9 * torch.randn(x.shape, generator=torch.Generator().manual_seed(10), dtype=torch.float64)
    with torch.no_grad():
        out, out_moved = module(x), module(moved)
    assert float((out_moved - out).std() / out.std()) < 4e-9
