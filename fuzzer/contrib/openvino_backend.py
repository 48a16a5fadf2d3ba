"""OpenVINO as a backend: the module exported to ONNX, or an ONNX file, compiled for the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fuzzer.backends.eager import check_threads
from fuzzer.backends.onnx_target import OnnxTarget
from fuzzer.backends.registry import register
from fuzzer.backends.spec import BackendSpec
from fuzzer.contrib.onnx_reference import to_numpy, to_torch


@register
class OpenVino(OnnxTarget):
    """`openvino:cpu`.

    Options: precision (what floats are computed in; default: what OpenVINO chooses, bfloat16 where the processor has
    it), threads (1), exporter.
    """

    runtime = "openvino"
    packages = ("openvino",)
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "precision": ("default", "f32", "bf16", "f16"),
        "threads": (),
        **OnnxTarget.options,
    }

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        super().check(spec)
        check_threads(spec)

    def open_file(self, source: str | bytes) -> Any:
        import openvino

        core = openvino.Core()
        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": int(self.spec.options.get("threads", "1"))}
        precision = self.spec.options.get("precision", "default")
        if precision != "default":
            settings["INFERENCE_PRECISION_HINT"] = precision
        return core.compile_model(core.read_model(source), "CPU", settings)

    def names(self, session: Any) -> tuple[list[str], list[str]]:
        return [port.any_name for port in session.inputs], [port.any_name for port in session.outputs]

    def answers(self, session: Any, fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        request = session.create_infer_request()  # a new one for each call: no state is carried over
        request.infer({name: _to_openvino(tensor) for name, tensor in fed.items()})
        return {port.any_name: _from_openvino(request.get_tensor(port)) for port in session.outputs}

    def about(self) -> dict[str, Any]:
        import openvino

        nodes: dict[str, Counter[str]] = {}
        for operator in self.session.get_runtime_model().get_ops():
            told = operator.get_rt_info()
            layer, ran_in = (str(told[key].value) if key in told else "?" for key in ("layerType", "runtimePrecision"))
            nodes.setdefault(ran_in, Counter())[layer] += 1
        return {
            "openvino": openvino.__version__,
            "device": self.session.get_property("EXECUTION_DEVICES"),
            "precision": self.session.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
            "nodes": {precision: dict(sorted(found.items())) for precision, found in sorted(nodes.items())},
        }


def _to_openvino(tensor: Tensor) -> Any:
    """By its bits where it is bfloat16: OpenVINO would take them for float16's."""
    import openvino

    if tensor.dtype != torch.bfloat16:
        return to_numpy(tensor)
    bits = tensor.detach().to("cpu").contiguous().view(torch.int16).clone().numpy()
    return openvino.Tensor(bits, openvino.Shape(list(tensor.shape)), openvino.Type.bf16)


def _from_openvino(value: Any) -> Tensor:
    """Its numpy array shows bfloat16's bits as float16's. Raises TypeError on a type that numpy cannot show either."""
    name = value.element_type.get_type_name()
    if name == "bf16":
        return to_torch(value.data.view("int16")).view(torch.bfloat16)
    if name.startswith("f8"):
        raise TypeError(f"an output is {name}")
    return to_torch(value.data)
