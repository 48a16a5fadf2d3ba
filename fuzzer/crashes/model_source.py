"""How a `repro.py` builds the model: the lines of its `build()`, and what of a builder's file stands in the script."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.graph_source import module_source
from fuzzer.models.graph import Graph
from fuzzer.seeds import ModelSpec, Seed
from fuzzer.seeds.stages import whole

#: A longer source stays in its own file beside the script.
MAX_LINES = 200


@dataclass(frozen=True)
class ModelSource:
    """`future`: lines that come first in the script. `code`: source that stands in it. `build`: body of `build()`."""

    future: str
    code: str
    build: list[str]


def model_source(crash: Crash, seed: Seed, source: str | None, taken: Collection[str], home: Path) -> ModelSource:
    """The model of `seed`. `source`: the text of the builder's file; `taken`: names that the script has itself.

    `home`: the folder where the script will stand. A repository, and a `.pt2` file, stay where they are and are found
    from there.
    """
    spec = whole(seed).model
    if spec.source == "onnx":
        only_file = not needs_call(crash, seed)
        return ModelSource("", "", ["return None  # the model is the file model.onnx"] if only_file else _CONVERTED)
    if spec.source == "graph":
        return _graph(crash, spec)
    future = code = ""
    if spec.source in ("repo", "hub", "exported"):
        body = _elsewhere(spec, None if spec.path is None else _from(home, whole(seed).path(spec.path)))
    elif spec.source == "library":
        body, future, code = _library(spec)
    else:
        body, future, code = _builder(spec, source, taken)
    lines = [f"torch.manual_seed({spec.weights.seed})", *body]
    if seed.model.module is not None:
        lines += _stage(seed.model.module)
    if "weights.safetensors" in crash.files:
        lines.append('load(model, f"{HERE}/weights.safetensors")')
    elif spec.weights.kind in ("calibrated", "file"):
        weights = crash.weights
        how = f"hash {weights.get('hash', 'unknown')}, from {weights.get('rebuild', 'the seed')}"
        lines.append(f"raise CannotRun({f'the weights are not kept here ({how}); load them in build()'!r})")
    mode = "" if spec.source == "exported" else ".eval()"  # a program's mode was fixed when it was exported
    return ModelSource(future, code, [*lines, f"return model{mode}.requires_grad_(False)"])


def _from(home: Path, path: Path) -> str:
    """Code for `path` as it is seen from `home`."""
    relative = Path(os.path.relpath(path.resolve(), home.resolve())).as_posix()
    return 'there(f"{HERE}/' + repr(relative)[1:-1].replace('"', '\\"').replace("{", "{{").replace("}", "}}") + '")'


def _elsewhere(spec: ModelSpec, place: str | None) -> list[str]:
    """A model whose code or program is not brought along; `place`: code for where it lies."""
    if spec.source == "exported":
        return [f"model = torch.export.load({place}).module()"]
    lines = [f"folder = {place or f'hub_copy({spec.repo!r})'}", "with inside(folder):"]
    if spec.source == "hub":
        options = _arguments({"source": "local"} | spec.args)
        return [*lines, f"    model = torch.hub.load(folder, {spec.name!r}, {options})"]
    return [*lines, *(f"    {line}" for line in _called(spec, f"importlib.import_module({_module(spec)!r})"))]


def _module(spec: ModelSpec) -> str:
    assert spec.builder is not None
    return spec.builder.partition(":")[0]


def _called(spec: ModelSpec, load: str) -> list[str]:
    """What the builder gives, from the module that the code `load` imports."""
    assert spec.builder is not None
    # Seeded again after the import, which may draw numbers of its own.
    again = [f"source = {load}", f"torch.manual_seed({spec.weights.seed})"]
    again.append(f"model = source.{spec.builder.partition(':')[2]}")
    call = f"model = model({_arguments(spec.args)})"
    return [*again, *([call] if spec.args else ["if not isinstance(model, torch.nn.Module):", f"    {call}"])]


def needs_call(crash: Crash, seed: Seed) -> bool:
    """Whether a side runs the model as a module: an ONNX file's conversion, where one side is not ONNX Runtime."""
    sides = (BackendSpec.parse(text).runtime for text in (crash.reference, crash.target))
    return seed.model.source != "onnx" or any(runtime != "onnxruntime" for runtime in sides)


def call_lines(seed: Seed, arguments: str) -> list[str]:
    """The body of `call(module, sample)`; an ONNX file's conversion takes its inputs in order and has named outputs."""
    return _CALL_CONVERTED if seed.model.source == "onnx" else [f"return module({arguments})"]


