"""`assert_agree`: a user's module in one line, with the same honesty as a campaign."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fuzzer
from fuzzer.agree import Disagreement, NothingCompared, Unavailable, assert_agree
from fuzzer.errors import SpecError
from fuzzer.verify.verdict import Outcome

THREADS = "eager:cpu?threads=2"


class Trick(nn.Module):
    """A linear layer that does something else on two threads, by which it knows that it is the target."""

    def __init__(self, what: str = "") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.what = what
        self.calls = 0

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y: Tensor = self.linear(x)
        if scale is not None:
            y = y * scale
        target = torch.get_num_threads() == 2
        self.calls += 1
        if self.what == "both raise" or (self.what == "raises" and target):
            raise ValueError("no such luck")
        if self.what == "moves" and target:
            return y * 1.001
        if self.what == "wavers":
            return y + torch.rand(()) if self.calls == 1 else y + self.calls
        if self.what == "writes" and target:
            x.zero_()
        return y


def model(what: str = "") -> Trick:
    torch.manual_seed(0)
    return Trick(what)


X = torch.linspace(-1, 1, 8).view(2, 4)


def test_a_module_that_agrees_gives_a_verdict_for_each_backend_and_sample() -> None:
    found = assert_agree(model(), X, ["dynamo:cpu", "onnxruntime:cpu"], more=[X + 1])
    assert list(found) == ["dynamo:cpu", "onnxruntime:cpu"]
    assert all(verdict.outcome is Outcome.PASS and verdict.informative == 6 for v in found.values() for verdict in v)


def test_the_package_offers_it_by_name() -> None:
    assert fuzzer.assert_agree is assert_agree


def test_a_value_beyond_the_noise_is_told_with_both_values_and_the_blame() -> None:
    with pytest.raises(Disagreement) as raised:
        assert_agree(model("moves"), X, [THREADS])
    lines = str(raised.value).splitlines()
    assert lines[0] == f"{THREADS} answers differently from eager:cpu: tensors differ at $"
    assert "beyond the noise" in lines[1]
    assert "float64" in lines[2]
    assert lines[3].strip() == "to blame: target"


def test_a_tolerance_of_ones_own_decides() -> None:
    assert_agree(model("moves"), X, ["onnxruntime:cpu"], tolerance=(1e-2, 0.0))
    with pytest.raises(Disagreement):
        assert_agree(model("moves"), X, [THREADS], tolerance=(1e-7, 0.0))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("raises", f"{THREADS} raises where eager:cpu answers: ValueError: no such luck"),
        ("wavers", "disagrees with itself"),
        ("writes", f"a run on {THREADS} changed x0"),
    ],
)
def test_what_else_is_no_agreement_is_told_as_what_it_is(what: str, words: str) -> None:
    with pytest.raises(Disagreement, match=words.replace("?", r"\?")):
        assert_agree(model(what), X, [THREADS])


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (model("both raise"), "both eager:cpu and dynamo:cpu raise"),
        (nn.Sequential(nn.Linear(4, 3), nn.Threshold(1e9, 0.0)), "constant whatever the input"),
    ],
)
def test_a_comparison_that_could_tell_nothing_is_refused(module: nn.Module, words: str) -> None:
    with pytest.raises(NothingCompared, match=words):
        assert_agree(module, X, ["dynamo:cpu"] if words.startswith("both") else [THREADS])


def test_no_backends_are_no_agreement() -> None:
    with pytest.raises(NothingCompared):
        assert_agree(model(), X, [])


def test_a_module_that_cannot_be_captured_is_refused_in_words() -> None:
    with pytest.raises(Disagreement, match="dynamo:cpu refuses the module"):
        assert_agree(nn.LSTM(4, 3), X, ["dynamo:cpu"])


def test_the_module_the_inputs_and_the_random_state_stay_as_they_are() -> None:
    module, x = model("writes").train(), X.clone()
    module.what = ""
    before, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    assert_agree(module, {"x": x, "scale": torch.tensor(2.0)}, [THREADS])
    assert module.training
    assert module.linear.weight.requires_grad
    assert module.calls == 0
    assert torch.equal(x, X)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize("backend", ["eagre:cpu", "eager:tpu", "eager:cpu@python3"])
def test_a_backend_that_does_not_exist_here_is_an_error_of_the_test(backend: str) -> None:
    with pytest.raises(SpecError):
        assert_agree(model(), X, [backend])


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without CUDA")
def test_a_backend_that_cannot_run_says_nothing_about_the_module() -> None:
    with pytest.raises(Unavailable, match="eager:cuda: "):
        assert_agree(model(), X, ["eager:cuda"])


@pytest.mark.parametrize("inputs", [[1.0], {"x": "text"}, torch.zeros(2, dtype=torch.uint16)])
def test_inputs_that_are_no_tensors_it_knows_are_an_error(inputs: object) -> None:
    with pytest.raises(TypeError):
        assert_agree(model(), inputs, [THREADS])  # type: ignore[arg-type]
