"""The two sides of a `repro.py`: what each backend does, in as few lines as this crash needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.reduce.case import keys_of
from fuzzer.seeds import Seed
from fuzzer.trees import ROOT
from fuzzer.verify.verdict import Kind

_COMPILERS = {"dynamo": "eager", "aot_eager": "aot_eager", "inductor": "inductor"}
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_FIRST = ["return torch.from_numpy(session.run(None, feed)[0])"]
_NESTED = [
    "found = map(torch.from_numpy, session.run(None, feed))",
    "return pytree.tree_map(lambda x: next(found) if isinstance(x, torch.Tensor) else x, call(module, {first}))",
]
_SIZES = {True: "sizes", False: '{"tensors": sizes}'}
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
#: Kinds of difference for which any exception means that the script cannot run here.
_COMPARED = frozenset(Kind) - {Kind.EXCEPTION, Kind.CRASH, Kind.HANG, Kind.MEMORY}
#: Where a crash says, in `found`, how its model was exported: `{exporter, dynamic}`.
EXPORT = "export"


def export_found(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """What a crash's `found` has to say of the target's evidence, so that its script exports the model in one way."""
    if evidence.get("exporter") not in ("dynamo", "torchscript"):
        return {}
    return {EXPORT: {"exporter": evidence["exporter"], "dynamic": bool(evidence.get("dynamic"))}}


class Sides:
    """What the sides of one script share: the example (None where the inputs serve), the sizes that vary."""

    def __init__(self, crash: Crash, seed: Seed, example: Mapping[str, Tensor] | None) -> None:
        self._crash = crash
        self._seed = seed
        self._first = "inputs()" if example is None else "example()"
        vary = {name for name, dim in seed.dims.items() if dim.min < dim.most}
        self.axes = [(name, i) for name, spec in seed.inputs.items() for i, s in enumerate(spec.shape) if s in vary]
        self.exporters = ["dynamo", "torchscript"]

    def lines(self, text: str) -> list[str]:
        """The body of the function of the backend `text`: from `module` and `sample` to the output."""
        spec = BackendSpec.parse(text)
        return [*_process(spec), *self._body(spec)]

    def _body(self, spec: BackendSpec) -> list[str]:
        options = spec.options
        move = [] if spec.device == "cpu" else [f"sample = {{n: t.to({spec.device!r}) for n, t in sample.items()}}"]
        there = "module" if spec.device == "cpu" else f"module.to({spec.device!r})"
        if spec.runtime == "onnxruntime":
            return self._onnx(spec)
        if spec.runtime == "eager" and options.get("layout") == "channels_last":
            last = "memory_format=torch.channels_last"
            move.append(f"sample = {{n: t.contiguous({last}) if t.dim() == 4 else t for n, t in sample.items()}}")
            return [*move, f"return call({there}.to({last}), sample)"]
        if spec.runtime == "eager":
            return [*move, f"return call({there}, sample)"]
        if spec.runtime in _COMPILERS:
            return [*move, *self._compiled(spec, there)]
        return [f'raise CannotRun("{spec} is a plug-in; run it yourself here")']

    def _compiled(self, spec: BackendSpec, module: str) -> list[str]:
        given = "".join(f", {k}={spec.options[k] == 'true'}" for k in ("dynamic", "fullgraph") if k in spec.options)
        how = f"backend={_COMPILERS[spec.runtime]!r}{given}"
        marks = bool(self.axes) and "dynamic" not in spec.options
        if self._first == "inputs()":
            return [f"return call(torch.compile({module}, {how}), {'marked(sample)' if marks else 'sample'})"]
        first = self._first
        if spec.device != "cpu":
            first = f"{{n: t.to({spec.device!r}) for n, t in {first}.items()}}"
        names = ("marked(sample)", f"marked({first})") if marks else ("sample", first)
        return [f"return compiled({module}, {names[0]}, {names[1]}, {how})"]

    def _onnx(self, spec: BackendSpec) -> list[str]:
        level, provider = _LEVELS[spec.options.get("opt", "all")], _PROVIDERS[spec.device]
        threads = int(spec.options.get("threads", "1"))
        more = "" if threads == 1 else f", {threads}"
        if self._seed.model.source == "onnx":
            return [f'return onnx_outputs(f"{{HERE}}/model.onnx", sample, {level!r}, {provider!r}{more})']
        if spec.options.get("exporter", "auto") != "auto":
            self.exporters = [spec.options["exporter"]]
        export = self._crash.found.get(EXPORT)
        flat = self._seed.call is None
        plain = self._crash.kind in _COMPARED - {Kind.ARITY, Kind.MUTATION}
        numpy = all(tensor.dtype != torch.bfloat16 for tensor in self._crash.inputs.values())
        if not isinstance(export, Mapping) or export.get("exporter") != "dynamo" or not (flat and plain and numpy):
            return [f"return onnx_answer(module, sample, {self._first}, {level!r}, {provider!r}{more})"]
        lone = self._crash.leaf == ROOT  # an output of other than tensors does not export as it is
        sizes = f", dynamic_shapes={_SIZES[lone]}" if export.get("dynamic") else ""
        module = "module" if lone else "Flat(module)"
        arguments, names = f"tuple({self._first}.values())", list(self._seed.inputs)
        return [
            "import onnxruntime as ort",
            'print(f"onnxruntime {ort.__version__}")',
            "file, options = io.BytesIO(), ort.SessionOptions()",
            *([f"sizes = {self._shapes()}"] if export.get("dynamic") else []),
            f"torch.onnx.export({module}, {arguments}, file, input_names={names}, dynamo=True{sizes}, verbose=False)",
            f"options.log_severity_level, options.intra_op_num_threads = 3, {threads}",
            f"options.graph_optimization_level = ort.GraphOptimizationLevel.{level}",
            f"session = ort.InferenceSession(file.getvalue(), options, providers=[{provider!r}])",
            "feed = {item.name: sample[item.name].numpy() for item in session.get_inputs()}",
            *(_FIRST if lone else [line.format(first=self._first) for line in _NESTED]),
        ]

    def _shapes(self) -> str:
        vary = [
            ", ".join(f"{i}: torch.export.Dim.DYNAMIC" for n, i in self.axes if n == name) for name in self._seed.inputs
        ]
        return "(" + "".join(f"{{{axes}}}, " if axes else "None, " for axes in vary).rstrip() + ")"


def _process(spec: BackendSpec) -> list[str]:
    """What holds for the whole process."""
    lines = []
    if spec.device == "cuda":
        lines += ["if not torch.cuda.is_available():", '    raise CannotRun("PyTorch finds no CUDA device")']
    if "tf32" in spec.options:
        on = spec.options["tf32"] == "true"
        lines.append(f"torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = {on}")
    if spec.runtime == "eager":
        lines.append(f"torch.set_num_threads({int(spec.options.get('threads', '1'))})")
    return lines


def leaf_function(kind: Kind, path: str) -> list[str]:
    """The function that takes the leaf out of an output, where the output is not the leaf itself."""
    if kind is Kind.ARITY:
        return ["def leaf(output):\n    return paths(output)\n"]
    keys = keys_of(path)
    if not keys or kind not in _COMPARED or kind is Kind.MUTATION:
        return []
    step = "output[key] if isinstance(key, int) or hasattr(output, 'keys') else getattr(output, key)"
    return [f"def leaf(output):\n    for key in {keys!r}:\n        output = {step}\n    return output\n"]


def arguments(seed: Seed) -> str:
    """What stands between the brackets where the module is called."""
    template = seed.arguments
    if isinstance(template, Mapping) and set(template) == {"args", "kwargs"}:
        parts = [_filled(item) for item in template["args"]]
        parts += [f"{key}={_filled(item)}" for key, item in template["kwargs"].items()]
        if all(re.fullmatch(r"[A-Za-z_]\w*", key) for key in template["kwargs"]):
            return ", ".join(parts)
    return ", ".join(_filled(item) for item in template)


def _filled(template: Any) -> str:
    if isinstance(template, str):
        return f"sample[{template!r}]"
    if isinstance(template, Mapping):
        return "{" + ", ".join(f"{key!r}: {_filled(item)}" for key, item in template.items()) + "}"
    if isinstance(template, list | tuple):
        return "[" + ", ".join(_filled(item) for item in template) + "]"
    return repr(template)
