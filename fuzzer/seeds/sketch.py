"""A first seed for a model that is only named: `torchvision:resnet18`, `package.module:build`, `model.onnx`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuzzer.errors import SeedError
from fuzzer.seeds.schema import Seed

#: Pixels a side of a guessed image; models that take one size only get theirs.
PIXELS = 64
_FIXED_PIXELS = (("vit_", 224), ("maxvit", 224), ("inception", 299), ("ssd300", 300), ("ssdlite320", 320))
_DETECTOR_PIXELS = 128
#: Size of a dimension of which an ONNX file says nothing.
_UNKNOWN = 8
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_ONNX_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
    16: "bfloat16",
}  # fmt: skip


def sketch(spec: str, base: Path = Path(), inputs: Mapping[str, Sequence[int]] | None = None) -> Seed:
    """A seed that runs as it is: calibrated weights, and inputs of the file's or of guessed shapes.

    `inputs` gives the shapes of a builder's inputs, float32; without it, one image. Relative paths start from `base`.
    Raises SeedError where `spec` is none of the three forms, or the file cannot be read.
    """
    if spec.endswith(".onnx"):
        data = _onnx(spec, base)
    elif spec.startswith("torchvision:"):
        data = _torchvision(spec.removeprefix("torchvision:"))
    elif re.fullmatch(r"[\w.]+:[\w.]+", spec):
        data = _builder(spec, inputs)
    else:
        raise SeedError([f"{spec}: expected torchvision:NAME, package.module:callable, or a file that ends in .onnx"])
    return Seed.model_validate(data).at(base)


def _torchvision(name: str) -> dict[str, Any]:
    family, plain = _family(name), name.rpartition(".")[2]
    pixels = next((size for start, size in _FIXED_PIXELS if plain.startswith(start)), None)
    args: dict[str, Any] = {}
    image: dict[str, Any] = {"kind": "image", "range": [0, 1]}
    if family == "detection":
        side = pixels or _DETECTOR_PIXELS
        args = {} if pixels else {"min_size": side, "max_size": side}
        image["shape"] = [3, side, side]
    else:
        image |= {"shape": [1, 3, pixels or PIXELS, pixels or PIXELS], "mean": _MEAN, "std": _STD}
    outputs = {
        "classification": {"logits": "$"},
        "segmentation": {"logits": ".out"},
        "detection": {"boxes": "[0].boxes", "scores": "[0].scores", "labels": "[0].labels"},
    }[family]
    return {
        "name": _name(plain),
        "about": f"torchvision's {name}, calibrated weights",
        "model": {"source": "library", "name": name, "args": args, "weights": "calibrated"},
        "inputs": {"image": image},
        "call": [["image"]] if family == "detection" else None,
        "task": {"kind": family, "outputs": outputs},
    }


def _family(name: str) -> str:
    """What a torchvision model is for, by the module that has it. Raises SeedError for other families and no model."""
    from torchvision import models  # takes a second: only where one is asked for

    plain = name.rpartition(".")[2]
    for family, module in (("classification", models), ("segmentation", models.segmentation)):
        if plain in models.list_models(module=module):
            return family
    if plain in models.list_models(module=models.detection) and "keypoint" not in plain:
        return "detection"
    raise SeedError([f"torchvision:{name}: no classifier, segmenter or detector of torchvision; write a seed for it"])


def _builder(spec: str, inputs: Mapping[str, Sequence[int]] | None) -> dict[str, Any]:
    found: dict[str, Any] = {name: {"kind": "floats", "shape": list(shape)} for name, shape in (inputs or {}).items()}
    guess = "" if found else f"; the input is a guess: one image of {PIXELS} pixels"
    return {
        "name": _name(spec.rpartition(":")[2]),
        "about": f"{spec}, calibrated weights{guess}",
        "model": {"source": "builder", "path": ".", "builder": spec, "weights": "calibrated"},
        "inputs": found or {"image": {"kind": "image", "shape": [1, 3, PIXELS, PIXELS], "range": [0, 1]}},
    }


def _onnx(spec: str, base: Path) -> dict[str, Any]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load(str(base / spec), load_external_data=False).graph
    except (OSError, DecodeError) as error:
        raise SeedError([f"{base / spec}: cannot be read as ONNX: {type(error).__name__}"]) from error
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
    if image:
        return {"kind": "image", "shape": shape, "dtype": dtype}
    if dtype == "bool":
        return {"kind": "mask", "shape": shape}
    if "int" in dtype:
        return {"kind": "integers", "shape": shape, "dtype": dtype, "range": [0, 2], "exact": True}
    return {"kind": "floats", "shape": shape, "dtype": dtype}


def _identifier(name: str, number: int) -> str:
    """A seed's name of an input: the file's own where it can be, else one by its place."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"input_{number}"


def _name(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_.-]", "_", text)
    return found if found[:1].isalnum() else f"m{found}"
