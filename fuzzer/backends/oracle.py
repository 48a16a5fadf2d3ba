"""The oracle: the reference module in float64, and under random rounding. A backend like any other, in its own process.

It is asked by variant. `{"kind": "judge", "draws": K, "amplitude": A, "decide": bool, "rng_seed": n}` answers
`{"plain": …, "truth": …, "draws": [K outputs], "narrow": bool, "formulas": bool}`: the module as it is, in float64 on
the same inputs, and K times with inputs, parameters and rounded results moved by up to A places. `narrow`: 16-bit
floats were seen; `formulas`: some ran in place of a kernel.
`{"kind": "truth", "rng_seed": n}` answers the float64 run alone: for an input that the module itself refuses.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.onnx_oracle import OnnxNodes
from fuzzer.backends.refusals import one_line
from fuzzer.backends.rounding import Float64, RandomRounding, widen
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import Unsupported
from fuzzer.models import Model
from fuzzer.trees import map_tensors


class Oracle(Backend):
    """Of a torch module; of an ONNX file that has none, by ONNX's own evaluator (`onnx_oracle`)."""

    runtime: ClassVar[str] = "oracle"

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        return None

    def prepare(self, model: Model, example: Sample) -> None:
        self._model = model
        if model.module is not None:
            self._module, self._wide = model.module, _widened(model.module)
            return
        assert model.onnx is not None
        names = list(model.seed.inputs)
        try:
            self._module, self._wide = (OnnxNodes(model.onnx, names, double=double) for double in (False, True))
        except Exception as error:  # onnx's errors share no base class: an operator that its evaluator has not
            reason = f"no torch module ({model.no_module}), and ONNX's evaluator refuses: {one_line(error)}"
            raise Unsupported(reason, stage="oracle") from error

    def run(self, sample: Sample) -> Any:
        return self._call(self._module, sample)

    def run_variant(self, sample: Sample, variant: dict[str, Any]) -> Any:
        """See the module's docstring. A truth that cannot be had (an operator without float64) is the text of the
        error."""
        rng_seed = int(variant["rng_seed"])
        _seed(rng_seed)
        if variant.get("kind") == "truth":
            return {"truth": self._truth(sample)}
        answer: dict[str, Any] = {"plain": self.run(_copies(sample))}
        if variant.get("truth", True):
            _seed(rng_seed)
            answer["truth"] = self._truth(sample)
        exact = {name for name, spec in self._model.seed.inputs.items() if spec.exact}
        answer["narrow"] = answer["formulas"] = False
        answer["draws"] = []
        state = _state(self._module)
        kept = [value.detach().clone() for value in state]
        try:
            for draw in range(int(variant["draws"])):
                _seed(rng_seed)
                output, rounding = self._perturbed(sample, exact, list(zip(state, kept, strict=True)), variant, draw)
                answer["draws"].append(output)
                answer["narrow"] |= rounding.narrow
                answer["formulas"] |= rounding.by_formula
        finally:
            for value, before in zip(state, kept, strict=True):
                value.data.copy_(before)
        return answer

    def _truth(self, sample: Sample) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with Float64():  # type: ignore[no-untyped-call]
                return self._call(self._wide, {name: widen(tensor) for name, tensor in _copies(sample).items()})
        except Exception as error:  # recorded: the verdict then says that there was no float64 answer, and why
            return {"no_truth": f"{type(error).__name__}: {error}"[:300]}
        finally:
            torch.set_default_dtype(before)

    def _perturbed(
        self, sample: Sample, exact: set[str], state: list[tuple[Tensor, Tensor]], variant: dict[str, Any], draw: int
    ) -> tuple[Any, RandomRounding]:
        """One run under random rounding, and the mode that tells what was seen in it.

        `state` has the module's tensors, which are moved and stay so, each with a copy of what it was. Buffers of whole
        numbers stay: an exponent of 2 or a scale of 4 is no measured value, and 2.0000002 has no answer for −1.
        """
        rounding = RandomRounding(1 + draw, int(variant["amplitude"]), move_zeros=bool(variant.get("decide")))
        inputs = {name: tensor if name in exact else rounding.move(tensor) for name, tensor in _copies(sample).items()}
        for value, before in state:
            value.data.copy_(before)
            if isinstance(value, nn.Parameter) or not _whole(before):
                rounding.move_in_place(value.data)
        moving = self._module.moving(rounding.move, exact) if isinstance(self._module, OnnxNodes) else nullcontext()
        with rounding, moving:
            output = map_tensors(self._call(self._module, inputs), lambda tensor: tensor.detach().clone())
        return output, rounding

    def _call(self, module: nn.Module, sample: Sample) -> Any:
        args, kwargs = self._model.call(sample)
        with torch.no_grad():
            return module(*args, **kwargs)


def _copies(sample: Sample) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in sample.items()}


def _state(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*module.parameters(), *module.buffers()]


def _whole(value: Tensor) -> bool:
    return bool((value == value.round()).all()) if value.is_floating_point() else not value.is_complex()


def _seed(rng_seed: int) -> None:
    """Seed the CPU's generator alone, at a fraction of the cost: `torch.manual_seed` also asks every accelerator."""
    torch.default_generator.manual_seed(rng_seed)


def _widened(module: nn.Module) -> nn.Module:
    """A float64 copy, in which plain tensor attributes (anchors, grids) are left to the dispatch mode."""
    return copy.deepcopy(module).double()
