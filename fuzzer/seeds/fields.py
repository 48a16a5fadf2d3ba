"""The values that fields of a seed may have: names, sizes, ranges, paths, plain data, and dtypes by kind of input."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator

#: The dtypes an input may have; the names are torch's.
DTypeName = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"
]
InputKind = Literal["image", "boxes", "scores", "tokens", "mask", "floats", "integers"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

FLOATS = frozenset({"float32", "float64", "float16", "bfloat16"})
INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})
#: The dtypes in which each kind of input makes sense (whole numbers up to the default ranges are exact in all of them).
DTYPES_OF_KIND: dict[str, frozenset[str]] = {
    "image": FLOATS | INTEGERS,
    "boxes": FLOATS,
    "scores": FLOATS,
    "tokens": INTEGERS | {"float32", "float64"},
    "integers": INTEGERS | {"float32", "float64"},
    "mask": FLOATS | INTEGERS | {"bool"},
    "floats": FLOATS | {"complex64"},
}


def _size(value: Any) -> int | str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"a dimension cannot be negative, got {value}")
        return value
    raise ValueError(f"expected a whole number or the name of a dimension, got {value!r}")


def _pair(value: Any) -> Any:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"expected two numbers, such as [0, 1], got {value!r}")
    return tuple(value)


def _output_path(value: str) -> str:
    if not value.startswith(("[", ".", "$")):
        raise ValueError(f"expected the path of an output, such as [0].boxes, .logits or $, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    """`value` as what JSON and YAML both keep: tuples become lists; what they cannot keep is refused."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise ValueError(f"expected plain values with text keys and finite numbers, got {value!r}")


Size = Annotated[int | str, PlainValidator(_size)]
Pair = Annotated[tuple[float, float], BeforeValidator(_pair)]
OutputPath = Annotated[str, AfterValidator(_output_path)]
Plain = Annotated[Any, BeforeValidator(_plain)]
ModulePath = Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")]
