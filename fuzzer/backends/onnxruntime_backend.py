"""ONNX Runtime: a module exported to ONNX, or an ONNX file, in an inference session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fuzzer.backends.eager import check_threads, cuda_unavailable
from fuzzer.backends.onnx_target import OnnxTarget
from fuzzer.backends.spec import BackendSpec

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_ERRORS_ONLY = 3
#: Short floats travel through DLPack, the rest through numpy.
_NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_NUMPY_HAS = frozenset(
    f"tensor({name})" for name in "float double float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)
_RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"


class OnnxRuntime(OnnxTarget):
    """`onnxruntime:cpu`, `onnxruntime:cuda`.

    Options: opt (graph optimisations, all), threads (cpu, 1), and those of every OnnxTarget.
    """

    runtime = "onnxruntime"
    packages = ("onnxruntime",)
    #: graph optimisers to leave out, by ONNX Runtime's names for them
    disabled_optimizers: Sequence[str] = ()
    devices = ("cpu", "cuda")
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "opt": tuple(_LEVELS),
        "threads": (),
        **OnnxTarget.options,
    }

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        super().check(spec)
        check_threads(spec)

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        missing = super().unavailable(spec)
        if missing is not None or spec.device == "cpu":
            return missing
        import onnxruntime

        if _PROVIDERS[spec.device] not in onnxruntime.get_available_providers():
            return "this onnxruntime is built without CUDA (the package onnxruntime-gpu has it)"
        return cuda_unavailable()

    def open_file(self, source: str | bytes) -> Any:
        """A session. Raises ValueError where the device is not served or an output is no tensor."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        options.intra_op_num_threads = int(self.spec.options.get("threads", "1"))
        options.inter_op_num_threads = 1
        level = _LEVELS[self.spec.options.get("opt", "all")]
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.add_session_config_entry(_RECORD_PLACEMENT, "1")
        wanted = _PROVIDERS[self.spec.device]
        without = {"disabled_optimizers": list(self.disabled_optimizers)} if self.disabled_optimizers else {}
        session = onnxruntime.InferenceSession(source, options, providers=[wanted], **without)
        if wanted not in session.get_providers():
            raise ValueError(f"{wanted} did not start")
        for item in session.get_outputs():
            if not item.type.startswith("tensor("):
                raise ValueError(f"output {item.name} is a {item.type}, no tensor")
        return session

    def names(self, session: Any) -> tuple[list[str], list[str]]:
        return [item.name for item in session.get_inputs()], [item.name for item in session.get_outputs()]

    def answers(self, session: Any, fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = {name: to_ort(tensor) for name, tensor in fed.items()}
        names = self.names(session)[1]
        return dict(zip(names, map(from_ort, session.run_with_ort_values(names, values)), strict=True))

    def about(self) -> dict[str, Any]:
        import onnxruntime

        return {
            "onnxruntime": onnxruntime.__version__,
            "opt": self.spec.options.get("opt", "all"),
            "providers": list(self.session.get_providers()),
            "nodes": placement(self.session),
        }


def to_ort(tensor: Tensor) -> Any:
    """`tensor` as an OrtValue on the CPU, without a copy where it lies there.

    Through numpy where numpy has the dtype: older versions of onnxruntime take no bool through DLPack.
    """
    from onnxruntime import OrtValue

    held = tensor.detach().to("cpu").contiguous()
    return OrtValue.from_dlpack(held) if held.dtype in _NOT_IN_NUMPY else OrtValue.ortvalue_from_numpy(held.numpy())


def from_ort(value: Any) -> Tensor:
    """The tensor in an OrtValue, with the dtype that ONNX Runtime gives it."""
    if value.data_type() in _NUMPY_HAS:
        return torch.as_tensor(value.numpy())
    return from_dlpack(value)


def placement(session: Any) -> dict[str, dict[str, int]]:
    """Execution provider → operator → number of nodes, after the session's graph optimisations.

    Empty where this onnxruntime does not tell (the interface is newer than 1.23).
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    placed: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        placed.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return {provider: dict(sorted(found.items())) for provider, found in sorted(placed.items())}
