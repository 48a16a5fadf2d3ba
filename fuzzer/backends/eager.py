"""PyTorch as it stands: the module itself, on one device. The default reference."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fuzzer.backends.base import Backend, Sample
from fuzzer.backends.observe import Observation, observe_eager, on_cpu
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import SpecError, Unsupported
from fuzzer.models import Model
from fuzzer.tensors import raw_bytes

_BOOLEAN = ("true", "false")


def cuda_unavailable() -> str | None:
    """Why PyTorch cannot use a CUDA device here, or None where it can."""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return "this PyTorch is built without CUDA"
    with warnings.catch_warnings():  # an old driver is told through a warning; the answer is what matters
        warnings.simplefilter("ignore")
        found = torch.cuda.is_available()
    return None if found else "PyTorch finds no CUDA device"


def device_name(device: torch.device) -> str:
    """The chip: the GPU's name, or the processor's architecture with the vector instructions PyTorch uses."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def duplicate(sample: Sample) -> dict[str, Tensor]:
    """Copies for a call whose output is thrown away, so that a module that writes to its inputs spoils nothing."""
    return {name: tensor.clone() for name, tensor in sample.items()}


class ModuleBackend(Backend):
    """A backend that calls the module, or something made of it, on tensors of one device.

    Calls run under `torch.no_grad`, not `inference_mode`: both compile the same inference graphs, but tensors made in
    inference mode have no version counters, by which changed inputs and parameters are noticed.
    """

    devices = ("cpu", "cuda")

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        super().check(spec)
        if spec.device != "cuda" and "tf32" in spec.options:
            raise SpecError(f"{spec}: tf32 is an option of cuda")

    @classmethod
    def unavailable(cls, spec: BackendSpec) -> str | None:
        return cuda_unavailable() if spec.device == "cuda" else None

    def place(self, model: Model) -> nn.Module:
        """The model's module on this backend's device, with the options that hold for the whole process set.

        Raises Unsupported for an ONNX file, which has no module.
        """
        if model.module is None:
            raise Unsupported(f"this ONNX file has no PyTorch module: {model.no_module}", stage="load")
        self.model = model
        self.device = torch.device(self.spec.device)
        if "tf32" in self.spec.options:
            set_tf32(self.spec.options["tf32"] == "true")
        return model.module.to(self.device)

    def on_device(self, sample: Sample) -> dict[str, Tensor]:
        """The tensors of a sample on this backend's device: themselves where they lie there, else copies."""
        return {name: tensor.to(self.device) for name, tensor in sample.items()}

    def arguments(self, sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of `forward`, on this backend's device."""
        return self.model.call(self.on_device(sample))

    def synchronize(self) -> None:
        """Wait for the device: an error of a kernel must surface in the call that caused it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def evidence(self) -> dict[str, Any]:
        found: dict[str, Any] = {"device": device_name(self.device), "torch": torch.__version__}
        if self.device.type == "cuda":
            found["tf32"] = tf32()
        return found


class Eager(ModuleBackend):
    """`eager:cpu`, `eager:cuda`. Options: tf32 (cuda), threads (cpu), layout=channels_last."""

    runtime = "eager"
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"tf32": _BOOLEAN, "threads": (), "layout": ("channels_last",)}

    @classmethod
    def check(cls, spec: BackendSpec) -> None:
        super().check(spec)
        check_threads(spec)

    def prepare(self, model: Model, example: Sample) -> None:
        module = self.place(model)
        if "threads" in self.spec.options:
            torch.set_num_threads(int(self.spec.options["threads"]))
        if self._channels_last:
            module = module.to(memory_format=torch.channels_last)
        self._module = module

    def run(self, sample: Sample) -> Any:
        given = self.on_device(sample)
        args, kwargs = self.model.call(given)
        with torch.no_grad():
            output = self._module(*args, **kwargs)
        self.synchronize()
        write_back(sample, given)
        return output

    def observe(self, sample: Sample) -> Observation:
        args, kwargs = self.arguments(sample)
        with torch.no_grad():
            seen = observe_eager(self._module, args, kwargs)
        return on_cpu(seen)

    def on_device(self, sample: Sample) -> dict[str, Tensor]:
        given = super().on_device(sample)
        return {name: _channels_last(tensor) for name, tensor in given.items()} if self._channels_last else given

    def evidence(self) -> dict[str, Any]:
        found = super().evidence()
        if self.device.type == "cpu":
            found["threads"] = torch.get_num_threads()
        return found

    @property
    def _channels_last(self) -> bool:
        return self.spec.options.get("layout") == "channels_last"


def write_back(sample: Sample, given: Sample) -> None:
    """Give the sample what a call wrote to the copies of its tensors that it was `given`: there it can be seen.

    Where a tensor was handed over itself there is nothing to do. The copies have version 0 before the call; a kernel
    that goes round the version counter shows in the bits.
    """
    for name, tensor in given.items():
        held = sample[name]
        if tensor is not held and (tensor._version or raw_bytes(tensor) != raw_bytes(held)):
            held.resize_(tensor.shape).copy_(tensor)


def check_threads(spec: BackendSpec) -> None:
    """Raises SpecError where `spec` asks for no threads, or for threads on a GPU."""
    if "threads" in spec.options and (spec.device != "cpu" or int(spec.options["threads"]) < 1):
        raise SpecError(f"{spec}: threads is an option of cpu, 1 or more")


def _channels_last(tensor: Tensor) -> Tensor:
    """`tensor` with the same values, the channels of a batch of images moved last in memory."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def set_tf32(on: bool) -> None:
    """Allow or forbid TF32 in matrix products and convolutions, in the whole process.

    Through the older of PyTorch's two interfaces: Inductor reads that one, and PyTorch refuses a mix of both.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.backends.cuda.matmul.allow_tf32 = on
        torch.backends.cudnn.allow_tf32 = on


def tf32() -> dict[str, bool]:
    """Whether TF32 is allowed in matrix products and in convolutions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"matmul": torch.backends.cuda.matmul.allow_tf32, "convolution": torch.backends.cudnn.allow_tf32}
