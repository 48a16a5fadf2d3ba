"""What a seed says: model, inputs, task, backends, tolerances, mutators, and what its owner accepts.

These classes are the schema: the field names are the YAML keys, unknown keys are refused, and whatever is not given has
the default that stands here. `load_seed` (in `fuzzer.seeds.load`) turns a file into a `Seed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

#: The dtypes an input may have; the names are torch's.
DTypeName = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64"
]
InputKind = Literal["image", "boxes", "scores", "tokens", "mask", "floats", "integers"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Strict(BaseModel):
    """Refuses what it does not know, and does not turn `"3"` into 3."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Weights(Strict):
    """Where the parameters come from.

    default: what the source's own loader gives (torchvision's pretrained download, a builder's own initialisation).
    random: the constructor's random initialisation, seeded. calibrated: random, made non-degenerate (`fuzzer.models`).
    file: a safetensors file, or a checkpoint read with `weights_only=True`.
    """

    kind: Literal["default", "random", "calibrated", "file"] = "default"
    file: str | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _file_goes_with_its_kind(self) -> Weights:
        if (self.kind == "file") != (self.file is not None):
            raise ValueError("`file` goes with `kind: file` and only with it")
        return self


class ModelSpec(Strict):
    """Where the module comes from.

    library: `name` is a torchvision model (`resnet18`, `detection.ssdlite320_mobilenet_v3_large`).
    builder: `builder` is `module:callable`, imported with the folder `path` (relative to the seed) in front.
    onnx: `path` is an ONNX file.
    """

    source: Literal["library", "builder", "onnx"]
    name: str | None = None
    path: str | None = None
    builder: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    args: dict[str, Any] = {}
    weights: Weights = Weights()

    @model_validator(mode="after")
    def _fields_go_with_the_source(self) -> ModelSpec:
        needed = {"library": "name", "builder": "builder", "onnx": "path"}[self.source]
        if getattr(self, needed) is None:
            raise ValueError(f"`source: {self.source}` needs `{needed}`")
        return self


class InputSpec(Strict):
    """One input tensor: kind, shape with named dynamic dimensions, dtype, value range, or the files it is read from.

    `range` is inclusive below; for integers and tokens exclusive above. `extent` (boxes) is [width, height].
    `exact`: the values mean something exactly (token ids, masks, counts) and rounding noise must not move them.
    """

    kind: InputKind
    shape: list[int | Name]
    dtype: DTypeName | None = None
    range: tuple[float, float] | None = None
    extent: tuple[float, float] | None = None
    files: list[str] = []
    key: str | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    exact: bool = False

    @property
    def dtype_name(self) -> str:
        """The dtype given, or the kind's own: int64 for tokens and integers, bool for masks, else float32."""
        default = {"tokens": "int64", "integers": "int64", "mask": "bool"}
        return self.dtype or default.get(self.kind, "float32")


class Dim(Strict):
    """A named dynamic dimension: its size in base inputs, and how far mutators may take it."""

    size: Annotated[int, Field(ge=0)]
    min: Annotated[int, Field(ge=0)] = 1
    max: Annotated[int, Field(ge=0)] | None = None

    @property
    def most(self) -> int:
        return self.max if self.max is not None else max(self.size, 1) * 2

    @model_validator(mode="after")
    def _in_order(self) -> Dim:
        if not self.min <= self.size <= self.most:
            raise ValueError(f"needs min ≤ size ≤ max, got {self.min}, {self.size}, {self.most}")
        return self


class Tolerance(Strict):
    """The owner's own tolerance: decides pass or fail of tier 1 where it is given."""

    atol: Annotated[float, Field(ge=0)] = 0.0
    rtol: Annotated[float, Field(ge=0)] = 0.0


class Task(Strict):
    """What the outputs mean. `outputs` names leaves by path where a task needs to find them."""

    kind: Literal["classification", "detection", "segmentation", "embedding", "tokens", "regression", "tensors"]
    outputs: dict[str, str] = {}


class Allow(Strict):
    """What mutators may do beyond the ordinary range of the inputs."""

    nonfinite: bool = True
    out_of_range_integers: bool = False
    empty: bool = False  # size-0 dimensions, where a dimension's `min` is 0


class Accept(Strict):
    """Behaviour the owner knows: counted and shown, not a new crash. Patterns are shell-style (`order/*`)."""

    label: str = "*"
    target: str = "*"
    leaf: str = "*"
    kind: str = "*"
    why: Annotated[str, Field(min_length=1)]


class Mutators(Strict):
    """Which mutators run: all that fit the inputs, unless `only` is given; never those in `skip`."""

    only: list[str] = []
    skip: list[str] = []


class Seed(Strict):
    """A whole seed. `base` is the folder from which its relative paths start."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    about: str = ""
    model: ModelSpec
    inputs: dict[Name, InputSpec]
    dims: dict[Name, Dim] = {}
    call: Any = None
    task: Task = Task(kind="tensors")
    backends: list[str] = ["aot_eager:cpu", "inductor:cpu", "onnxruntime:cpu"]
    reference: str = "eager:cpu"
    tolerance: Tolerance | None = None
    mutators: Mutators = Mutators()
    allow: Allow = Allow()
    accept: list[Accept] = []
    signed_zero: bool = False  # does +0 against −0 in an output count as a difference
    deadline_s: Annotated[float, Field(gt=0)] = 60.0
    prepare_deadline_s: Annotated[float, Field(gt=0)] = 600.0
    memory_mb: Annotated[int, Field(gt=0)] = 8192

    _base: Path = PrivateAttr(default=Path("."))

    @property
    def base(self) -> Path:
        return self._base

    def at(self, base: Path) -> Seed:
        """The same seed with relative paths starting at `base`."""
        copy = self.model_copy()
        copy._base = base
        return copy

    def path(self, relative: str) -> Path:
        """A path of this seed's, made absolute from its base folder."""
        return (self._base / relative).resolve()

    @property
    def arguments(self) -> Any:
        """The call template: names of inputs in the places where `forward` takes them, positional by default.

        A mapping with exactly the keys `args` and `kwargs` gives keyword arguments too.
        """
        return list(self.inputs) if self.call is None else self.call

    @model_validator(mode="after")
    def _names_hold_together(self) -> Seed:
        problems = []
        for name, spec in self.inputs.items():
            for size in spec.shape:
                if isinstance(size, str) and size not in self.dims:
                    problems.append(f"input {name}: dimension {size!r} is not under `dims`")
                if isinstance(size, int) and size < 0:
                    problems.append(f"input {name}: dimension {size} is negative")
        used = set(_names(self.arguments))
        problems += [f"call: {name!r} is no input" for name in sorted(used - set(self.inputs))]
        problems += [f"call: input {name!r} is never used" for name in sorted(set(self.inputs) - used)]
        if not self.inputs:
            problems.append("inputs: a seed needs at least one")
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _names(template: Any) -> list[str]:
    if isinstance(template, str):
        return [template]
    if isinstance(template, dict):
        return [name for item in template.values() for name in _names(item)]
    if isinstance(template, list | tuple):
        return [name for item in template for name in _names(item)]
    return []
