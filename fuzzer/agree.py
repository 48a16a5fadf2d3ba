"""`assert_agree`: the honest verdict on a user's own module, in one line of a test.

    def test_my_model_on_torch_compile():
        assert_agree(model, torch.rand(1, 3, 32, 32), backends=["inductor:cpu"])

A module in memory cannot travel to a worker without being pickled, so all sides run in this process, each on a copy of
its own. What a backend does to its process (a crash, flags, Dynamo's caches, which are reset) it does to this one;
campaigns and replays have processes for that.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.backends.eager import set_tf32, tf32
from fuzzer.backends.oracle import Oracle
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.registry import availability, backend_class, parse
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import SpecError, Unsupported, XbfuzzError
from fuzzer.models import Model, weights_hash
from fuzzer.seeds import Seed
from fuzzer.tensors import raw_bytes
from fuzzer.trees import Leaves, flatten, map_tensors
from fuzzer.verify.examine import DECISION_DRAWS, DRAWS, large_gaps, unstable, verdict_of
from fuzzer.verify.judge import THRESHOLD, OracleAnswer
from fuzzer.verify.unanswered import OracleDown
from fuzzer.verify.vacuity import Vacuity, informative_leaves
from fuzzer.verify.verdict import Outcome, Verdict, sentence_of

#: One sample: a tensor, tensors by position, or tensors by the name of the argument.
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
BACKENDS = ("inductor:cpu",)
_SHOWN = 5


class Disagreement(AssertionError):
    """A backend answers differently, refuses the module, raises, or changes what it was handed."""


class NothingCompared(AssertionError):
    """The comparison could not have told a wrong answer from a right one."""


class Unavailable(XbfuzzError):
    """A backend cannot run on this machine, which says nothing about the module."""


def assert_agree(
    model: nn.Module,
    inputs: Inputs,
    backends: Sequence[str] = BACKENDS,
    *,
    more: Sequence[Inputs] = (),
    reference: str = "eager:cpu",
    rng_seed: int = 0,
    tolerance: tuple[float, float] | None = None,
) -> dict[str, list[Verdict]]:
    """Assert that every backend answers on `inputs`, and on each sample in `more`, as `reference` does.

    A difference counts where it is beyond the module's own rounding noise, judged against float64; with `tolerance`
    (absolute, relative), where it is beyond that. The module is copied, in eval mode and without gradients; it and the
    random state stay as they are. Gives the verdicts by backend, one a sample.

    Raises Disagreement or NothingCompared, both AssertionError, with the facts in words; Unavailable where a backend
    cannot run here; SpecError where there is no such backend; TypeError on inputs that are no tensors.
    """
    if not backends:
        raise NothingCompared("no backend was named: nothing would be compared")
    samples = [_named(sample) for sample in (inputs, *more)]
    seed = _seed(model, samples[0], tolerance)
    for text in (reference, *backends):
        _check(text)
    with _random_state_kept():
        truth = _Side(ORACLE, model, seed, samples[0])
        base = _Side(reference, model, seed, samples[0])
        vacuity = _vacuity(base, samples, seed, rng_seed)
        found: dict[str, list[Verdict]] = {}
        for text in backends:
            target = _Side(text, model, seed, samples[0])
            found[text] = [_agreed(seed, base, target, truth, sample, vacuity, rng_seed) for sample in samples]
        return found


@dataclass(frozen=True)
class _Settings:
    """What backends set for a whole process, so that one side's options do not reach the other."""

    threads: int
    tf32: bool

    @classmethod
    def now(cls) -> _Settings:
        return cls(torch.get_num_threads(), tf32()["matmul"])

    def set(self) -> None:
        torch.set_num_threads(self.threads)
        if tf32()["matmul"] != self.tf32:
            set_tf32(self.tf32)


