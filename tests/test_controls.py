"""The yardstick of the controls, and what they count, where seeds have their own tolerance or cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

from benchmarks import controls, ill_conditioned
from benchmarks.harmless import controls_of, rounding_once
from benchmarks.local import Remembering, seed_for
from benchmarks.lossy import lost_by
from benchmarks.mutants import plant
from benchmarks.silence import RoundingOnce, Tally, own_tolerance_only, run_window
from benchmarks.tasks import ROOT, Found, planned
from fuzzer.seeds import Seed, Tolerance
from fuzzer.trees import Leaves
from fuzzer.verify.examine import ask_oracle
from fuzzer.verify.noise import noise_floor
from fuzzer.verify.verdict import Blame, Difference, Kind, Outcome, Verdict

torch.set_num_threads(1)


def in_place(sample: Any) -> Any:
    value = sample["x"].clone()
    value.exp_()
    return value


def test_the_yardstick_rounds_what_is_written_in_place_once() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 20
    assert torch.equal(rounding_once(in_place)({"x": x}), x.double().exp().float())
    assert torch.equal(x, torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 20)
    assert lost_by(in_place, {"x": x}) is None


def test_an_operator_that_loses_while_it_writes_in_place_is_told() -> None:
    small, large = torch.full((3,), 1e-20), torch.full((3,), 1e30)

    def product(sample: Any) -> Any:
        return sample["x"].clone().addcmul_(small, large, value=1e-30)  # 1e-30 · 1e-20 is 0 in float32

    loss = lost_by(product, {"x": torch.zeros(3)})
    assert loss is not None
    assert loss.operator == "addcmul_"
    assert torch.equal(rounding_once(product)({"x": torch.zeros(3)}), torch.full((3,), 1e-20))


def seed_with(tolerance: Tolerance | None) -> Seed:
    model = {"source": "builder", "builder": "nets:Net"}
    inputs = {"x": {"kind": "floats", "shape": [3]}}
    return Seed.model_validate({"name": "s", "model": model, "inputs": inputs, "tolerance": tolerance})


@pytest.mark.parametrize(
    ("kind", "blame", "tolerance", "counts"),
    [
        (Kind.VALUE, Blame.NEITHER, Tolerance(atol=1e-5), True),
        (Kind.VALUE, Blame.NEITHER, None, False),
        (Kind.VALUE, Blame.TARGET, Tolerance(atol=1e-5), False),
        (Kind.VALUE, Blame.UNKNOWN, Tolerance(atol=1e-5), False),
        (Kind.NONFINITE, Blame.NEITHER, Tolerance(atol=1e-5), False),
    ],
)
def test_only_noise_over_the_seeds_own_tolerance_counts_as_that(
    kind: Kind, blame: Blame, tolerance: Tolerance | None, counts: bool
) -> None:
    verdict = Verdict(Outcome.MISMATCH, differences=[Difference("$", kind, "", blame=blame)])
    assert own_tolerance_only(verdict, seed_with(tolerance)) == counts


def test_a_seed_whose_package_is_missing_is_left_out_with_a_line(tmp_path: Path) -> None:
    text = """
    model: {source: builder, builder: "nets:Net", weights: "package:no_such_package/weights.pt"}
    inputs: {x: {kind: floats, shape: [3]}}
    """
    (tmp_path / "lacking.yaml").write_text(text)
    arguments = ["--json", "--seeds", str(tmp_path), "--no-ill-conditioned", "--no-given", "--no-timings"]
    done = CliRunner().invoke(controls.main, [*arguments, "--draws", "0"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("lacking: left out: the package no_such_package is not installed")
    told = json.loads(done.stdout)
    assert (list(told["skipped"]), told["unfinished"], told["executions"]) == (["lacking"], 0, 0)


def test_merging_forgets_a_seed_that_one_machine_lacked_and_another_ran() -> None:
    found = Found({}, skipped={"a": "no package", "b": "no package"})
    found.merge(Found({"controls/a/0/0": Tally("a", executions=3).to_json()}))
    assert found.skipped == {"b": "no package"}


def test_faults_that_a_seeds_own_tolerance_lets_pass_are_not_planted() -> None:
    outputs: Leaves = {"$": torch.linspace(0.2, 0.2001, 64).view(4, 16)}
    names = {name for name, _, _ in plant(outputs)}
    tolerant = {name: leaves.get("$") for name, _, leaves in plant(outputs, tolerance=Tolerance(atol=1e-3))}
    assert names - set(tolerant) == {"two elements swapped", "last tile wrong"}
    moved = tolerant["one element moved"]
    assert isinstance(moved, Tensor)
    assert isinstance(outputs["$"], Tensor)
    assert float((moved - outputs["$"]).abs().max()) == pytest.approx(2e-3, rel=1e-3)


class SquaresOverflow(nn.Module):
    """A group norm whose variance overflows float32, so that its kernel answers zeros under any rounding."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.group_norm(x * 1e28, 2)


def test_the_yardsticks_noise_is_that_of_kernels_that_round_once() -> None:
    x = torch.randn(1, 4, 3, generator=torch.Generator().manual_seed(0))
    seed = seed_for([x])
    asked: list[Any] = []
    for oracle in (Remembering, RoundingOnce):
        side = oracle(seed, SquaresOverflow(), {"a": x})
        asked.append(ask_oracle(side, {"a": x}, rng_seed=1))
    floors = [noise_floor("$", answer) for answer in asked]
    assert not floors[0].any()
    assert bool((floors[1] > 0).all())


def test_a_seed_gets_no_fewer_executions_than_its_share(cache: Path) -> None:
    seeds = [seed for seed in ill_conditioned.seeds(ROOT) if seed.name in ("histogram", "saturated")]
    plan = planned([], seeds, 2 * 1000, 0, rng_seed=0, draws=0, targets=[], cache=cache)
    for seed in seeds:
        inputs = sum(task.inputs for task in plan if task.key.startswith(f"controls/{seed.name}/"))
        assert 1000 <= inputs * controls_of(seed) < 2000
    tally = run_window(seeds[0], 1, rng_seed=0, cache=cache)
    assert tally.executions == controls_of(seeds[0]) == 6
