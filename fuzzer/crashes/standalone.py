"""What a `repro.py` is made of: each script takes what its kind of crash needs, and nothing else.

`fuzzer.crashes.repro` copies the source of these functions without their annotations, so each uses only torch, ONNX
Runtime, the standard library, the others here, and the names at the end, which the script defines for its crash.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.dlpack
from torch.utils import _pytree as pytree


class CannotRun(Exception):
    """This machine or this version cannot run one of the sides; nothing is said about the difference."""


def run(side: Any) -> Any:
    module, sample = build(), inputs()
    torch.manual_seed(RNG_SEED)
    with torch.no_grad():
        return side(module, sample)


def far_apart(a: Any, b: Any) -> Any:
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    return ~same & ~((a - b).abs() <= ABSOLUTE + RELATIVE * a.abs())


def not_finite_alike(a: Any, b: Any) -> Any:
    return ~(a.isfinite() & b.isfinite()) & (a != b) & ~(a.isnan() & b.isnan())


def of_other_sign(a: Any, b: Any) -> Any:
    return (a == 0) & (b == 0) & (a.signbit() != b.signbit())


def unequal(a: Any, b: Any) -> Any:
    return a != b


def of_other_shape(a: Any, b: Any) -> Any:
    return torch.tensor(a.shape != b.shape)


def of_other_dtype(a: Any, b: Any) -> Any:
    return torch.tensor((a.dtype, a.layout) != (b.dtype, b.layout))


def paths(output: Any) -> list[str]:
    """Where in its output a model has leaves."""
    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(output)[0]]


def main() -> int:
    print(f"torch {torch.__version__}")
    try:
        answers = {side.__name__: leaf(run(side)).cpu().to_dense() for side in (reference, target, float64)}
    except Exception as error:  # another version may refuse the model, or a device be missing
        print(f"cannot run here: {error}")
        return 2
    for name, x in answers.items():
        print(f"{name} at {LEAF}: {x.dtype} {list(x.shape)}")
    a, b = answers["reference"], answers["target"]
    places = different(a, b) if a.shape == b.shape else torch.tensor(True)
    for at in places.nonzero().tolist()[:10]:
        print(f"  {at}: " + ", ".join(f"{name} {x[tuple(at)].tolist()}" for name, x in answers.items()))
    print("they differ" if places.any() else "the difference is gone")
    return int(places.any())


def main_plain() -> int:
    print(f"torch {torch.__version__}")
    try:
        a, b = leaf(run(reference)), leaf(run(target))
    except Exception as error:  # another version may refuse the model, or a device be missing
        print(f"cannot run here: {error}")
        return 2
    print(f"reference at {LEAF}: {a!r}")
    print(f"target at {LEAF}: {b!r}")
    print("they differ" if a != b else "the difference is gone")
    return int(a != b)


def without_model() -> bool:
    """Whether there is no model to ask; what building it raises is no side's answer."""
    try:
        build()
    except Exception as error:
        print(f"cannot run here: {error}")
        return True
    return False


def main_raises() -> int:
    print(f"torch {torch.__version__}")
    if without_model():
        return 2
    raises = []
    for side in (reference, target):
        try:
            run(side)
            raises.append(False)
        except CannotRun as error:
            print(f"cannot run here: {error}")
            return 2
        except Exception as error:  # what a side raises is its answer
            print(f"{side.__name__} raises {type(error).__name__}: {error}")
            raises.append(True)
    print("one side raises, the other answers" if raises[0] != raises[1] else "the difference is gone")
    return int(raises[0] != raises[1])


def main_repeats() -> int:
    print(f"torch {torch.__version__}")
    still = False
    for side in (reference, target):
        try:
            first, second = (leaf(run(side)).cpu() for _ in range(2))
        except Exception as error:  # another version may refuse the model, or a device be missing
            print(f"cannot run here: {error}")
            return 2
        alike = torch.equal(first.nan_to_num(0.123), second.nan_to_num(0.123))
        print(f"{side.__name__} at {LEAF}: " + ("says the same twice" if alike else "disagrees with itself"))
        still |= not alike
    return int(still)


