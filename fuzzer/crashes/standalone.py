"""What a `repro.py` is made of: each function's source is copied into the script, so none may need the others' module.

They use torch, ONNX Runtime and the standard library only, and are short enough to be read in the script itself.
"""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import importlib.util
import io
import json
import subprocess
import sys
from typing import Any

import torch
import torch.utils.dlpack


class CannotRun(Exception):
    """This machine or this version cannot run one of the sides; nothing is said about the difference."""


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of a nested output by its path."""
    if isinstance(value, collections.abc.Mapping):
        parts = [(f".{k}" if isinstance(k, str) and k.isidentifier() else f"[{k!r}]", v) for k, v in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(f"[{i}]", v) for i, v in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        return {path or "$": value.detach().cpu() if isinstance(value, torch.Tensor) else value}
    return {name: leaf for key, part in parts for name, leaf in leaves(part, path + key).items()}


def read_tensors(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file: a length, a header in JSON, and the bytes."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    about = header.pop("__metadata__", {})
    marks, found = json.loads(about.get("xbfuzz", "{}")), {}
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "BOOL": "bool"}
    names |= {"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "C64": "complex64"}
    names |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
    for name in json.loads(about.get("order", "null")) or header:
        first, last = header[name]["data_offsets"]
        dtype = getattr(torch, names[header[name]["dtype"]])
        raw = torch.frombuffer(data[start + first : start + last] or bytearray(1), dtype=torch.uint8)
        value = (raw if last > first else raw[:0]).view(dtype).reshape(header[name]["shape"])
        found[name] = torch.view_as_complex(value) if marks.get(name) == "complex" else value
    return found


def use(device: str, tf32: bool | None = None) -> None:
    """Set what holds for the whole process. Raises CannotRun where the device is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        raise CannotRun("PyTorch finds no CUDA device")
    if tf32 is not None:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


def eager(module: Any, call: Any, sample: Any, device: str = "cpu", channels_last: bool = False) -> Any:
    """The module as it is."""
    sample = {name: tensor.to(device) for name, tensor in sample.items()}
    module = module.to(device)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
        last = torch.channels_last
        sample = {n: t.contiguous(memory_format=last) if t.dim() == 4 else t for n, t in sample.items()}
    args, kwargs = call(sample)
    with torch.no_grad():
        return module(*args, **kwargs)


def compiled(
    module: Any,
    call: Any,
    sample: Any,
    example: Any,
    axes: dict[str, list[int]],
    backend: str,
    device: str = "cpu",
    **options: Any,
) -> Any:
    """torch.compile: first on the example, as it was found, then on the sample."""
    torch._dynamo.reset()
    run: Any = torch.compile(module.to(device), backend=backend, **options)

    def once(inputs: Any) -> Any:
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        for name, dims in axes.items():
            for dim in dims:
                if inputs[name].shape[dim] > 1:
                    torch._dynamo.maybe_mark_dynamic(inputs[name], dim)
        args, kwargs = call(inputs)
        with torch.no_grad():
            return run(*args, **kwargs)

    try:
        once({name: tensor.clone() for name, tensor in example.items()})
    except torch._dynamo.exc.TorchDynamoException as error:
        raise CannotRun(f"torch.compile refuses the model: {error}") from error
    torch.manual_seed(RNG_SEED)
    return once(sample)


def exported(module: Any, call: Any, example: Any, axes: dict[str, list[int]], exporters: list[str]) -> bytes:
    """The module as an ONNX file that takes the inputs by name: the first of the exporters that can, dynamic first."""
    names = list(example)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: Any) -> Any:
            args, kwargs = call(dict(zip(names, tensors)))  # noqa: B905
            return tuple(x for x in leaves(self.module(*args, **kwargs)).values() if isinstance(x, torch.Tensor))

    flat, reasons = Flat().eval(), []
    for exporter in exporters:
        for vary in [axes, {}] if axes else [{}]:
            tensors = tuple(tensor.clone() for tensor in example.values())
            file = io.BytesIO()
            try:
                if exporter == "dynamo":
                    dynamic = torch.export.Dim.DYNAMIC
                    shapes = {"tensors": tuple(dict.fromkeys(vary.get(n, []), dynamic) or None for n in names)}
                    torch.onnx.export(
                        flat,
                        tensors,
                        file,  # type: ignore[arg-type]
                        dynamo=True,
                        input_names=names,
                        dynamic_shapes=shapes if vary else None,
                        verbose=False,
                    )
                else:
                    named = {n: {d: f"{n}_{d}" for d in dims} for n, dims in vary.items()} or None
                    torch.onnx.export(
                        flat,
                        tensors,
                        file,  # type: ignore[arg-type]
                        dynamo=False,
                        input_names=names,
                        dynamic_axes=named,
                    )
                return file.getvalue()
            except Exception as error:  # an exporter may raise anything
                reasons.append(f"{exporter}: {str(error).strip().splitlines()[:1]}")
    raise CannotRun("the export to ONNX fails: " + "; ".join(reasons))