class _Side:
    """A backend prepared on its own copy of the module. Raises Disagreement where it refuses the module."""

    def __init__(self, text: str, model: nn.Module, seed: Seed, example: Mapping[str, Tensor]) -> None:
        self.text = text
        module = copy.deepcopy(model).eval().requires_grad_(False)
        self._module = module
        spec = BackendSpec.parse(text)
        self.backend = Oracle(spec) if text == ORACLE else backend_class(spec.runtime)(spec)
        torch.manual_seed(0)
        self._failure: Exception | None = None
        before = _Settings.now()
        try:
            self.backend.prepare(Model(seed, module), _copies(example))
        except Unsupported as error:
            raise Disagreement(f"{text} refuses the module ({error.stage}): {error.reason}") from error
        except Exception as error:  # what it will answer to every sample
            self._failure = error
        finally:
            self._settings = _Settings.now()
            before.set()
        self._weights = weights_hash(module)

    def run(self, sample: Mapping[str, Tensor], rng_seed: int) -> Leaves | Exception:
        """The leaves, or what was raised. Raises Disagreement where the run changed inputs or parameters."""
        if self._failure is not None:
            return self._failure
        inputs = _copies(sample)
        torch.manual_seed(rng_seed)
        before = _Settings.now()
        self._settings.set()
        try:
            output = self.backend.run(inputs)
        except Exception as error:  # an answer like any other: it is compared
            return error
        finally:
            before.set()
        leaves = flatten(map_tensors(output, lambda tensor: tensor.detach().to("cpu").clone()))
        changed = [name for name in sample if raw_bytes(inputs[name]) != raw_bytes(sample[name])]
        if changed or weights_hash(self._module) != self._weights:
            raise Disagreement(f"a run on {self.text} changed {', '.join(changed) or 'the parameters'}")
        return leaves

    def judge(self, sample: Mapping[str, Tensor], rng_seed: int, decide: bool) -> OracleAnswer:
        """What the oracle measures. Raises OracleDown where it cannot."""
        assert isinstance(self.backend, Oracle)
        variant = {
            "draws": DECISION_DRAWS if decide else DRAWS,
            "amplitude": int(THRESHOLD) if decide else 1,
            "decide": decide,
            "truth": not decide,
            "rng_seed": rng_seed,
        }
        try:
            return OracleAnswer.from_leaves(flatten(self.backend.run_variant(_copies(sample), variant)))
        except Exception as error:  # recorded: the verdict is then not judged, and says why
            raise OracleDown(f"the oracle failed: {type(error).__name__}: {error}") from error


def _agreed(
    seed: Seed,
    base: _Side,
    target: _Side,
    truth: _Side,
    sample: Mapping[str, Tensor],
    vacuity: Vacuity,
    rng_seed: int,
) -> Verdict:
    sides = [side.run(sample, rng_seed) for side in (base, target)]
    left, right = sides
    if isinstance(left, Exception) and isinstance(right, Exception):
        raise NothingCompared(f"both {base.text} and {target.text} raise, so nothing was compared: {_error(left)}")
    for side, answer, other in ((base, left, target), (target, right, base)):
        if isinstance(answer, Exception):
            raise Disagreement(f"{side.text} raises where {other.text} answers: {_error(answer)}") from answer
    assert not isinstance(left, Exception)
    assert not isinstance(right, Exception)
    verdict, _ = verdict_of(seed, left, right, lambda decide: truth.judge(sample, rng_seed, decide), vacuity=vacuity)
    if verdict.differences or large_gaps(verdict, left):
        for side, before in ((base, left), (target, right)):
            _refuse_wavering(side, before, verdict, sample, rng_seed)
    if verdict.outcome is Outcome.MISMATCH:
        raise Disagreement("\n".join(_words(verdict, base.text, target.text)))
    if verdict.outcome is not Outcome.PASS:
        raise NothingCompared(f"{target.text} was compared with {base.text}, but {_reasons(vacuity)}")
    return verdict


def _refuse_wavering(
    side: _Side, before: Leaves, verdict: Verdict, sample: Mapping[str, Tensor], rng_seed: int
) -> None:
    """Raises Disagreement where a side disagrees with itself: what it says then tells nothing about the other."""
    again = side.run(sample, rng_seed)
    if isinstance(again, Exception):
        raise Disagreement(f"{side.text} answered once, and then raises: {_error(again)}")
    own = unstable(before, again, verdict)
    if own is not None:
        raise Disagreement(f"{side.text} disagrees with itself at {own.path}: {own.message}")


