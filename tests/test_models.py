"""Building models: the same everywhere, contained, not degenerate."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from fuzzer.errors import ModelError
from fuzzer.inputs import base_sample
from fuzzer.models import Model, build_model, weights_hash
from fuzzer.models.calibrate import calibrate, moments, pooled
from fuzzer.models.checkpoint import load_weights, read_checkpoint
from fuzzer.models.lockstep import Lockstep
from fuzzer.seeds import Seed
from fuzzer.seeds.load import load_seed
from fuzzer.trees import Leaves, flatten

SEEDS = Path(__file__).parent.parent / "seeds"
SHIPPED = ["classifier", "decoder", "detector", "digits", "postprocess", "segmenter", "transformer"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def library(name: str, kind: str = "calibrated", pixels: int = 32, number: int = 0, **args: Any) -> Seed:
    return Seed.model_validate(
        {
            "name": "library",
            "model": {"source": "library", "name": name, "args": args, "weights": {"kind": kind, "seed": number}},
            "inputs": {"image": {"kind": "image", "shape": [1, 3, pixels, pixels]}},
        }
    )


def built_from(folder: Path, code: str, builder: str = "made:make", **model: Any) -> Seed:
    """A seed whose builder is `code`, written to made.py in `folder`."""
    (folder / "made.py").write_text("import torch\nfrom torch import nn\n" + code)
    return Seed.model_validate(
        {
            "name": "built",
            "model": {"source": "builder", "path": ".", "builder": builder, **model},
            "inputs": {"x": {"kind": "floats", "shape": [2, 4]}},
        }
    ).at(folder)


def module_of(model: Model) -> nn.Module:
    assert model.module is not None
    return model.module


@torch.no_grad()
def answers(model: Model, draws: range) -> list[Leaves]:
    found = []
    for draw in draws:
        args, kwargs = model.call(base_sample(model.seed, draw))
        found.append(flatten(module_of(model)(*args, **kwargs)))
    return found


def one_tensor(leaves: Leaves) -> Tensor:
    (leaf,) = leaves.values()
    assert isinstance(leaf, Tensor)
    return leaf


def change_over_inputs(model: Model) -> float:
    """Mean over the elements of their standard deviation over inputs that calibration did not see."""
    return torch.stack([one_tensor(leaves) for leaves in answers(model, range(50, 56))]).std(0).mean().item()


LINEAR = "def make(**args):\n    return nn.Linear(4, 3)\n"


class TestTheSameEverywhere:
    @pytest.mark.parametrize("kind", ["random", "calibrated"])
    def test_building_twice_gives_the_same_bits(self, kind: str) -> None:
        first, second = (build_model(library("squeezenet1_1", kind, 64), None) for _ in range(2))
        assert weights_hash(module_of(first)) == weights_hash(module_of(second))

    def test_another_weights_seed_gives_other_weights(self) -> None:
        first, second = (build_model(library("squeezenet1_1", "random", number=number), None) for number in (0, 1))
        assert weights_hash(module_of(first)) != weights_hash(module_of(second))

    def test_what_was_drawn_before_plays_no_part(self, tmp_path: Path) -> None:
        seed = built_from(tmp_path, LINEAR)
        torch.manual_seed(1)
        first = weights_hash(module_of(build_model(seed, None)))
        torch.manual_seed(2)
        assert weights_hash(module_of(build_model(seed, None))) == first

    def test_the_cache_holds_what_is_computed_without_one(self, tmp_path: Path) -> None:
        seed = library("squeezenet1_1", pixels=64)
        cold, warm, none = (build_model(seed, cache) for cache in (tmp_path, tmp_path, None))
        assert weights_hash(module_of(cold)) == weights_hash(module_of(warm)) == weights_hash(module_of(none))
        assert len(list(tmp_path.glob("*.safetensors"))) == 1

    def test_processes_that_start_together_share_the_weights(self, tmp_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            hashes = list(pool.map(_hash_of_transformer, [tmp_path] * 3))
        assert len(set(hashes)) == 1
        assert len(list(tmp_path.glob("*.safetensors"))) == 1

    def test_changed_builder_code_is_calibrated_anew(self, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        for code in (LINEAR, LINEAR + "# another version\n"):
            build_model(built_from(tmp_path, code, weights={"kind": "calibrated"}), cache)
        assert len(list(cache.glob("*.safetensors"))) == 2

    def test_a_damaged_cache_is_named(self, tmp_path: Path) -> None:
        seed = built_from(tmp_path, LINEAR, weights={"kind": "calibrated"})
        build_model(seed, tmp_path / "cache")
        (file,) = (tmp_path / "cache").glob("*.safetensors")
        file.write_bytes(file.read_bytes()[:20])
        with pytest.raises(ModelError, match=f"{file.name} is damaged"):
            build_model(seed, tmp_path / "cache")

    def test_the_module_is_in_eval_mode_without_gradients(self) -> None:
        module = module_of(build_model(library("squeezenet1_1", "random"), None))
        assert not any(layer.training for layer in module.modules())
        assert not any(parameter.requires_grad for parameter in module.parameters())


def _hash_of_transformer(cache: Path) -> str:
    seed = load_seed(SEEDS / "transformer.yaml")
    weights = seed.model.weights.model_copy(update={"kind": "calibrated"})
    model = seed.model.model_copy(update={"weights": weights})
    return weights_hash(module_of(build_model(seed.model_copy(update={"model": model}), cache)))


class TestHostileBuilders:
    @pytest.mark.parametrize(
        ("code", "says"),
        [
            ("import sys\nsys.exit(3)\n", r"sys\.exit\(3\)"),
            ("raise SystemExit\n", "sys.exit"),
            ("def make():\n    exit(1)\n", r"sys\.exit\(1\)"),
            ("def make():\n    raise ValueError('no such\\nwidth')\n", r"ValueError: no such \(made\.py, line 4\)"),
            ("def make():\n    raise BaseException\n", "BaseException"),
            ("def make(:\n", "SyntaxError"),
            ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
            ("def other():\n    pass\n", "no attribute 'make'"),
            ("def make():\n    return 7\n", "returned int, not a torch.nn.Module"),
            ("make = None\n", "NoneType"),
            ("def make(width):\n    return nn.Linear(width, 1)\n", "width"),
        ],
    )
    def test_failures_become_one_line_that_names_the_builder(self, tmp_path: Path, code: str, says: str) -> None:
        with pytest.raises(ModelError, match=says) as caught:
            build_model(built_from(tmp_path, code), None)
        assert "made:make" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_global_state_is_left_as_it_was(self, tmp_path: Path) -> None:
        code = (
            "import os, random, sys\nimport numpy as np\n"
            "torch.set_default_dtype(torch.float64)\n"
            "def make():\n"
            "    torch.manual_seed(9); random.seed(9); np.random.seed(9)\n"
            "    torch.set_num_threads(torch.get_num_threads() + 1)\n"
            "    torch.use_deterministic_algorithms(True)\n"
            "    torch.set_grad_enabled(False)\n"
            "    torch.set_flush_denormal(True)\n"
            "    torch.set_default_device('meta')\n"
            "    torch.set_float32_matmul_precision('medium')\n"
            "    torch.backends.cudnn.benchmark = True\n"
            "    os.chdir('/'); sys.path.insert(0, '/somewhere')\n"
            "    return nn.Linear(4, 3, device='cpu')\n"
        )
        seed = built_from(tmp_path, code)
        before = process_state()
        module = module_of(build_model(seed, None))
        assert process_state() == before
        assert next(module.parameters()).dtype == torch.float64  # so the builder did run

    def test_precisions_that_were_set_one_by_one_are_kept(self, tmp_path: Path) -> None:
        code = (
            "def make():\n"
            "    torch.backends.fp32_precision = 'ieee'\n"
            "    torch.backends.cuda.matmul.fp32_precision = 'ieee'\n"
            "    return nn.ReLU()\n"
        )
        seed, matmul = built_from(tmp_path, code), torch.backends.cuda.matmul
        before = matmul.fp32_precision
        matmul.fp32_precision = "tf32"  # torch's older getters raise from here on
        try:
            build_model(seed, None)
            assert matmul.fp32_precision == "tf32"
            assert torch.backends.mkldnn.matmul.fp32_precision == before
        finally:
            matmul.fp32_precision = before

    def test_printing_keeps_stdout_clean(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        build_model(
            built_from(tmp_path, "print('at import')\ndef make():\n    print('called')\n    return nn.ReLU()\n"), None
        )
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == "at import\ncalled\n"

    def test_each_folder_gets_its_own_helper_module(self, tmp_path: Path) -> None:
        widths = []
        for width in (3, 5):
            folder = tmp_path / str(width)
            folder.mkdir()
            (folder / "helper_of_made.py").write_text(f"WIDTH = {width}\n")
            code = "from helper_of_made import WIDTH\ndef make():\n    return nn.Linear(4, WIDTH)\n"
            module = module_of(build_model(built_from(folder, code), None))
            widths.append(sum(parameter.shape[0] for parameter in [module.weight]))
        assert widths == [3, 5]

    def test_a_package_with_relative_imports_builds(self, tmp_path: Path) -> None:
        package = tmp_path / "pkg_of_made"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "net.py").write_text("from torch import nn\nclass Net:\n    make = staticmethod(nn.Tanh)\n")
        (package / "entry.py").write_text("from .net import Net\n")
        seed = built_from(tmp_path, "", builder="pkg_of_made.entry:Net.make")
        assert isinstance(build_model(seed, None).module, nn.Tanh)

    def test_a_model_that_fails_on_its_base_inputs_is_named(self, tmp_path: Path) -> None:
        seed = built_from(tmp_path, "def make():\n    return nn.Linear(7, 3)\n", weights={"kind": "calibrated"})
        with pytest.raises(ModelError, match="built: the model fails on its own base inputs: RuntimeError"):
            build_model(seed, None)


def process_state() -> dict[str, Any]:
    import random

    return {
        "dtype": torch.get_default_dtype(),
        "rng": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "subnormal": (torch.tensor([1e-40]) * 1).item(),
        "device": torch.get_default_device(),
        "precision": torch.get_float32_matmul_precision(),
        "benchmark": torch.backends.cudnn.benchmark,
        "folder": os.getcwd(),
        "path": list(sys.path),
    }


class TestLibrary:
    def test_an_unknown_name_suggests_the_nearest(self) -> None:
        with pytest.raises(ModelError, match="did you mean 'resnet18'"):
            build_model(library("resnet_18"), None)

    def test_arguments_that_do_not_fit_are_reported_in_one_line(self) -> None:
        with pytest.raises(ModelError, match="torchvision squeezenet1_1: TypeError"):
            build_model(library("squeezenet1_1", "random", breadth=3), None)

    def test_a_submodule_may_stand_in_front_of_the_name(self) -> None:
        plain, prefixed = (
            module_of(build_model(library(name, "random", 64), None))
            for name in ("lraspp_mobilenet_v3_large", "segmentation.lraspp_mobilenet_v3_large")
        )
        assert weights_hash(plain) == weights_hash(prefixed)

    def test_a_failed_download_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # the discard port: refused at once
        monkeypatch.setenv("no_proxy", "")
        with pytest.raises(ModelError, match=r"cannot download the weights of squeezenet1_1 .*kind: calibrated"):
            build_model(library("squeezenet1_1", "default"), None)


class TestWeightsFromFiles:
    def fits(self, tmp_path: Path, save: Callable[[dict[str, Tensor], Path], None], name: str) -> None:
        wanted = {"weight": torch.arange(12.0).view(3, 4), "bias": torch.tensor([1.0, -2.0, 0.5])}
        save(wanted, tmp_path / name)
        seed = built_from(tmp_path, LINEAR, weights={"kind": "file", "file": name})
        module = module_of(build_model(seed, None))
        x = torch.tensor([[1.0, 0.0, 0.0, -1.0]])
        # row i of the weight is (4i, …, 4i + 3): its first minus its last is −3
        assert torch.equal(module(x), torch.tensor([[-2.0, -5.0, -2.5]]))

    def test_safetensors(self, tmp_path: Path) -> None:
        self.fits(tmp_path, lambda wanted, path: save_file(wanted, path), "w.safetensors")

    @pytest.mark.parametrize("wrapper", [None, "state_dict", "model", "model_state_dict"])
    @pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod."])
    def test_checkpoints_are_unwrapped(self, tmp_path: Path, wrapper: str | None, prefix: str) -> None:
        def save(wanted: dict[str, Tensor], path: Path) -> None:
            named = {prefix + name: value for name, value in wanted.items()}
            torch.save(named if wrapper is None else {wrapper: named, "epoch": 3}, path)

        self.fits(tmp_path, save, "w.pt")

    def test_what_does_not_fit_is_listed_and_nothing_is_loaded(self) -> None:
        module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        before = weights_hash(module)
        given = {
            "0.weight": torch.zeros(3, 4),
            "0.bias": torch.zeros(5),
            "1.weight": torch.zeros(2, 3),
            "2.x": torch.ones(1),
        }
        with pytest.raises(ModelError) as caught:
            load_weights(module, given, "w.pt")
        message = str(caught.value)
        assert "1 missing (1.bias)" in message
        assert "1 unexpected (2.x)" in message
        assert "0.bias (5,) for (3,)" in message
        assert weights_hash(module) == before

    def test_a_pickle_that_runs_code_is_refused(self, tmp_path: Path) -> None:
        path, proof = tmp_path / "w.pt", tmp_path / "proof"
        torch.save(Hostile(proof), path)
        with pytest.raises(ModelError, match="holds more than tensors"):
            read_checkpoint(path)
        assert not proof.exists()

    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    @pytest.mark.parametrize("data", [b"", b"not a checkpoint, whatever its name says"])
    def test_other_files_are_refused(self, tmp_path: Path, name: str, data: bytes) -> None:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match=name):
            read_checkpoint(tmp_path / name)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="No such file"):
            read_checkpoint(tmp_path / "w.safetensors")


class Hostile:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.proof,)


class TestOnnx:
    def seed(self, path: Path) -> Seed:
        model = {"source": "onnx", "path": path.name}
        return Seed.model_validate({"name": "o", "model": model, "inputs": {"x": {"kind": "floats", "shape": [2]}}}).at(
            path.parent
        )

    def test_a_valid_file_is_handed_on(self, tmp_path: Path) -> None:
        import onnx.helper as make

        value = [make.make_tensor_value_info(name, 1, [2]) for name in "xy"]
        graph = make.make_graph([make.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
        path = tmp_path / "m.onnx"
        path.write_bytes(make.make_model(graph).SerializeToString())
        model = build_model(self.seed(path), None, convert=False)
        assert model.module is None
        assert model.onnx == path.resolve()

    def test_an_invalid_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        path.write_bytes(b"\x00garbage")
        with pytest.raises(ModelError, match="not valid ONNX"):
            build_model(self.seed(path), None)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"there is no file .*m\.onnx"):
            build_model(self.seed(tmp_path / "m.onnx"), None)


class TestCalibration:
    @pytest.mark.parametrize(
        ("name", "args"),
        [("mobilenet_v2", {}), ("vit_b_16", {"image_size": 32, "num_classes": 50})],
    )
    def test_random_weights_answer_alike_and_calibrated_ones_do_not(self, name: str, args: dict[str, Any]) -> None:
        assert change_over_inputs(build_model(library(name, "random", **args), None)) < 1e-8
        calibrated = build_model(library(name, **args), None)
        assert change_over_inputs(calibrated) > 0.1
        top = {int(one_tensor(leaves).argmax()) for leaves in answers(calibrated, range(50, 60))}
        assert len(top) >= 3

    def test_layers_come_out_at_unit_scale(self) -> None:
        torch.manual_seed(0)
        stem, head = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 5)
        module = nn.Sequential(stem, nn.ReLU(), nn.Flatten(), head).requires_grad_(False)
        samples = [torch.randn(4, 3, 8, 8) * 100 + 30 for _ in range(6)]
        priors = stem.bias.clone(), head.bias.clone()
        calibrate(module, [((sample,), {}) for sample in samples], seed=0)
        features = torch.cat([stem(sample) for sample in samples])
        logits = torch.cat([module(sample) for sample in samples])
        for values, prior in ((features.movedim(1, 0).flatten(1), priors[0]), (logits.t(), priors[1])):
            assert torch.allclose(values.mean(1), prior, atol=1e-4)
            assert 0.5 < values.std().item() < 1.2

    @given(groups=st.sampled_from([1, 2]), out=st.sampled_from([2, 4]), bias=st.booleans(), number=st.integers(0, 99))
    @settings(max_examples=12, deadline=None)
    def test_transposed_convolutions_scale_the_right_channels(
        self, groups: int, out: int, bias: bool, number: int
    ) -> None:
        torch.manual_seed(number)
        layer = nn.ConvTranspose2d(4, out, 2, groups=groups, bias=bias).requires_grad_(False)
        layer.weight.mul_(torch.rand(layer.weight.shape[1]).view(1, -1, 1, 1) * 50 + 1)
        sample = torch.randn(3, 4, 5, 5)
        seen: list[Tensor] = []
        module = nn.Sequential(layer, Watch(seen)).requires_grad_(False)
        calibrate(module, [((sample,), {})], seed=0)
        # what the calibration pass handed on is what the changed weights give
        assert torch.allclose(seen[0], layer(sample), rtol=1e-4, atol=1e-4)
        assert 0.3 < layer(sample).std().item() < 1.5

    def test_batch_norm_takes_the_statistics_of_all_samples(self) -> None:
        norm = nn.BatchNorm1d(2, affine=False).eval()
        calls = [((torch.tensor([[0.0, 1.0]]),), {}), ((torch.tensor([[4.0, 5.0]]),), {})]
        calibrate(norm, calls, seed=0)
        assert norm.running_mean.tolist() == [2.0, 3.0]
        assert norm.running_var.tolist() == [4.0, 4.0]

    def test_a_module_that_always_answers_the_same_stays_finite(self) -> None:
        module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).eval().requires_grad_(False)
        calibrate(module, [((torch.ones(1, 4),), {})] * 4, seed=0)
        assert torch.isfinite(module(torch.ones(1, 4))).all()

    def test_gates_that_start_closed_are_opened(self) -> None:
        class Gated(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.gate = nn.Parameter(torch.full((4,), 1e-6))

            def forward(self, x: Tensor) -> Tensor:
                return self.gate * self.inner(x)

        module = Gated().requires_grad_(False)
        calibrate(module, [((torch.randn(5, 4),), {})], seed=0)
        assert module(torch.randn(50, 4)).std().item() > 0.05

    def test_a_layer_that_is_called_twice_keeps_what_its_first_call_set(self) -> None:
        layer = nn.Linear(4, 4).requires_grad_(False)
        sample = torch.randn(64, 4)
        prior = layer.bias.clone()
        calibrate(nn.Sequential(layer, layer), [((sample,), {})], seed=0)
        assert torch.allclose(layer(sample).mean(0), prior, atol=1e-5)

    @given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 999))
    @settings(max_examples=30, deadline=None)
    def test_pooled_moments_are_those_of_all_values_together(self, sizes: list[int], number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        parts = [torch.randn(size, 3, 2, generator=generator, dtype=torch.float64) + 7 for size in sizes]
        seen = pooled([moments(part, 1) for part in parts])
        together = torch.cat(parts).movedim(1, 0).flatten(1)
        assert torch.allclose(seen.mean, together.mean(1))
        assert torch.allclose(seen.variance, together.var(1, unbiased=False), atol=1e-9)


class Watch(nn.Module):
    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x


class TestLockstep:
    @given(st.lists(st.lists(st.sampled_from("abc"), max_size=5), max_size=4))
    @settings(max_examples=40, deadline=None)
    def test_calls_meet_round_by_round_in_their_order(self, visits: list[list[str]]) -> None:
        met: list[tuple[Any, list[Any]]] = []
        lockstep = Lockstep(lambda key, values: met.append((key, list(values))))

        def walk(i: int) -> Callable[[], None]:
            return lambda: [lockstep.meet(key, i) for key in visits[i]] and None

        lockstep.run([walk(i) for i in range(len(visits))])
        expected = []
        for turn in range(max(map(len, visits), default=0)):
            groups: dict[str, list[int]] = {}
            for i, keys in enumerate(visits):
                if turn < len(keys):
                    groups.setdefault(keys[turn], []).append(i)
            expected += list(groups.items())
        assert met == expected

    def test_one_failure_ends_them_all(self) -> None:
        lockstep = Lockstep(lambda key, values: None)
        reached = []

        def good() -> None:
            lockstep.meet("first", 0)
            lockstep.meet("second", 0)
            reached.append("end")

        def bad() -> None:
            lockstep.meet("first", 0)
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            lockstep.run([good, bad, good])
        assert reached == []


class TestShippedSeeds:
    def test_these_are_all(self) -> None:
        assert sorted(path.stem for path in SEEDS.glob("*.yaml")) == SHIPPED

    @pytest.mark.parametrize("name", SHIPPED)
    def test_answers_are_finite_and_change_with_the_input(self, name: str) -> None:
        model = build_model(load_seed(SEEDS / f"{name}.yaml"), None)
        found = answers(model, range(40, 44))
        assert set(found[0]) >= set(model.seed.task.outputs.values())
        for path, first in found[0].items():
            values = [leaves[path] for leaves in found]
            assert all(isinstance(value, Tensor) and bool(torch.isfinite(value).all()) for value in values)
            assert isinstance(first, Tensor)
            assert not any(torch.equal(first, other) for other in values[1:] if isinstance(other, Tensor))

    def test_the_detector_finds_boxes_of_distinct_scores(self) -> None:
        found = answers(build_model(load_seed(SEEDS / "detector.yaml"), None), range(8))
        scores = [leaves["[0].scores"] for leaves in found]
        counts = [len(value) for value in scores if isinstance(value, Tensor)]
        assert sum(count >= 10 for count in counts) >= 5
        assert all(len(value.unique()) >= 0.95 * len(value) for value in scores if isinstance(value, Tensor))

    def test_the_segmenter_uses_many_classes(self) -> None:
        found = answers(build_model(load_seed(SEEDS / "segmenter.yaml"), None), range(40, 44))
        assert all(len(one_tensor(leaves).argmax(1).unique()) >= 5 for leaves in found)

    def test_the_digits_network_reads_its_samples(self) -> None:
        found = answers(build_model(load_seed(SEEDS / "digits.yaml"), None), range(10))
        assert [int(one_tensor(leaves).argmax()) for leaves in found] == list(range(10))

    def test_the_digits_network_reads_digits_it_was_not_trained_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(SEEDS / "builders"))
        from train_digits import accuracy  # type: ignore[import-not-found]

        assert accuracy(module_of(build_model(load_seed(SEEDS / "digits.yaml"), None)), n=500, seed=77) > 0.95

    def test_post_processing_agrees_with_torchvision(self) -> None:
        from torchvision.models.detection._utils import BoxCoder
        from torchvision.ops import clip_boxes_to_image

        model = build_model(load_seed(SEEDS / "postprocess.yaml"), None)
        sample = base_sample(model.seed, 3)
        decoded = module_of(model).decode(sample["anchors"], sample["deltas"])
        coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
        wanted = clip_boxes_to_image(coder.decode_single(sample["deltas"], sample["anchors"]), (320, 320))
        assert torch.allclose(decoded, wanted, atol=1e-3)

    def test_padding_does_not_change_what_the_transformer_says_of_the_rest(self) -> None:
        model = build_model(load_seed(SEEDS / "transformer.yaml"), None)
        tokens = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(0))
        mask = torch.arange(8).view(1, 8) < 5
        padded = module_of(model)(tokens, mask)[:, :5]
        alone = module_of(model)(tokens[:, :5], mask[:, :5])
        assert torch.allclose(padded, alone, atol=1e-5)