def onnx_session(model: bytes | str, level: str, device: str, threads: int, sample: Any) -> dict[str, torch.Tensor]:
    """ONNX Runtime's outputs by name."""
    try:
        import onnxruntime
    except ImportError as error:
        raise CannotRun("the package onnxruntime is not installed") from error
    provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}[device]
    if provider not in onnxruntime.get_available_providers():
        raise CannotRun(f"this onnxruntime has no {provider}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    names = [item.name for item in session.get_inputs()]
    if not set(names) <= set(sample):  # a file with names of its own takes the inputs by position
        sample = dict(zip(names, sample.values()))  # noqa: B905
    feed = {name: onnxruntime.OrtValue.from_dlpack(sample[name].contiguous()) for name in names}
    outputs = session.run_with_ort_values(None, feed)
    named = zip(session.get_outputs(), outputs)  # noqa: B905
    return {item.name: torch.utils.dlpack.from_dlpack(value).clone() for item, value in named}


def onnx_answer(
    module: Any,
    call: Any,
    sample: Any,
    example: Any,
    axes: dict[str, list[int]],
    exporters: list[str],
    level: str,
    device: str = "cpu",
    threads: int = 1,
) -> Any:
    """The exported module's leaves under the paths that the module itself gives them."""
    args, kwargs = call({name: tensor.clone() for name, tensor in example.items()})
    with torch.no_grad():
        plain = leaves(module(*args, **kwargs))
    model = exported(module, call, example, axes, exporters)
    found = iter(onnx_session(model, level, device, threads, sample).values())
    return Answer({path: next(found) if isinstance(leaf, torch.Tensor) else leaf for path, leaf in plain.items()})


class Answer(dict):  # type: ignore[type-arg]
    """Leaves by path, as they are, and what the run changed that it should not have."""

    changed: list[str]


def float64(module: Any, call: Any, sample: Any) -> Any:
    """The module in float64 on the same inputs."""
    wide = copy.deepcopy(module).double()
    args, kwargs = call({n: t.double() if t.is_floating_point() else t for n, t in sample.items()})
    with torch.no_grad():
        return wide(*args, **kwargs)


def attempt(run: Any, build: Any, inputs: Any) -> Any:
    """The leaves of one side, or the exception that it raised."""
    module, sample = build(), inputs()
    torch.manual_seed(RNG_SEED)
    try:
        answer = run(module, sample)
    except CannotRun:
        raise
    except Exception as error:  # what a side raises is its answer
        return error
    found = Answer(answer) if isinstance(answer, Answer) else Answer(leaves(answer))
    if KIND == "mutation":
        found.changed = [name for name, tensor in inputs().items() if not same(tensor, sample[name])]
        before, after = build().state_dict(), module.state_dict()
        found.changed += [name for name in before if not same(before[name], after[name].cpu())]
    return found


def same(left: Any, right: Any) -> bool:
    """Equal, where NaN equals NaN."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return type(left) is type(right) and (left == right or left != left)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return not bool(mismatches("value", left, right, 0.0, 0.0).any())


def mismatches(kind: str, left: Any, right: Any, absolute: float, relative: float) -> Any:
    """Which elements of two tensors of one shape differ, in the way that `kind` says."""
    left, right = left.to_dense(), right.to_dense()
    if left.is_complex() or right.is_complex():
        left, right = torch.view_as_real(left.to(torch.complex128)), torch.view_as_real(right.to(torch.complex128))
    if not left.is_floating_point() and not right.is_floating_point():
        return left != right
    a, b = left.double(), right.double()
    if kind == "signed-zero":
        return (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    special = ~(a.isfinite() & b.isfinite()) & (a != b) & ~(a.isnan() & b.isnan())
    if kind == "nonfinite":
        return special
    return special | ((a - b).abs() > absolute + relative * a.abs())


def differs(kind: str, path: str, left: Any, right: Any, absolute: float, relative: float) -> bool:
    """Is the difference that was recorded there: between two answers, at one leaf, of one kind."""
    if isinstance(left, Exception) or isinstance(right, Exception):
        return isinstance(left, Exception) != isinstance(right, Exception)
    if kind == "mutation":
        return bool(left.changed or right.changed)
    if kind == "arity":
        return list(left) != list(right)
    if path not in left or path not in right:
        return True
    a, b = left[path], right[path]
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return not same(a, b)
    if kind == "dtype":
        return a.dtype != b.dtype or a.layout != b.layout
    if a.shape != b.shape or kind == "shape":
        return a.shape != b.shape
    return bool(mismatches(kind, a, b, absolute, relative).any())


def shown(answer: Any, path: str) -> str:
    """One answer at the leaf, for a reader."""
    if isinstance(answer, Exception):
        return f"raises {type(answer).__name__}: " + " ".join(str(answer).split())[:300]
    leaf = answer.get(path, "(no such leaf)")
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    return f"{leaf.dtype} {list(leaf.shape)}"


def table(kind: str, path: str, answers: dict[str, Any], absolute: float, relative: float) -> None:
    """Print the first elements that differ, each side's value beside the other's."""
    columns = {name: a.get(path) for name, a in answers.items() if isinstance(a, dict)}
    left, right = columns.get("reference"), columns.get("target")
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or left.shape != right.shape:
        for name, leaf in columns.items():
            if isinstance(leaf, torch.Tensor):
                print(f"  {name}: {leaf.flatten()[:12].tolist()}")
        return
    mask = mismatches(kind, left, right, absolute, relative)
    places = mask.nonzero().tolist()
    print(f"  {len(places)} of {mask.numel()} elements differ")
    for place in places[:10]:
        at = tuple(place[: left.dim()])
        fit = {n: x for n, x in columns.items() if isinstance(x, torch.Tensor) and x.shape == left.shape}
        values = [f"{n} {x[at].item()!r}" for n, x in fit.items()]
        print(f"  {list(at)}: " + ", ".join(values))


def ended(side: str, kind: str, seconds: float, megabytes: int) -> bool:
    """Run one side in a process of its own: did it end as recorded (died, hung, took too much memory)."""
    try:
        child = subprocess.run([sys.executable, __file__, "--side", side], timeout=seconds, capture_output=True)
    except subprocess.TimeoutExpired:
        print(f"{side}: no answer within {seconds:g} s")
        return kind == "hang"
    import resource

    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    if child.returncode == 2:
        raise CannotRun(child.stdout.decode(errors="replace").strip())
    died = child.returncode not in (0, 3)
    how = f"died with exit status {child.returncode}" if died else ("raised" if child.returncode else "answered")
    print(f"{side}: {how}, peak memory {peak} MiB")
    return died if kind == "crash" else kind == "out-of-memory" and (died or peak > megabytes)


def versions() -> str:
    """Versions of what is installed here."""
    found = [f"python {sys.version.split()[0]}", f"torch {torch.__version__}"]
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        found.append(f"onnxruntime {onnxruntime.__version__}")
    return ", ".join(found)


def main(build: Any, inputs: Any, sides: dict[str, Any]) -> int:
    """Run both sides and compare: 1 while they differ as recorded, 0 when that is gone, 2 when it cannot run here."""
    torch.set_num_threads(THREADS)
    try:
        if sys.argv[1:2] == ["--side"]:
            answer = attempt(sides[sys.argv[2]], build, inputs)
            return 3 if isinstance(answer, Exception) else 0
        print(versions())
        if KIND in ("crash", "hang", "out-of-memory"):
            found = [ended(side, KIND, SECONDS, MEGABYTES) for side in ("reference", "target")]
            print("still so" if any(found) else "gone")
            return int(any(found))
        answers = {name: attempt(run, build, inputs) for name, run in sides.items() if name != "float64"}
        if KIND == "nondeterminism":
            again = {name: attempt(run, build, inputs) for name, run in sides.items() if name != "float64"}
            still = any(differs("value", LEAF, answers[n], again[n], 0.0, 0.0) for n in answers)
        else:
            still = differs(KIND, LEAF, answers["reference"], answers["target"], ABSOLUTE, RELATIVE)
        if "float64" in sides:
            answers["float64"] = attempt(sides["float64"], build, inputs)
    except CannotRun as error:
        print(f"cannot run here: {error}")
        return 2
    for name, label in (("reference", REFERENCE), ("target", TARGET), ("float64", "eager:cpu in float64")):
        if name in answers:
            print(f"{name} ({label}) at {LEAF}: {shown(answers[name], LEAF)}")
    table(KIND, LEAF, answers, ABSOLUTE, RELATIVE)
    print(f"they differ ({KIND})" if still else "the difference is gone")
    return int(still)


#: What the script sets before these functions; here only so that they can be read and checked.
KIND, LEAF, REFERENCE, TARGET = "value", "$", "eager:cpu", "eager:cpu"
ABSOLUTE, RELATIVE, SECONDS, MEGABYTES, RNG_SEED, THREADS = 0.0, 0.0, 60.0, 8192, 0, 1
