"""A first seed for a model that is only named: `torchvision:resnet18`, `package.module:build`, `model.onnx`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fuzzer.errors import SeedError
from fuzzer.seeds.checks import check_files
from fuzzer.seeds.given import EXAMPLE, Offer, example_spec, tensor_spec
from fuzzer.seeds.libraries import LIBRARIES, PIXELS, library_seed
from fuzzer.seeds.packages import placed
from fuzzer.seeds.problems import explain
from fuzzer.seeds.schema import Seed

#: The ways to name a model, for messages.
FORMS = "torchvision:NAME, timm:NAME, transformers:NAME, package.module:callable, FILE.py:callable, or FILE.onnx"
#: Size of a dimension of which an ONNX file says nothing.
_UNKNOWN = 8
_CALLABLE = re.compile(r"(?:(?P<file>.+\.py)|(?P<module>[A-Za-z_][\w.]*)):(?P<name>[A-Za-z_][\w.]*)")
_ONNX_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip


#: Asks a builder what it offers: its `module:callable` and the folder that it is imported from. Raises XbfuzzError.
Ask = Callable[[str, Path], Offer]


def names_a_model(text: str, base: Path = Path()) -> bool:
    """Whether `text` names a model in one of FORMS, and is not the path of a seed or a folder of seeds."""
    named = bool(_CALLABLE.fullmatch(text)) or _library(text)
    return text.endswith(".onnx") or (named and not (base / text).exists())


def _library(text: str) -> bool:
    return text.partition(":")[0] in LIBRARIES and ":" in text


def sketch(
    spec: str,
    base: Path = Path(),
    inputs: Mapping[str, Mapping[str, Any] | Sequence[int]] | None = None,
    ask: Ask | None = None,
) -> Seed:
    """A seed that runs as it is. Relative paths start from `base`.

    `inputs`: shapes of float32 inputs, or inputs as a seed has them; for a builder, all of them in the order of
    forward's arguments; for others, those that should be otherwise than the file says or than is usual. Weights are
    calibrated; those of a builder where most of them are random, which `ask` finds out. It also gives the examples that
    the user's code offers where no inputs are given.
    Raises SeedError where `spec` is in none of FORMS, where there is no such model, where the file cannot be read,
    where an input is named that the model does not have or that no seed can have, and where nobody says what a
    builder's inputs are.
    """
    given = {name: _given(each) for name, each in (inputs or {}).items()}
    if spec.endswith(".onnx"):
        data = _others(spec, _onnx(spec, base), given)
    elif _library(spec):
        data = _others(spec, library_seed(spec), given)
        data["name"] = _name(data["name"])
    elif found := _CALLABLE.fullmatch(spec):
        data = _builder(spec, found, base, given, ask)
    else:
        raise SeedError([f"{spec}: names no model; a model is named {FORMS}"])
    try:
        return Seed.model_validate(data).at(base)
    except ValidationError as error:
        where = [(".".join(map(str, path)), text) for path, text in explain(error)]
        raise SeedError([f"{spec}: {path}: {text}" if path else f"{spec}: {text}" for path, text in where]) from error


def _given(spec: Mapping[str, Any] | Sequence[int]) -> dict[str, Any]:
    return dict(spec) if isinstance(spec, Mapping) else tensor_spec(list(spec))


def _others(spec: str, data: dict[str, Any], given: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """`data` with the inputs that are given in place of its own."""
    if unknown := sorted(set(given) - set(data["inputs"])):
        raise SeedError([f"{spec}: there is no input {unknown[0]!r}; its inputs are {', '.join(data['inputs'])}"])
    data["inputs"] = {name: given.get(name, own) for name, own in data["inputs"].items()}
    if "dims" in data:
        used = {size for each in data["inputs"].values() for size in each["shape"]}
        data["dims"] = {name: dim for name, dim in data["dims"].items() if name in used}
    return data


def _builder(
    spec: str, found: re.Match[str], base: Path, given: dict[str, dict[str, Any]], ask: Ask | None
) -> dict[str, Any]:
    file = None if found["file"] is None else Path(found["file"])
    builder = f"{found['module'] if file is None else file.stem}:{found['name']}"
    model = {"source": "builder", "path": "." if file is None else str(file.parent), "builder": builder}
    if problems := check_files({"model": model}, base):
        raise SeedError([f"{spec}: {text}" for _, text in problems])
    offer = None if ask is None else ask(builder, (base / str(model["path"])).resolve())
    call = None
    if offer is not None:
        if not given:
            given = {example.name: example_spec(example) for example in offer.examples}
            call = {"args": [], "kwargs": {name: name for name in given}} if offer.by_name else None
        elif set(given) <= set(offer.arguments) and list(given) != offer.arguments[: len(given)]:
            call = {"args": [], "kwargs": {name: name for name in given}}
    if not given:
        takes = f" (forward takes {', '.join(offer.needed)})" if offer is not None and offer.needed else ""
        raise SeedError(
            [f"{spec}: say what its inputs are{takes}: --input {EXAMPLE} for each, or `example_inputs` beside it"]
        )
    if offer is not None and len(given) < len(offer.needed):
        raise SeedError([f"{spec}: forward takes {', '.join(offer.needed)}; given is only {', '.join(given)}"])
    own = offer is not None and offer.own_weights
    return {
        "name": _name(found["name"]),
        "about": f"{spec}, {'its own' if own else 'calibrated'} weights",
        "model": model | {"weights": "default" if own else "calibrated"},
        "inputs": given,
        "call": call,
    }


def _onnx(spec: str, base: Path) -> dict[str, Any]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(placed(base, spec)), load_external_data=False)
    except (OSError, DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no ONNX file"
        raise SeedError([f"{spec}: cannot be read: {why or error}"]) from error
    if not model.HasField("graph"):  # as in an empty file, which is a message without fields
        raise SeedError([f"{spec}: cannot be read: it is no ONNX file"])
    graph = model.graph
    weights = {item.name for item in graph.initializer}
    inputs: dict[str, Any] = {}
    dims: dict[str, Any] = {}
    for number, item in enumerate(item for item in graph.input if item.name not in weights):
        inputs[_identifier(item.name, number)] = _onnx_input(item, dims)
    return {
        "name": _name(Path(spec).stem),
        "about": f"{Path(spec).name}; what its integers mean is not in the file: see their `range`",
        "model": {"source": "onnx", "path": spec},
        "inputs": inputs,
        "dims": dims,
    }


def _onnx_input(item: Any, dims: dict[str, Any]) -> dict[str, Any]:
    """Of the sizes that a file leaves open, the first stays so; others are fixed, for what they may be is not said."""
    dtype = _ONNX_DTYPES.get(item.type.tensor_type.elem_type)
    if dtype is None:
        raise SeedError([f"input {item.name}: no tensor of a dtype that seeds know"])
    sizes = item.type.tensor_type.shape.dim
    image = len(sizes) == 4 and dtype.startswith("float") and sizes[1].dim_value in (1, 3)
    shape: list[int | str] = [size.dim_value or (PIXELS if image else _UNKNOWN) for size in sizes]
    if sizes and not sizes[0].dim_value:
        shape[0] = "batch"
        dims["batch"] = {"size": 1, "max": 4}
    return tensor_spec(shape, dtype)


def _identifier(name: str, number: int) -> str:
    """A seed's name of an input: the file's own where it can be, else one by its place."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"input_{number}"


def _name(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return found if found[:1].isalnum() else f"m{found}"