_CONVERTED = [
    "try:",
    "    import onnx2torch",
    "",
    '    model = onnx2torch.convert(f"{HERE}/model.onnx")',
    "except Exception as error:",
    '    raise CannotRun(f"model.onnx cannot be converted to PyTorch by onnx2torch: {error!r}") from error',
    "return model.eval().requires_grad_(False)",
]
_CALL_CONVERTED = [
    "import onnx",
    "",
    'names = [item.name for item in onnx.load(f"{HERE}/model.onnx").graph.output]',
    "found = module(*sample.values())",
    "return dict(zip(names, found if isinstance(found, (list, tuple)) else [found]))",
]


def _stage(path: str) -> list[str]:
    """A submodule, or a method with the parameters of its owner, as `fuzzer.models.stage` makes it a module."""
    head, _, name = path.rpartition(".")
    return [
        "",
        "class Stage(torch.nn.Module):",
        "    def __init__(self, owner):",
        "        super().__init__()",
        "        self.owner = owner",
        "",
        "    def forward(self, *args, **kwargs):",
        f"        return self.owner.{name}(*args, **kwargs)",
        "",
        f"owner = model.get_submodule({head!r})",
        f"model = owner.{name} if isinstance(owner.{name}, torch.nn.Module) else Stage(owner)",
    ]


def _graph(crash: Crash, spec: ModelSpec) -> ModelSource:
    """The operators as source; constants are read from beside the script, as they may be large."""
    lines = ["model = Model()"]
    if "weights.safetensors" in crash.files:
        lines.append('model.load_state_dict(read_tensors(f"{HERE}/weights.safetensors"))')
    return ModelSource("", module_source(Graph.from_json(spec.graph), {}), [*lines, "return model.eval()"])


def _library(spec: ModelSpec) -> tuple[list[str], str, str]:
    assert spec.name is not None
    if spec.library == "timm":
        return [f"import timm\n\n    model = timm.create_model({spec.name!r}, {_arguments(spec.args)})"], "", ""
    if spec.library == "transformers":
        return [_transformers(spec.name, spec.args)], "", ""
    import torchvision  # a second to import: only where the model is one of its

    name = spec.name.rsplit(".", 1)[-1]
    arguments: dict[str, Any] = {"weights": "DEFAULT" if spec.weights.kind == "default" else None}
    if spec.weights.kind != "default" and name in torchvision.models.list_models():
        builder = torchvision.models.get_model_builder(name)
        if "weights_backbone" in inspect.signature(builder).parameters:
            arguments["weights_backbone"] = None
    return [f"model = torchvision.models.get_model({name!r}, {_arguments(arguments | spec.args)})"], "", ""


def _transformers(name: str, args: dict[str, Any]) -> str:
    """By the name of a class, or by a model type, as `fuzzer.models.libraries` takes it."""
    options = _arguments({"use_cache": False} | args)
    if name.isidentifier() and name[0].isupper():
        return f"import transformers\n\n    make = transformers.{name}\n    model = make(make.config_class({options}))"
    made = f"transformers.AutoConfig.for_model({name!r}, {options})"
    return f"import transformers\n\n    model = transformers.AutoModel.from_config({made})"


def _builder(spec: ModelSpec, source: str | None, taken: Collection[str]) -> tuple[list[str], str, str]:
    assert spec.builder is not None
    module, _, attribute = spec.builder.partition(":")
    if source is not None and _fits(source, attribute, taken):
        return [f"model = {attribute}({_arguments(spec.args)})"], *_split(source)
    load = 'load_source(f"{HERE}/model.py")' if source is not None else f"importlib.import_module({module!r})"
    return _called(spec, load), "", ""


def _arguments(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _fits(source: str, attribute: str, taken: Collection[str]) -> bool:
    """Can the source stand in the script: short, alone, a definition, and without a name that the script needs."""
    if source.count("\n") > MAX_LINES or "__main__" in source or "__file__" in source or "." in attribute:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    kinds = (ast.FunctionDef, ast.ClassDef)
    if not any(isinstance(node, kinds) and node.name == attribute for node in tree.body):
        return False
    relative = any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))
    return not relative and not _names(tree) & set(taken)


def _names(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname}  # plain names of modules do not clash
            if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing"):
                found |= {alias.name for alias in node.names if not alias.asname}
        else:
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def _split(source: str) -> tuple[str, str]:
    """The source's `from __future__` lines, and the rest, where they are blanked out."""
    lines = source.splitlines()
    future = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            assert node.end_lineno is not None
            future += [f"from __future__ import {', '.join(alias.name for alias in node.names)}"]
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(future), "\n".join(lines).strip("\n")
