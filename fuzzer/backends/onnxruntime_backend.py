"""ONNX Runtime: a module exported to ONNX, or an ONNX file, in an inference session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.eager import check_threads, cuda_unavailable, duplicate
from fuzzer.backends.observe import Observation
from fuzzer.backends.onnx_export import Exported, export
from fuzzer.backends.onnx_observe import OnnxTaps
from fuzzer.backends.refusals import one_line
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import Unsupported
from fuzzer.models import Model

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_EXPORTERS = {"auto": ("dynamo", "torchscript"), "dynamo": ("dynamo",), "torchscript": ("torchscript",)}
_ERRORS_ONLY = 3
#: Short floats travel through DLPack, the rest through numpy.
_NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_NUMPY_HAS = frozenset(
    f"tensor({name})" for name in "float double float16 bool int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
)
_RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"


class OnnxRuntime(Backend):
    """`onnxruntime:cpu`, `onnxruntime:cuda`.

    Options: opt (graph optimisations, all), threads (cpu, 1), exporter (auto: dynamo, then torchscript).
    `onnx_bytes` is the file that runs, once prepared. An ONNX file of the user's own returns a mapping from the names
    of its outputs to tensors.
    """

    runtime = "onnxruntime"
    #: graph optimisers to leave out, by ONNX Runtime's names for them
    disabled_optimizers: Sequence[str] = ()
    devices = ("cpu", "cuda")
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "opt": tuple(_LEVELS),
        "threads": (),
        "exporter": tuple(_EXPORTERS),
    }

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        super().check(spec)
        check_threads(spec)

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        for package in ("onnxruntime", "onnx", "onnxscript"):
            if find_spec(package) is None:
                return f"the package {package} is not installed"
        if spec.device == "cpu":
            return None
        import onnxruntime

        if _PROVIDERS[spec.device] not in onnxruntime.get_available_providers():
            return "this onnxruntime is built without CUDA (the package onnxruntime-gpu has it)"
        return cuda_unavailable()

    def prepare(self, model: Model, example: Sample) -> None:
        self._exported: Exported | None = None
        self._model, self._example = model, duplicate(example)
        self._taps: OnnxTaps | None = None
        self._inputs = list(model.seed.inputs)
        if model.onnx is not None:
            self._load_file(model.onnx)
        else:
            exporters = _EXPORTERS[self.spec.options.get("exporter", "auto")]
            self._exported = export(model, example, exporters, self._accept)
            self.onnx_bytes = self._exported.data
        names = [item.name for item in self._session.get_inputs()]
        self._feeds = feeds(names, self._inputs, by_position=model.onnx is not None)
        self._outputs = [item.name for item in self._session.get_outputs()]
        self._fixed = {name: tuple(tensor.shape) for name, tensor in example.items()} if self._static else {}
        self._evidence = self._collect()

    def _load_file(self, path: Path) -> None:
        """Loads by path, since a file may keep its weights beside it."""
        try:
            self.onnx_bytes = path.read_bytes()
            self._session = self._open(str(path))
        except Exception as error:  # onnxruntime's errors share no base class but Exception
            raise Unsupported(one_line(error), stage="load") from error

    def _accept(self, data: bytes, outputs: int) -> None:
        session = self._open(data)
        found = session.get_outputs()
        if len(found) != outputs:
            raise ValueError(f"the exported file has {len(found)} outputs, the module {outputs}")
        self._session = session

    def _open(self, source: str | bytes) -> Any:
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

    @property
    def _static(self) -> bool:
        return self._exported is not None and not self._exported.dynamic

    def run(self, sample: Sample) -> Any:
        """The output, rebuilt as the module nests it.

        Raises Unsupported where the file was exported with fixed sizes and `sample` has others.
        """
        for name, shape in self._fixed.items():
            if tuple(sample[name].shape) != shape:
                reason = f"exported with {name} of fixed shape {shape}, not {tuple(sample[name].shape)}"
                raise Unsupported(reason, stage="run")
        return self._rebuilt(list(self._answers(self._session, sample).values()))

    def observe(self, sample: Sample) -> Observation:
        """One run of the same file with the wanted values as further outputs. See `OnnxTaps`."""
        if self._taps is None:
            self._taps = OnnxTaps(self._model, self.onnx_bytes, self._open, self._answers, self._example)
        return self._taps.observe(sample, lambda answers: self._rebuilt([answers[name] for name in self._outputs]))

    def _answers(self, session: Any, sample: Sample) -> dict[str, Tensor]:
        """The outputs of `session`, by name."""
        values = {name: to_ort(sample[source]) for name, source in self._feeds.items()}
        names = [item.name for item in session.get_outputs()]
        return dict(zip(names, map(from_ort, session.run_with_ort_values(names, values)), strict=True))

    def _rebuilt(self, tensors: list[Tensor]) -> Any:
        if self._exported is not None:
            return self._exported.structure.rebuild(tensors)
        return dict(zip(self._outputs, tensors, strict=True))

    def evidence(self) -> dict[str, Any]:
        return dict(self._evidence)

    def _collect(self) -> dict[str, Any]:
        import onnx
        import onnxruntime

        proto = onnx.load_model_from_string(self.onnx_bytes)
        opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
        found: dict[str, Any] = {
            "onnxruntime": onnxruntime.__version__,
            "opset": opsets.get("ai.onnx"),
            "opt": self.spec.options.get("opt", "all"),
            "providers": list(self._session.get_providers()),
            "nodes": placement(self._session),
        }
        if self._exported is None:
            return found | {"exporter": "file"}
        return found | {
            "exporter": self._exported.exporter,
            "dynamic": self._exported.dynamic,
            "export_refusals": list(self._exported.refusals),
            "traced_constants": list(self._exported.frozen),
            "dropped_inputs": [name for name in self._inputs if name not in self._feeds.values()],
            "torch": torch.__version__,
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


def feeds(names: list[str], inputs: list[str], *, by_position: bool) -> dict[str, str]:
    """For each input of a session, the input of the seed that feeds it: by name, else (where allowed) by position.

    Raises Unsupported where neither fits.
    """
    if set(names) <= set(inputs):
        return {name: name for name in names}
    if by_position and len(names) == len(inputs):
        return dict(zip(names, inputs, strict=True))
    raise Unsupported(f"the ONNX file takes {', '.join(names)}; the seed has {', '.join(inputs)}", stage="load")


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
