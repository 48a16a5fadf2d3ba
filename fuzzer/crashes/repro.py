"""`repro.py`: a script that stands alone. It needs torch (with torchvision or ONNX Runtime where the crash does).

A maintainer reads it from top to bottom: what differs, the model, the inputs, the two sides, how they are compared. It
has what its own kind of crash needs, copied from `fuzzer.crashes.standalone`, and nothing else.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fuzzer.crashes.copied import helpers, imports, names, uses
from fuzzer.crashes.crash import NO_ANSWER, Crash
from fuzzer.crashes.graph_repro import at_root, main_source, plain_graph, target_lines
from fuzzer.crashes.graph_source import module_source
from fuzzer.crashes.literals import literal
from fuzzer.crashes.model_source import call_lines, model_source, needs_call
from fuzzer.crashes.sides import Sides, arguments, leaf_function
from fuzzer.crashes.standalone import DTYPES
from fuzzer.inputs import base_sample
from fuzzer.models.graph import Graph
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_from_json
from fuzzer.verify.verdict import Kind

#: Inputs of up to this many elements are written into the script.
MAX_INLINE = 64

#: Seconds that a child process may take to import and compile, beside the seed's deadline.
_PREPARING = 120.0

#: How each kind of difference is looked for: the function that runs the sides, and the one that compares two leaves.
_MAIN = {
    Kind.EXCEPTION: "main_raises",
    Kind.CRASH: "main_ends",
    Kind.HANG: "main_ends",
    Kind.MEMORY: "main_ends",
    Kind.NONDETERMINISM: "main_repeats",
    Kind.MUTATION: "main_changes",
    Kind.OBJECT: "main_plain",
    Kind.ARITY: "main_plain",
}
_DIFFERENT = {
    Kind.NONFINITE: "not_finite_alike",
    Kind.INTEGER: "unequal",
    Kind.SHAPE: "of_other_shape",
    Kind.DTYPE: "of_other_dtype",
    Kind.SIGNED_ZERO: "of_other_sign",
}
#: Names that a builder's source may not have where it stands in the script.
_TAKEN = names() | {"HERE", "example", "ort", "os"}


def render_repro(crash: Crash, source: str | None, home: Path | None = None) -> str:
    """The text of the script; `source` is the text of the file that holds the builder, where there is one.

    `home`: the folder where it will stand, if not the crash's.

    Exits 1 while the difference is there, 0 when it is gone, 2 when this machine cannot run one of the sides.
    """
    seed = seed_from_json(dict(crash.seed), crash.base)
    graph = plain_graph(crash)
    if graph is not None:
        return _of_graph(crash, seed, graph)
    kind = Kind(crash.kind)
    example = _example(seed, crash)
    sides = Sides(crash, seed, example)
    model = model_source(crash, seed, source, _TAKEN, home or crash.folder or crash.base)
    main = _MAIN.get(kind, "main")
    judged = main == "main" and bool(crash.verdict.get("judged", True)) and seed.model.source != "onnx"
    parts = [
        *([model.code] if model.code else []),
        _function("build()", model.build),
        _function("inputs()", _inputs(seed, crash)),
        *(
            [_function("example()", _drawn(example), "Ordinary inputs, for which the target is prepared.")]
            if example
            else []
        ),
        *([_function("call(module, sample)", call_lines(seed, arguments(seed)))] if needs_call(crash, seed) else []),
        _function("reference(module, sample)", sides.lines(crash.reference), crash.reference),
        _function("target(module, sample)", sides.lines(crash.target), crash.target),
        *([_function("float64(module, sample)", _FLOAT64)] if judged else []),
        *leaf_function(kind, crash.leaf),
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in parts)
    wanted = [main, _DIFFERENT.get(kind, "far_apart")] if main == "main" else [main]
    copied = _renamed(helpers(text, wanted), kind, crash)
    if not judged:
        copied = copied.replace("(reference, target, float64)", "(reference, target)")
    body = f'{text}\n\n{copied}\n\nif __name__ == "__main__":\n    sys.exit(main())\n'
    body = re.sub(r"\n{4,}", "\n\n\n", body)
    constants = _constants(crash, seed, sides, body)
    head = [_docstring(crash, seed), model.future, imports(constants + body), constants]
    return "\n".join(part.rstrip("\n") + "\n" for part in head if part) + "\n\n" + body


def _of_graph(crash: Crash, seed: Seed, graph: Graph) -> str:
    """The short script of a crash that was reduced to `graph`."""
    sides = Sides(at_root(crash), seed, None)
    kept = "weights.safetensors" in crash.files
    load = 'model.load_state_dict(read_tensors(f"{HERE}/weights.safetensors"))'
    parts = [
        module_source(graph, {}),
        *([_function("build()", ["model = Model()", load, "return model"])] if kept else []),
        _function("inputs()", _inputs(seed, crash)),
        _function("target(module, sample)", target_lines(sides.lines(crash.target))),
    ]
    text = "\n\n".join(part.strip("\n") + "\n" for part in parts)
    absolute, relative = _allowance(crash, seed)
    allowed = f"{absolute!r} + {relative!r} * a.abs()" if relative else f"{absolute!r}"
    main = main_source(crash, "build()" if kept else "Model()", allowed)
    copied = helpers(text, [])
    body = "\n\n".join(part for part in (text, copied, main) if part)
    body = re.sub(r"\n{4,}", "\n\n\n", body)
    constants = _constants(crash, seed, sides, body)
    head = [_docstring(crash, seed), imports(constants + body), constants]
    return "\n".join(part.rstrip("\n") + "\n" for part in head if part) + "\n\n" + body


_FLOAT64 = [
    "wide = {n: t.double() if t.is_floating_point() else t for n, t in sample.items()}",
    "return call(module.double(), wide)",
]


def _renamed(copied: str, kind: Kind, crash: Crash) -> str:
    """The helpers under the names by which the script calls them; without `leaf` where the output is the leaf."""
    main, different = _MAIN.get(kind, "main"), _DIFFERENT.get(kind, "far_apart")
    copied = re.sub(rf"\bdef {different}\(", "def different(", copied)
    copied = re.sub(rf"\bdef {main}\(", "def main(", copied)
    if not leaf_function(kind, crash.leaf):
        copied = copied.replace("leaf(run(side))", "run(side)").replace(
            "leaf(run(reference)), leaf(run(target))", "run(reference), run(target)"
        )
    copied = copied.replace("RNG_SEED", repr(crash.rng_seed))
    return copied


def _inputs(seed: Seed, crash: Crash) -> list[str]:
    if sum(tensor.numel() for tensor in crash.inputs.values()) <= MAX_INLINE:
        return _written(crash.inputs)
    return [
        'found = read_tensors(f"{HERE}/inputs.safetensors")',
        f"return {{n: found[n] for n in {list(seed.inputs)}}}",
    ]


def _example(seed: Seed, crash: Crash) -> dict[str, Tensor] | None:
    """The example that backends compile for, where the inputs cannot serve as one.

    They can where they have its shapes and the module answers on them; then the script stays short.
    """
    example = base_sample(seed, 0)
    same = all(tensor.shape == crash.inputs[name].shape for name, tensor in example.items())
    return None if same and crash.kind not in NO_ANSWER else example


def _written(sample: Mapping[str, Tensor]) -> list[str]:
    lines = _special(sample)
    entries = [f"{key!r}: {literal(tensor)}" for key, tensor in sample.items()]
    short = f"return {{{', '.join(entries)}}}"
    if len(short) <= 110:
        return [*lines, short]
    return [*lines, "return {", *(f"    {_wrapped(entry)}," for entry in entries), "}"]


def _wrapped(text: str, indent: int = 12) -> str:
    return "\n".join(textwrap.wrap(text, 100, subsequent_indent=" " * indent, break_long_words=False))


def _special(sample: Mapping[str, Tensor]) -> list[str]:
    text = " ".join(literal(tensor) for tensor in sample.values())
    return [f'{word} = float("{word}")' for word in ("nan", "inf") if re.search(rf"\b{word}\b", text)]


def _drawn(example: Mapping[str, Tensor]) -> list[str]:
    if sum(tensor.numel() for tensor in example.values()) <= 8:
        return _written(example)
    lines = ["generator = torch.Generator().manual_seed(0)", "return {"]
    for key, tensor in example.items():
        low, high = _ends(tensor)
        drawn = f"({low:.4g} + {high - low:.4g} * torch.rand({list(tensor.shape)}, generator=generator))"
        lines.append(f"    {key!r}: {drawn}.to({tensor.dtype}),")
    return [*lines, "}"]


def _ends(tensor: Tensor) -> tuple[float, float]:
    """The least and the greatest value of the example, real parts only: the range that stands in for its values."""
    if tensor.numel() == 0:
        return 0.0, 1.0
    wide = (tensor.real if tensor.is_complex() else tensor).double()
    return float(wide.min()), float(wide.max())


def _function(signature: str, lines: list[str], about: str = "") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    told = f'    """{_quotable(about)}"""\n' if about else ""
    return f"def {signature}:\n{told}{body}"


def _constants(crash: Crash, seed: Seed, sides: Sides, text: str) -> str:
    """The names in capitals that `text` uses."""
    absolute, relative = _allowance(crash, seed)
    values = {
        "KIND": crash.kind,
        "LEAF": crash.leaf,
        "ABSOLUTE": absolute,
        "RELATIVE": relative,
        "SECONDS": seed.deadline_s + min(seed.prepare_deadline_s, _PREPARING),
        "MEGABYTES": seed.memory_mb,
        "AXES": sides.axes,
        "EXPORTERS": sides.exporters,
        "DTYPES": DTYPES,
    }
    lines = [_wrapped(f"{name} = {value!r}", 4) + "\n" for name, value in values.items() if uses(text, name)]
    here = ["HERE = os.path.dirname(os.path.abspath(__file__))\n"] if "{HERE}" in text else []
    return "".join([*here, *lines])


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
    short = model.source == "graph"
    apart = _allowance(crash, seed)[0]
    counted = short and crash.kind == Kind.VALUE
    what = model.module or model.name or model.builder or model.path or _left(crash)
    keys = ("torch", "torchvision", "onnxruntime", "onnx", "python", "cpu", "os")
    seen = ", ".join(f"{key} {crash.environment[key]}" for key in keys if key in crash.environment)
    lines = [
        f"{crash.target} answers differently from {crash.reference}: {crash.label} at {crash.leaf}.",
        "",
        f"Model: {model.source} {what} (seed {seed.name})" + (f": {seed.about}" if seed.about else ""),
        f"What differs: {difference['message'] or crash.kind}" + (f"; counted beyond {apart:.3g}" if counted else ""),
        *(f"  {text}" for text in crash.evidence if text != difference["message"] and not short),
        f"Seen with: {seen or 'unknown versions'}",
        "Run: python repro.py. Exits 1 while the difference is there, 0 when it is gone, 2 when it cannot run here.",
    ]
    return '"""' + _quotable("\n".join(lines)) + '\n"""\n'


def _left(crash: Crash) -> str:
    """How much of the model is left."""
    before, after = crash.sizes.get("nodes_original"), crash.sizes.get("nodes")
    whole = dict((crash.whole_seed or {}).get("model", {}))
    name = whole.get("name") or whole.get("builder") or whole.get("path") or "a model"
    return f"of {after} operator{'s' if after != 1 else ''}, left of the {before} of {name}"


def _quotable(text: str) -> str:
    """`text` inside a docstring: a name or a message from elsewhere must not end it, nor hide characters in it."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return shown.replace("\\", "\\\\").replace('"""', "'''").rstrip('"')