def main_changes() -> int:
    print(f"torch {torch.__version__}")
    still = False
    for side in (reference, target):
        try:
            module, sample = build(), inputs()
            torch.manual_seed(RNG_SEED)
            with torch.no_grad():
                side(module, sample)
        except Exception as error:  # another version may refuse the model, or a device be missing
            print(f"cannot run here: {error}")
            return 2
        now, before = sample | module.state_dict(), inputs() | build().state_dict()
        changed = [n for n in before if not torch.equal(before[n].nan_to_num(0.123), now[n].cpu().nan_to_num(0.123))]
        print(f"{side.__name__} changes: {', '.join(changed) or 'nothing'}")
        still |= bool(changed)
    return int(still)


def main_ends() -> int:
    if sys.argv[1:]:
        if without_model():
            return 2
        try:
            run({"reference": reference, "target": target}[sys.argv[1]])
        except CannotRun as error:
            print(f"cannot run here: {error}")
            return 2
        except Exception:  # it did not die
            return 3
        return 0
    print(f"torch {torch.__version__}")
    still = [ended(side) for side in ("reference", "target")]
    print("still so" if any(still) else "gone")
    return int(any(still))


def ended(side: str) -> bool:
    """Run one side in a process of its own: does it end as recorded (dies, hangs, takes too much memory)?"""
    import resource

    try:
        child = subprocess.run([sys.executable, __file__, side], timeout=SECONDS, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        print(f"{side}: no answer within {SECONDS:g} s")
        return KIND == "hang"
    if child.returncode == 2:
        print(child.stdout.strip())
        sys.exit(2)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    died = child.returncode not in (0, 3)
    print(f"{side}: " + (f"died with exit status {child.returncode}" if died else "answered") + f", peak {peak} MiB")
    return died if KIND == "crash" else KIND == "out-of-memory" and (died or peak > MEGABYTES)


def read_tensors(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file: a length, a header in JSON, and the bytes."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    start = 8 + int.from_bytes(data[:8], "little")
    header, names, found = json.loads(data[8:start]), DTYPES, {}
    about = header.pop("__metadata__", {})
    for name in json.loads(about.get("order", "null")) or header:
        first, last = header[name]["data_offsets"]
        dtype = getattr(torch, names[header[name]["dtype"]])
        raw = torch.frombuffer(data[start + first : start + last] or bytearray(1), dtype=torch.uint8)
        value = (raw if last > first else raw[:0]).view(dtype).reshape(header[name]["shape"])
        marked = json.loads(about.get("xbfuzz", "{}")).get(name) == "complex"
        found[name] = torch.view_as_complex(value) if marked else value
    return found


def marked(sample: Any) -> Any:
    """The sample with the sizes that vary marked, so that one compiled graph serves them all."""
    for name, axis in AXES:
        if sample[name].shape[axis] > 1:
            torch._dynamo.maybe_mark_dynamic(sample[name], axis)
    return sample


class Flat(torch.nn.Module):
    """The module as exporters want it: tensors in, tensors out."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.names = list(inputs())  # not while an exporter watches: reading the inputs is no part of the model
        self.training = module.training  # not by eval(), which an exported program refuses

    def forward(self, *tensors: Any) -> Any:
        found = pytree.tree_leaves(call(self.module, dict(zip(self.names, tensors))))  # noqa: B905
        return tuple(x for x in found if isinstance(x, torch.Tensor))


def exported(module: Any, sample: Any) -> bytes:
    """The module as an ONNX file, by the first of the exporters that can, sizes dynamic where they vary."""
    names, tensors, reasons = list(sample), tuple(sample.values()), []
    for exporter in EXPORTERS:
        for axes in [AXES, []] if AXES else [[]]:
            vary = {n: {i: torch.export.Dim.DYNAMIC for m, i in axes if m == n} or None for n in names}
            new: Any = {"dynamo": True, "dynamic_shapes": {"tensors": tuple(vary.values())} if axes else None}
            old: Any = {"dynamo": False, "dynamic_axes": {n: list(d) for n, d in vary.items() if d}}
            file: Any = io.BytesIO()
            try:
                with contextlib.redirect_stdout(None):
                    more = new if exporter == "dynamo" else old
                    torch.onnx.export(Flat(module), tensors, file, input_names=names, verbose=False, **more)
                return bytes(file.getvalue())
            except Exception as error:
                reasons.append(f"{exporter}: {str(error).strip().splitlines()[:1]}")
    raise CannotRun("the export to ONNX fails: " + "; ".join(reasons))


def onnx_outputs(model: bytes | str, sample: Any, level: str, provider: str, threads: int = 1) -> Any:
    """ONNX Runtime's outputs by name."""
    try:
        import onnxruntime as ort

        print(f"onnxruntime {ort.__version__}")
    except ImportError as error:
        raise CannotRun("the package onnxruntime is not installed") from error
    if provider not in ort.get_available_providers():
        raise CannotRun(f"this onnxruntime has no {provider}")
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model, options, providers=[provider])
    names = [item.name for item in session.get_inputs()]
    if not set(names) <= set(sample):  # a file with names of its own takes the inputs by position
        sample = dict(zip(names, sample.values()))  # noqa: B905
    feed = {name: ort.OrtValue.from_dlpack(sample[name].contiguous()) for name in names}
    outputs = zip(session.get_outputs(), session.run_with_ort_values(None, feed))  # noqa: B905
    return {item.name: torch.utils.dlpack.from_dlpack(value).clone() for item, value in outputs}


def onnx_answer(module: Any, sample: Any, first: Any, level: str, provider: str, threads: int = 1) -> Any:
    """The exported module's outputs in the places where the module itself has them."""
    output, tree = pytree.tree_flatten(call(module, {name: tensor.clone() for name, tensor in first.items()}))
    found = iter(onnx_outputs(exported(module, first), sample, level, provider, threads).values())
    return pytree.tree_unflatten([next(found) if isinstance(x, torch.Tensor) else x for x in output], tree)


def compiled(module: Any, sample: Any, first: Any, **options: Any) -> Any:
    """torch.compile: first on ordinary inputs, as it was found, then on the sample."""
    fast = torch.compile(module, **options)
    try:
        call(fast, first)
    except Exception as error:
        raise CannotRun(f"torch.compile refuses the model: {error}") from error
    torch.manual_seed(RNG_SEED)
    return call(fast, sample)


def load(module: Any, path: str) -> None:
    """Load weights, all of them, with the versions that layers such as MNASNet's look for beside them."""
    found, state = read_tensors(path), module.state_dict()
    state.clear()
    state.update(found)
    module.load_state_dict(state)


def there(path: str) -> str:
    """The path of what the model is built from, which this script does not bring along."""
    path = os.path.normpath(path)
    if not os.path.exists(path):
        raise CannotRun(f"the model is built from {path}, which is not there")
    return path


@contextlib.contextmanager
def inside(folder: str) -> Iterator[None]:
    """Run a repository's code in its folder, where it finds its modules and files; its modules later too."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with contextlib.chdir(folder):
        yield


def hub_copy(repo: str) -> str:
    """The folder of torch.hub's own copy of `owner/name:branch`."""
    name, _, branch = repo.partition(":")
    places = [f"{name}/{each}".replace("/", "_") for each in ([branch] if branch else ["main", "master"])]
    for folder in (os.path.join(torch.hub.get_dir(), place) for place in places):
        if os.path.isfile(os.path.join(folder, "hubconf.py")):
            return folder
    raise CannotRun(f"torch.hub has no copy of {repo} in {torch.hub.get_dir()}; torch.hub.list({repo!r}) fetches it")


def load_source(path: str) -> Any:
    """The module in a Python file."""
    spec: Any = importlib.util.spec_from_file_location("model_of_this_crash", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_of_this_crash"] = module
    spec.loader.exec_module(module)
    return module


#: What the script defines for its crash; here only so that the functions above can be checked.
build: Any = None
inputs: Any = None
call: Any = None
leaf: Any = None
reference: Any = None
target: Any = None
float64: Any = None
different: Any = None
EXPORTERS: list[str] = []
AXES: list[tuple[str, int]] = []
KIND, LEAF = "value", "$"
ABSOLUTE, RELATIVE, SECONDS, MEGABYTES, RNG_SEED = 0.0, 0.0, 60.0, 8192, 0
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8", "BOOL": "bool"}
DTYPES |= {"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "C64": "complex64"}
DTYPES |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "U16": "uint16", "U32": "uint32", "U64": "uint64"}
