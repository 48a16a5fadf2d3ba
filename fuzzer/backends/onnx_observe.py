"""Looking inside an ONNX Runtime session: one run of the same file with more outputs.

The values come under the names of the module tree, which the module itself, run eagerly once, gives them. A match is
believed only where it holds on the example input: a value that is not the module's there, while the output is, has
been matched wrongly and is left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.base import Sample
from fuzzer.backends.eager import duplicate
from fuzzer.backends.observe import EXTRA_OUTPUTS, Observation, observe_eager, output_values
from fuzzer.backends.onnx_names import Candidates, candidates, every_value, with_outputs
from fuzzer.backends.refusals import one_line
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.trees import flatten

#: ‖t − r‖∞ / ‖r‖∞ on the example input up to which two values are called the same one, by the size of their floats.
_ALIKE = {8: 1e-3, 4: 1e-3}
_ALIKE_SHORT = 0.05

Answers = dict[str, Tensor]


class OnnxTaps:
    """A second session on the file `data`, with more outputs. `open_` makes sessions, `run` gives outputs by name.

    For a file of the user's own, the steps are its nodes' results under their own names.
    """

    def __init__(
        self,
        model: Model,
        data: bytes,
        open_: Callable[[bytes], Any],
        run: Callable[[Any, Sample], Answers],
        example: Sample,
    ) -> None:
        import onnx

        self._model = model
        self._module = copy.deepcopy(model.module)  # a module with a state of its own must not change by this
        self._proto = onnx.load_model_from_string(data)
        if any(value.data_location == onnx.TensorProto.EXTERNAL for value in self._proto.graph.initializer):
            raise Unsupported("the ONNX file keeps its weights beside it", stage="observe")
        self._open = open_
        self._run = run
        self._sessions: dict[tuple[str, ...], Any] = {}
        self._doubtful: dict[str, str] = {}
        self._moved: dict[str, str] = {}
        self._example = example
        self._proved = False

    def observe(self, sample: Sample, rebuild: Callable[[Answers], Any]) -> Observation:
        """Raises Unsupported where no session with more outputs can be made."""
        if self._module is None:
            steps = every_value(self._proto)
            answers = self._run(self._session(list(steps)), sample)
            values = {step.name: answers[name] for name, step in steps.items() if name in answers}
            lost = {step.name: "its type is no tensor" for name, step in steps.items() if name not in answers}
            output, named = rebuild(answers), {step.name: step for step in steps.values()}
            return Observation(output, values | output_values(flatten(output)), EXTRA_OUTPUTS, named, lost)
        if not self._proved:
            self._proved = True
            plain, example = self._eager(self._example), self._matched(self._example, rebuild)
            self._moved = _folded(plain, example)
            self._doubtful = _not_the_same(plain, self._matched(self._example, rebuild))
        return self._matched(sample, rebuild)

    def _matched(self, sample: Sample, rebuild: Callable[[Answers], Any]) -> Observation:
        assert self._module is not None
        plain = self._eager(sample)
        found = candidates(self._proto, plain.steps, self._module)
        found = self._believed(found)
        names = list(dict.fromkeys(name for values in found.values.values() for name in values))
        answers = self._run(self._session(names), sample)
        values, lost = _chosen(found, answers, plain.values)
        output = rebuild(answers)
        return Observation(output, values | output_values(flatten(output)), EXTRA_OUTPUTS, plain.steps, lost)

    def _believed(self, found: Candidates) -> Candidates:
        """The matches as the example input left them."""
        values = {self._moved.get(name, name): names for name, names in found.values.items()}
        lost = {name: why for name, why in found.lost.items() if name not in values}
        lost |= {name: f"folded into {to}" for name, to in self._moved.items()}
        return Candidates({n: v for n, v in values.items() if n not in self._doubtful}, lost | self._doubtful)

    def _eager(self, sample: Sample) -> Observation:
        assert self._module is not None
        args, kwargs = self._model.call(duplicate(sample))
        with torch.no_grad():
            return observe_eager(self._module, args, kwargs)

    def _session(self, names: list[str]) -> Any:
        key = tuple(names)
        if key not in self._sessions:
            try:
                self._sessions = {key: self._open(with_outputs(self._proto, names))}
            except Exception as error:  # onnxruntime's errors share no base class but Exception
                raise Unsupported(one_line(error), stage="observe") from error
        return self._sessions[key]


def _chosen(
    found: Candidates, answers: Answers, plain: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Of each step's candidates the one that fits; sizes may differ, for they may be what is wrong, but not ranks."""
    values: dict[str, Tensor] = {}
    lost = dict(found.lost)
    for name in plain:
        names = found.values.get(name)
        if names is None:
            continue
        wanted = plain[name]
        fitting = [n for n in names if n in answers and _same_sort(answers[n], wanted)]
        exact = [n for n in fitting if answers[n].shape == wanted.shape]
        choice = exact or (fitting if len(names) == 1 and not found.partial(name) else [])
        if len(choice) == 1:
            values[name] = answers[choice[0]]
        else:
            lost[name] = "no value of the exported graph is it for certain"
    return values, lost


def _same_sort(value: Tensor, wanted: Tensor) -> bool:
    return value.dim() == wanted.dim() and value.is_floating_point() == wanted.is_floating_point()


def _folded(plain: Observation, seen: Observation) -> dict[str, str]:
    """Steps whose place holds the value of the step that follows: a convolution with its batch norm folded in.

    The follower takes nothing else, has no place of its own, and is nearer to the value on the example.
    """
    moved: dict[str, str] = {}
    for step in plain.steps.values():
        follows, name = step.sources or (), step.name
        if len(follows) != 1 or name in seen.values or follows[0] not in seen.values:
            continue
        value, before = seen.values[follows[0]], plain.values[follows[0]]
        if _distance(plain.values[name], value) < _distance(before, value):
            moved[follows[0]] = name
    return moved


def _not_the_same(plain: Observation, seen: Observation) -> dict[str, str]:
    """Steps whose values on the example are not those of the module; none where the outputs differ themselves."""
    outputs = output_values(flatten(plain.output)), output_values(flatten(seen.output))
    if any(name not in outputs[1] or not _alike(value, outputs[1][name]) for name, value in outputs[0].items()):
        return {}
    names = [name for name in seen.values if name in plain.values and name not in outputs[0]]
    wrong = [name for name in names if not _alike(plain.values[name], seen.values[name])]
    return dict.fromkeys(wrong, "the exported graph holds another value at this place")


def _alike(reference: Tensor, target: Tensor) -> bool:
    return _distance(reference, target) <= _ALIKE.get(reference.dtype.itemsize, _ALIKE_SHORT)


def _distance(reference: Tensor, target: Tensor) -> float:
    """‖t − r‖∞ / ‖r‖∞ over what is finite on both sides; 0 for integers, infinite where shapes differ."""
    if reference.shape != target.shape:
        return math.inf
    r, t = reference.to(torch.float64), target.to(torch.float64)
    finite = torch.isfinite(r) & torch.isfinite(t)
    if not reference.is_floating_point() or not bool(finite.any()):
        return 0.0
    worst = float((t - r)[finite].abs().max())
    return worst / max(float(r[finite].abs().max()), 1e-300) if worst else 0.0
