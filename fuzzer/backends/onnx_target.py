"""What every backend has in common that runs an ONNX file: the module exported, or a file of the user's own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.eager import duplicate
from fuzzer.backends.observe import Observation
from fuzzer.backends.onnx_export import Exported, export
from fuzzer.backends.onnx_observe import OnnxTaps
from fuzzer.backends.refusals import one_line
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import Unsupported
from fuzzer.models import Model

_EXPORTERS = {"auto": ("dynamo", "torchscript"), "dynamo": ("dynamo",), "torchscript": ("torchscript",)}


class OnnxTarget(Backend):
    """Subclasses open a file, name its inputs and outputs, and answer by name; exporting and nesting is done here.

    Option: exporter (auto: dynamo, then torchscript). `onnx_bytes` is the file that runs and `session` what runs it,
    once prepared. An ONNX file of the user's own returns a mapping from the names of its outputs to tensors.
    """

    needs_module: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"exporter": tuple(_EXPORTERS)}
    #: what has to be installed beside what exports
    packages: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        for package in (*cls.packages, "onnx", "onnxscript"):
            if find_spec(package) is None:
                return f"the package {package} is not installed"
        return None

    @abstractmethod
    def open_file(self, source: str | bytes) -> Any:
        """What runs an ONNX file, given by its path (it may keep its weights beside it) or its content.

        May raise anything: the export, or the file, is then refused with that reason.
        """

    @abstractmethod
    def names(self, session: Any) -> tuple[list[str], list[str]]:
        """The inputs and the outputs of what `open_file` gave, in order."""

    @abstractmethod
    def answers(self, session: Any, fed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name, for inputs by name."""

    def about(self) -> dict[str, Any]:
        """Evidence of what runs the file, as JSON values."""
        return {}

    def prepare(self, model: Model, example: Sample) -> None:
        self._exported: Exported | None = None
        self._model, self._example = model, duplicate(example)
        self._taps: OnnxTaps | None = None
        self._inputs = list(model.seed.inputs)
        if model.onnx is not None:
            self._load(model.onnx)
        else:
            exporters = _EXPORTERS[self.spec.options.get("exporter", "auto")]
            self._exported = export(model, example, exporters, self._accept)
            self.onnx_bytes = self._exported.data
        names, self._outputs = self.names(self.session)
        self._feeds = feeds(names, self._inputs, by_position=model.onnx is not None)
        static = self._exported is not None and not self._exported.dynamic
        self._fixed = {name: tuple(tensor.shape) for name, tensor in example.items()} if static else {}
        self._evidence = {**self.about(), **self._origin()}

    def _load(self, path: Path) -> None:
        try:
            self.onnx_bytes = path.read_bytes()
            self.session = self.open_file(str(path))
        except Exception as error:  # runtimes' errors share no base class but Exception
            raise Unsupported(one_line(error), stage="load") from error

    def _accept(self, data: bytes, outputs: int) -> None:
        session = self.open_file(data)
        found = len(self.names(session)[1])
        if found != outputs:
            raise ValueError(f"the exported file has {found} outputs, the module {outputs}")
        self.session = session

    def run(self, sample: Sample) -> Any:
        """The output, rebuilt as the module nests it.

        Raises Unsupported where the file was exported with fixed sizes and `sample` has others.
        """
        for name, shape in self._fixed.items():
            if tuple(sample[name].shape) != shape:
                reason = f"exported with {name} of fixed shape {shape}, not {tuple(sample[name].shape)}"
                raise Unsupported(reason, stage="run")
        answers = self._answers(self.session, sample)
        return self._rebuilt([answers[name] for name in self._outputs])

    def observe(self, sample: Sample) -> Observation:
        """One run of the same file with the wanted values as further outputs. See `OnnxTaps`."""
        if self._taps is None:
            self._taps = OnnxTaps(self._model, self.onnx_bytes, self.open_file, self._answers, self._example)
        return self._taps.observe(sample, lambda answers: self._rebuilt([answers[name] for name in self._outputs]))

    def evidence(self) -> dict[str, Any]:
        return dict(self._evidence)

    def _answers(self, session: Any, sample: Sample) -> dict[str, Tensor]:
        return self.answers(session, {name: sample[source] for name, source in self._feeds.items()})

    def _rebuilt(self, tensors: list[Tensor]) -> Any:
        if self._exported is not None:
            return self._exported.structure.rebuild(tensors)
        return dict(zip(self._outputs, tensors, strict=True))

    def _origin(self) -> dict[str, Any]:
        """Where the file comes from."""
        import onnx

        proto = onnx.load_model_from_string(self.onnx_bytes)
        opsets = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
        found = {"opset": opsets.get("ai.onnx")}
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


def feeds(names: list[str], inputs: list[str], *, by_position: bool) -> dict[str, str]:
    """For each input of a session, the input of the seed that feeds it: by name, else (where allowed) by position.

    Raises Unsupported where neither fits.
    """
    if set(names) <= set(inputs):
        return {name: name for name in names}
    if by_position and len(names) == len(inputs):
        return dict(zip(names, inputs, strict=True))
    raise Unsupported(f"the ONNX file takes {', '.join(names)}; the seed has {', '.join(inputs)}", stage="load")
