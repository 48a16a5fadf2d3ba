"""`repro.py`: a script that stands alone. It needs torch (with torchvision or ONNX Runtime where the crash does).

A maintainer reads it from top to bottom: what differs, the model, the inputs, the two sides; below that the functions
that run and compare, copied from `fuzzer.crashes.standalone`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes import standalone
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.literals import literal
from fuzzer.crashes.model_source import model_source
from fuzzer.inputs import base_sample
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_from_json
from fuzzer.verify.verdict import Kind

#: Inputs of up to this many elements are written into the script.
MAX_INLINE = 64

#: Seconds that a child process may take to import and compile, beside the seed's deadline.
_PREPARING = 120.0

_COMPILERS = {"dynamo": "eager", "aot_eager": "aot_eager", "inductor": "inductor"}
_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_NO_ANSWER = (Kind.EXCEPTION, Kind.CRASH, Kind.HANG, Kind.MEMORY)
_IMPORTS = (
    "collections.abc",
    "copy",
    "dataclasses",
    "importlib.util",
    "io",
    "json",
    "os",
    "subprocess",
    "sys",
)
_SOURCE_LOADER = '''def load_source(path):
    """The module in a Python file."""
    spec = importlib.util.spec_from_file_location("model_of_this_crash", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["model_of_this_crash"] = module
    spec.loader.exec_module(module)
    return module
'''
_ALWAYS: tuple[Callable[..., Any] | type, ...] = (
    standalone.CannotRun,
    standalone.Answer,
    standalone.leaves,
    standalone.attempt,
    standalone.same,
    standalone.mismatches,
    standalone.differs,
    standalone.shown,
    standalone.table,
    standalone.ended,
    standalone.versions,
    standalone.use,
)
#: Names that a builder's source may not have where it stands in the script.
_TAKEN = frozenset(name for name in vars(standalone) if not name.startswith("__")) | {
    *("HERE", "build", "call", "inputs", "example", "reference", "target", "truth", "load_source", "os"),
}


def render_repro(crash: Crash, source: str | None) -> str:
    """The text of the script; `source` is the text of the file that holds the builder, where there is one.

    Exits 1 while the difference is there, 0 when it is gone, 2 when this machine cannot run one of the sides.
    """
    seed = seed_from_json(dict(crash.seed), crash.base)
    parts = _Parts(crash, seed)
    model = model_source(crash, seed, source, _TAKEN)
    sides = [parts.side("reference", crash.reference), parts.side("target", crash.target)]
    if seed.model.source != "onnx":
        sides.append("def truth(module, sample):\n    return float64(module, call, sample)\n")
    third = "" if seed.model.source == "onnx" else ', "float64": truth'
    body = [
        *([model.code] if model.code else []),
        _function("build()", "The model, in eval mode.", model.build),
        _function("call(sample)", "The arguments of `forward`.", [f"return {_arguments(seed)}"]),
        parts.inputs(),
        *sides,
        "# What follows runs and compares; it is the same in every such script.",
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in body)
    tail = f'sys.exit(main(build, inputs, {{"reference": reference, "target": target{third}}}))'
    helpers = _helpers(text)
    end = f'\n\nif __name__ == "__main__":\n    {tail}\n'
    extra = "import torch\n" + ("import torchvision\n" if seed.model.source == "library" else "")
    imports = "".join(f"import {name}\n" for name in _IMPORTS)
    # Annotations in what is copied name what a script need not import; they stay text.
    future = "\n".join(dict.fromkeys(["from __future__ import annotations", *model.future.splitlines()]))
    head = (
        f"{_docstring(crash, seed)}\n{future}\n\n{imports}from typing import Any\n\n{extra}\n{_constants(crash, seed)}"
    )
    return f"{head}\n\n{text}\n\n{helpers}{end}"


class _Parts:
    """The pieces of a script that depend on the inputs and on the backends."""

    def __init__(self, crash: Crash, seed: Seed) -> None:
        self.seed = seed
        self.sample = crash.inputs
        self.example = _example(seed, crash)
        self.axes = {
            name: axes
            for name, spec in seed.inputs.items()
            if (axes := [i for i, size in enumerate(spec.shape) if isinstance(size, str) and _varies(seed, size)])
        }

    def inputs(self) -> str:
        """`inputs()`, and `example()` where the backend compiled for other shapes than those of the inputs."""
        if sum(tensor.numel() for tensor in self.sample.values()) <= MAX_INLINE:
            text = _sample_function("inputs", "The inputs on which the answers differ.", self.sample)
        else:
            read = [
                'found = read_tensors(f"{HERE}/inputs.safetensors")',
                f"return {{n: found[n] for n in {self._order}}}",
            ]
            text = _function("inputs()", "The inputs on which the answers differ.", read)
        if self.example is None:
            return text
        return text + "\n\n" + _example_function(self.example)

    @property
    def _order(self) -> list[str]:
        return list(self.seed.inputs)

    def side(self, name: str, text: str) -> str:
        spec = BackendSpec.parse(text)
        lines = [f"return {self._expression(spec)}"]
        options = spec.options
        if "tf32" in options:
            lines.insert(0, f"use({spec.device!r}, tf32={options['tf32'] == 'true'})")
        elif spec.device != "cpu":
            lines.insert(0, f"use({spec.device!r})")
        if spec.runtime == "eager" and "threads" in options:
            lines.insert(0, f"torch.set_num_threads({int(options['threads'])})")
        return _function(f"{name}(module, sample)", text, lines)

    def _expression(self, spec: BackendSpec) -> str:
        first = "example()" if self.example is not None else "inputs()"
        options = spec.options
        if self.seed.model.source == "onnx" and spec.runtime == "onnxruntime":
            level, threads = _LEVELS[options.get("opt", "all")], int(options.get("threads", "1"))
            return f'onnx_session(f"{{HERE}}/model.onnx", {level!r}, {spec.device!r}, {threads}, sample)'
        if spec.runtime == "eager":
            last = ", channels_last=True" if options.get("layout") == "channels_last" else ""
            return f"eager(module, call, sample, {spec.device!r}{last})"
        if spec.runtime in _COMPILERS:
            given = "".join(f", {key}={options[key] == 'true'}" for key in ("dynamic", "fullgraph") if key in options)
            axes = {} if "dynamic" in options else self.axes
            backend = _COMPILERS[spec.runtime]
            return f"compiled(module, call, sample, {first}, {axes}, {backend!r}, {spec.device!r}{given})"
        if spec.runtime == "onnxruntime":
            exporter = options.get("exporter", "auto")
            exporters = ["dynamo", "torchscript"] if exporter == "auto" else [exporter]
            level, threads = _LEVELS[options.get("opt", "all")], int(options.get("threads", "1"))
            more = f"{self.axes}, {exporters}, {level!r}, {spec.device!r}, {threads}"
            return f"onnx_answer(module, call, sample, {first}, {more})"
        return f"unknown({str(spec)!r})"


def _varies(seed: Seed, name: str) -> bool:
    return seed.dims[name].min < seed.dims[name].most


def _example(seed: Seed, crash: Crash) -> dict[str, Tensor] | None:
    """The example that backends compile for, where the inputs cannot serve as one.

    They can where they have its shapes and the module answers on them; then the script stays short.
    """
    example = base_sample(seed, 0)
    same = all(tensor.shape == crash.inputs[name].shape for name, tensor in example.items())
    return None if same and crash.kind not in _NO_ANSWER else example


def _sample_function(name: str, about: str, sample: Mapping[str, Tensor]) -> str:
    lines = ['nan, inf = float("nan"), float("inf")'] if _special(sample) else []
    lines += ["return {", *(f"    {key!r}: {_wrapped(literal(tensor))}," for key, tensor in sample.items()), "}"]
    return _function(f"{name}()", about, lines)


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 100, subsequent_indent=" " * 12, break_long_words=False))


def _special(sample: Mapping[str, Tensor]) -> bool:
    return any(re.search(r"\b(nan|inf)\b", literal(tensor)) for tensor in sample.values())


def _example_function(example: Mapping[str, Tensor]) -> str:
    about = "What the target is compiled for: ordinary inputs."
    if sum(tensor.numel() for tensor in example.values()) <= MAX_INLINE:
        return _sample_function("example", about, example)
    lines = ["generator = torch.Generator().manual_seed(0)", "return {"]
    for key, tensor in example.items():
        low, high = _ends(tensor)
        shape = list(tensor.shape)
        drawn = f"{low} + ({high} - {low}) * torch.rand({shape}, generator=generator, dtype=torch.float64)"
        lines.append(f"    {key!r}: ({drawn}).to({tensor.dtype}),")
    return _function("example()", about, [*lines, "}"])


def _ends(tensor: Tensor) -> tuple[float, float]:
    """The least and the greatest value of the example, real parts only: the range that stands in for its values."""
    if tensor.numel() == 0:
        return 0.0, 1.0
    wide = (tensor.real if tensor.is_complex() else tensor).double()
    return float(wide.min()), float(wide.max())


def _arguments(seed: Seed) -> str:
    template = seed.arguments
    if isinstance(template, Mapping) and set(template) == {"args", "kwargs"}:
        return f"{_tuple(template['args'])}, {_filled(template['kwargs'])}"
    return f"{_tuple(template)}, {{}}"


def _tuple(items: Any) -> str:
    return "(" + "".join(f"{_filled(item)}, " for item in items).rstrip() + ")"


def _filled(template: Any) -> str:
    if isinstance(template, str):
        return f"sample[{template!r}]"
    if isinstance(template, Mapping):
        return "{" + ", ".join(f"{key!r}: {_filled(item)}" for key, item in template.items()) + "}"
    if isinstance(template, list | tuple):
        return "[" + ", ".join(_filled(item) for item in template) + "]"
    return repr(template)


def _function(signature: str, about: str, lines: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f'def {signature}:\n    """{_quotable(about)}"""\n{body}'


def _helpers(text: str) -> str:
    """The functions that `text` uses, and those that these use, in the order of their module."""
    extra = (
        standalone.read_tensors,
        standalone.eager,
        standalone.compiled,
        standalone.exported,
        standalone.onnx_session,
        standalone.onnx_answer,
        standalone.float64,
    )
    needed = {item.__name__ for item in (*_ALWAYS, standalone.main)}
    needed |= {item.__name__ for item in extra if f"{item.__name__}(" in text}
    if "onnx_answer" in needed:
        needed |= {"exported", "onnx_session"}
    order = [item for item in vars(standalone).values() if getattr(item, "__module__", "") == standalone.__name__]
    sources = [inspect.getsource(item) for item in order if item.__name__ in needed]
    if "load_source(" in text:
        sources.insert(0, _SOURCE_LOADER)
    if "unknown(" in text:
        sources.insert(0, 'def unknown(name):\n    raise CannotRun(f"{name} is a plug-in; run it yourself here")\n')
    copied = "\n\n".join(source.strip("\n") + "\n" for source in sources)
    return re.sub(r"  # (type: ignore|noqa).*", "", copied)


def _constants(crash: Crash, seed: Seed) -> str:
    absolute, relative = _allowance(crash, seed)
    values = {
        "KIND": crash.kind,
        "LEAF": crash.leaf,
        "REFERENCE": crash.reference,
        "TARGET": crash.target,
        "ABSOLUTE": absolute,
        "RELATIVE": relative,
        "SECONDS": seed.deadline_s + min(seed.prepare_deadline_s, _PREPARING),
        "MEGABYTES": seed.memory_mb,
        "RNG_SEED": crash.rng_seed,
        "THREADS": 1,
    }
    lines = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return f"HERE = os.path.dirname(os.path.abspath(__file__))\n{lines}"


def _allowance(crash: Crash, seed: Seed) -> tuple[float, float]:
    """How far apart values may be without a difference: the owner's tolerance, else half of what was seen.

    Half, because the same fault differs a little from machine to machine, while rounding that is left when a fault is
    gone is far below what the judge calls a difference.
    """
    if seed.tolerance is not None:
        return seed.tolerance.atol, seed.tolerance.rtol
    for stats in crash.verdict.get("stats", []):
        largest = stats.get("max_abs")
        if stats.get("path") == crash.leaf and isinstance(largest, float) and 0 < largest < float("inf"):
            return largest / 2, 0.0
    return 0.0, 0.0


def _docstring(crash: Crash, seed: Seed) -> str:
    difference = crash.difference
    model = seed.model
    what = model.name or model.builder or model.path
    keys = ("torch", "torchvision", "onnxruntime", "onnx", "python", "cpu", "os")
    seen = ", ".join(f"{key} {crash.environment[key]}" for key in keys if key in crash.environment)
    lines = [
        f"{crash.target} answers differently from {crash.reference}: {crash.label} at {crash.leaf}.",
        "",
        f"Model: {model.source} {what} (seed {seed.name})" + (f": {seed.about}" if seed.about else ""),
        f"What differs: {difference['message'] or crash.kind}",
        *(f"  {text}" for text in crash.evidence if text != difference["message"]),
        f"Seen with: {seen or 'unknown versions'}",
        "",
        "Run: python repro.py",
        "Exits 1 while the difference is there, 0 when it is gone, 2 when it cannot run here.",
    ]
    return '"""' + _quotable("\n".join(lines)) + '\n"""\n'


def _quotable(text: str) -> str:
    """`text` inside a docstring: a name or a message from elsewhere must not end it, nor hide characters in it."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return shown.replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