def _words(verdict: Verdict, base: str, target: str) -> Iterator[str]:
    yield f"{target} answers differently from {base}: {sentence_of(replace(verdict, task=None))}"
    for difference in verdict.differences[:_SHOWN]:
        at = f"{difference.path}{list(difference.index) if difference.index is not None else ''}"
        yield f"  {at}: {difference.message}"
        if difference.reference or difference.target:
            truth = f", float64 {difference.truth}" if difference.truth else ""
            yield f"    {base} {difference.reference}, {target} {difference.target}{truth}"
        near = "; a near-tie" if difference.near_tie else ""
        yield f"    to blame: {difference.blame}{near}"
    if len(verdict.differences) > _SHOWN:
        yield f"  and {len(verdict.differences) - _SHOWN} more"
    yield from (f"  {note}" for note in verdict.notes)


def _vacuity(base: _Side, samples: Sequence[Mapping[str, Tensor]], seed: Seed, rng_seed: int) -> Vacuity:
    """Which outputs depend on the input at all, seen on the samples and on one more made of the first."""
    outputs = []
    for sample in (*samples, _moved(samples[0])):
        answer = base.run(sample, rng_seed)
        if not isinstance(answer, Exception):
            outputs.append(answer)
    return informative_leaves(outputs, seed.tolerance) if len(outputs) > 1 else Vacuity()


def _moved(sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Another sample in the same range: each input's elements in another order, floats scaled by 0.5 to 1 as well."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, tensor in sample.items():
        order = torch.randperm(tensor.numel(), generator=generator)
        value = tensor.reshape(-1)[order].reshape(tensor.shape)
        if tensor.is_floating_point():
            value = value * (0.5 + 0.5 * torch.rand(tensor.shape, generator=generator)).to(tensor.dtype)
        found[name] = value
    return found


def _reasons(vacuity: Vacuity) -> str:
    reasons = "; ".join(f"{path}: {reason}" for path, reason in list(vacuity.reasons.items())[:_SHOWN])
    return f"no output could have told a wrong answer from a right one ({reasons or 'there is none'})"


def _check(text: str) -> None:
    spec = parse(text)
    if spec.python:
        raise SpecError(f"{text}: a module in memory cannot be handed to another interpreter")
    reason = availability(spec)
    if reason is not None:
        raise Unavailable(f"{text}: {reason}")


def _named(inputs: Inputs) -> dict[str, Tensor]:
    """The sample by name: `x0`, `x1`, … for tensors by position."""
    if isinstance(inputs, Tensor):
        named = {"x0": inputs}
    elif isinstance(inputs, Mapping):
        named = dict(inputs)
    else:
        named = {f"x{i}": tensor for i, tensor in enumerate(inputs)}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"input {name} is a {type(tensor).__name__}, not a tensor")
    return {name: tensor.detach().cpu() for name, tensor in named.items()}


def _seed(model: nn.Module, sample: Mapping[str, Tensor], tolerance: tuple[float, float] | None) -> Seed:
    """What backends and the judge need to know of the module, in the form in which they know it of a seed."""
    by_name = any(name != f"x{i}" for i, name in enumerate(sample))
    data: dict[str, Any] = {
        "name": type(model).__name__.lstrip("_") or "module",
        "model": {"source": "builder", "builder": "memory:module"},
        "inputs": {name: _spec(name, tensor) for name, tensor in sample.items()},
    }
    if by_name:
        data["call"] = {"args": [], "kwargs": {name: name for name in sample}}
    if tolerance is not None:
        data["tolerance"] = {"atol": float(tolerance[0]), "rtol": float(tolerance[1])}
    try:
        return Seed.model_validate(data)
    except ValueError as error:
        raise TypeError(f"these inputs cannot be compared on: {error}") from error


def _spec(name: str, tensor: Tensor) -> dict[str, Any]:
    floating = tensor.is_floating_point() or tensor.is_complex()
    kind = "mask" if tensor.dtype is torch.bool else "floats" if floating else "integers"
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"kind": kind, "shape": list(tensor.shape), "dtype": dtype, "exact": not floating}


def _copies(sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in sample.items()}


def _error(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@contextmanager
def _random_state_kept() -> Iterator[None]:
    with torch.random.fork_rng():
        yield
