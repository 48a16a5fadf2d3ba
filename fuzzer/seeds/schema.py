"""What a seed says: model, inputs, task, backends, tolerances, mutators, and what its owner accepts.

These classes are the schema: the field names are the YAML keys, unknown keys are refused, and whatever is not given has
the default that stands here. `load_seed` (in `fuzzer.seeds.load`) turns a file into a `Seed`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from fuzzer.seeds.fields import (
    DTYPES_OF_KIND,
    FLOATS,
    DTypeName,
    InputKind,
    ModulePath,
    Name,
    OutputPath,
    Pair,
    Plain,
    Size,
)
from fuzzer.seeds.packages import placed

WeightsKind = Literal["default", "random", "calibrated", "file"]
#: The kinds of tasks. Registering one of a plug-in's adds it (`fuzzer.verify.tasks.register`).
TASK_KINDS = ["classification", "detection", "segmentation", "embedding", "tokens", "regression", "tensors"]

#: What each source of a model cannot do without.
_NEEDED: dict[str, tuple[str, ...]] = {
    "library": ("name",),
    "builder": ("builder",),
    "repo": ("path", "builder"),
    "hub": ("name",),
    "exported": ("path",),
    "onnx": ("path",),
    "graph": ("graph",),
    "stage": ("of", "module"),
}


class Strict(BaseModel):
    """Refuses what it does not know, and does not turn `"3"` into 3."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Weights(Strict):
    """Where the parameters come from.

    default: what the source's own loader gives (torchvision's pretrained download, a builder's own initialisation).
    random: the constructor's random initialisation, seeded. calibrated: random, made non-degenerate (`fuzzer.models`).
    file: a safetensors file, or a checkpoint read with `weights_only=True`.
    noise (calibrated): calibration also sees images of noise, whose features are many times as large as those of smooth
    ones; a model that ends in softmax or sigmoid would answer 0 and 1 to them.
    A lone word is the kind; any other lone text is the file.
    """

    kind: WeightsKind = "default"
    file: str | None = None
    seed: int = 0
    noise: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return {"kind": value} if value in ("default", "random", "calibrated") else {"kind": "file", "file": value}

    @model_validator(mode="after")
    def _file_goes_with_its_kind(self) -> Weights:
        if (self.kind == "file") != (self.file is not None):
            raise ValueError("`file` goes with `kind: file` and only with it")
        if self.noise and self.kind != "calibrated":
            raise ValueError("`noise` goes with `kind: calibrated` and only with it")
        return self


class ModelSpec(Strict):
    """Where the module comes from.

    library: `name` is a model of `library`: torchvision's (`resnet18`, `detection.ssdlite320_mobilenet_v3_large`),
    timm's, or a class or model type of transformers with its configuration in `args`.
    builder: `builder` is `module:callable`, imported with the folder `path` (relative to the seed) in front.
    repo: the same, where `path` is the root of a repository: its code runs there and stays importable.
    hub: `name` is an entry point of the `hubconf.py` in the folder `path`, or in torch.hub's copy of `repo`
    (`owner/name:ref`); nothing is fetched unless `download` says so.
    exported: `path` is a `.pt2` file. onnx: `path` is an ONNX file.
    graph: `graph` is what reduction leaves of a module, operators as plain data (`fuzzer.models.graph`).
    stage: `module` is a submodule, or a method of one, of the model of the seed `of` (`fuzzer.models.stage`).
    """

    source: Literal["library", "builder", "repo", "hub", "exported", "onnx", "graph", "stage"]
    library: Literal["torchvision", "timm", "transformers"] | None = None
    name: str | None = None
    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+(:[\w./-]+)?$")] | None = None
    path: str | None = None
    builder: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")] | None = None
    download: bool | None = None
    graph: Plain = None
    of: Plain = None
    module: ModulePath | None = None
    args: dict[str, Plain] = {}
    weights: Weights = Weights()

    @model_validator(mode="after")
    def _fields_go_with_the_source(self) -> ModelSpec:
        for field in _NEEDED[self.source]:
            if getattr(self, field) is None:
                raise ValueError(f"`source: {self.source}` needs `{field}`")
        if self.source == "hub" and (self.path is None) == (self.repo is None):
            raise ValueError("`source: hub` needs either `path` or `repo`")
        own = (("library", "library"), ("repo", "hub"), ("download", "hub"), ("of", "stage"), ("module", "stage"))
        for field, source in own:
            if getattr(self, field) is not None and self.source != source:
                raise ValueError(f"`{field}` goes with `source: {source}` only")
        if self.source in ("exported", "onnx") and self.args:
            raise ValueError(f"`source: {self.source}` takes no `args`")
        return self


class InputSpec(Strict):
    """One input tensor: kind, shape with named dynamic dimensions, dtype, value range, or the files it is read from.

    `range` is inclusive below; for integers and tokens exclusive above. `extent` (boxes) is [width, height].
    `mean` and `std` (images) are one number a channel, applied after `range`. `key` names the array in a file.
    `exact`: the values mean something exactly (token ids, masks, counts) and rounding noise must not move them.
    """

    kind: InputKind
    shape: list[Size]
    dtype: DTypeName | None = None
    range: Pair | None = None
    extent: Pair | None = None
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

    @model_validator(mode="after")
    def _fields_go_with_the_kind(self) -> InputSpec:
        problems = list(self._misfits())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _misfits(self) -> Iterator[str]:
        allowed = DTYPES_OF_KIND[self.kind]
        if self.dtype_name not in allowed:
            yield f"`kind: {self.kind}` has no dtype {self.dtype_name} (it has: {', '.join(sorted(allowed))})"
        if self.range is not None and not self.range[0] < self.range[1]:
            yield f"`range` needs its lower end first, got {list(self.range)}"
        if self.range is not None and self.kind == "mask":
            yield "a mask takes no `range`"
        if self.extent is not None and self.kind != "boxes":
            yield "`extent` goes with boxes only"
        if self.extent is not None and min(self.extent) <= 0:
            yield f"`extent` needs positive numbers, got {list(self.extent)}"
        if self.kind == "boxes" and (not self.shape or self.shape[-1] != 4):
            yield f"boxes end in a dimension of 4, got {self.shape}"
        if self.kind == "image" and len(self.shape) < 2:
            yield f"an image has at least two dimensions, got {self.shape}"
        if self.key is not None and not self.files:
            yield "`key` goes with `files`"
        if self.mean is not None or self.std is not None:
            yield from self._channel_misfits()

    def _channel_misfits(self) -> Iterator[str]:
        if self.kind != "image" or self.dtype_name not in FLOATS:
            yield "`mean` and `std` go with images of a floating dtype only"
        channels = self.shape[-3] if len(self.shape) >= 3 else 1
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and isinstance(channels, int) and len(values) not in (1, channels):
                yield f"`{name}` needs 1 or {channels} numbers, got {len(values)}"
        if self.std is not None and not all(value > 0 for value in self.std):
            yield f"`std` needs positive numbers, got {self.std}"


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
    """What the outputs mean. `outputs` names leaves by path where a task needs to find them.

    A seed file may name the kinds in TASK_KINDS. A stored crash may name others, of a plug-in that is not loaded.
    """

    kind: Name
    outputs: dict[str, OutputPath] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


class Stage(Strict):
    """A part of the model that is fuzzed on its own inputs too: a submodule, or a method of one, by its dotted path.

    `kinds`: what its inputs are, by name, where their dtype does not say it. One word alone is the path.
    """

    module: ModulePath
    task: Task = Task(kind="tensors")
    kinds: dict[Name, InputKind] = {}

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"module": value} if isinstance(value, str) else value


class Allow(Strict):
    """What mutators may do beyond the ordinary range of the inputs."""

    nonfinite: bool = True
    beyond_range: bool = True  # floats outside `range`, where an input has one
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

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"only": value} if isinstance(value, list) else value


class Seed(Strict):
    """A whole seed. `base` is the folder from which its relative paths start."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    about: str = ""
    model: ModelSpec
    inputs: dict[Name, InputSpec]
    dims: dict[Name, Dim] = {}
    independent: Name | None = None  # the dimension, first of every input, along which samples do not meet
    call: Plain = None
    task: Task = Task(kind="tensors")
    backends: list[str] = ["aot_eager:cpu", "inductor:cpu", "onnxruntime:cpu"]
    reference: str = "eager:cpu"
    tolerance: Tolerance | None = None
    mutators: Mutators = Mutators()
    allow: Allow = Allow()
    accept: list[Accept] = []
    stages: dict[Name, Stage] = {}
    signed_zero: bool = False  # does +0 against −0 in an output count as a difference
    deadline_s: Annotated[float, Field(gt=0)] = 60.0
    prepare_deadline_s: Annotated[float, Field(gt=0)] = 600.0
    memory_mb: Annotated[int, Field(gt=0)] = 8192

    _base: Path = PrivateAttr(default=Path("."))
    _unavailable: str | None = PrivateAttr(default=None)

    @property
    def base(self) -> Path:
        return self._base

    def at(self, base: Path) -> Seed:
        """The same seed with relative paths starting at `base`."""
        copy = self.model_copy()
        copy._base = base
        return copy

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be run, where that is known before its model is built: a stage without inputs."""
        return self._unavailable

    def that_cannot_run(self, reason: str) -> Seed:
        """The same seed, marked as one that cannot be run."""
        copy = self.model_copy()
        copy._unavailable = reason
        return copy

    def path(self, relative: str) -> Path:
        """A path of this seed's, made absolute from its base folder, or from that of an installed package."""
        return placed(self._base, relative).resolve()

    @property
    def arguments(self) -> Any:
        """The call template: names of inputs in the places where `forward` takes them, positional by default.

        A mapping with exactly the keys `args` and `kwargs` gives keyword arguments too.
        """
        return list(self.inputs) if self.call is None else self.call

    @model_validator(mode="before")
    @classmethod
    def _an_onnx_file_is_for_onnx_runtime(cls, value: Any) -> Any:
        """Whoever has an ONNX file runs it there; its conversion to PyTorch is the reference, no target."""
        model = value.get("model") if isinstance(value, dict) else None
        if isinstance(model, dict) and model.get("source") == "onnx":
            return {"backends": ["onnxruntime:cpu"]} | value
        return value

    @model_validator(mode="after")
    def _names_hold_together(self) -> Seed:
        shapes = {name: spec.shape for name, spec in self.inputs.items()}
        problems = name_problems(shapes, self.dims, self.call, self.independent)
        if problems:
            raise ValueError("; ".join(f"{'.'.join(map(str, path))}: {text}" for path, text in problems))
        return self


def name_problems(
    shapes: Mapping[str, Sequence[int | str]], dims: Collection[str], call: Any, independent: str | None
) -> list[tuple[tuple[str | int, ...], str]]:
    """Where the names of inputs and dimensions do not hold together: pairs of key path and text.

    `shapes` has an entry for every input; an empty shape stands for one that could not be read.
    """
    problems: list[tuple[tuple[str | int, ...], str]] = []
    for name, shape in shapes.items():
        for i, size in enumerate(shape):
            if isinstance(size, str) and size not in dims:
                problems.append((("inputs", name, "shape", i), f"dimension {size!r} is not under `dims`"))
    used = set(shapes) if call is None else set(_names(call))
    problems += [(("call",), f"{name!r} is no input") for name in sorted(used - set(shapes))]
    problems += [(("call",), f"input {name!r} is never used") for name in sorted(set(shapes) - used)]
    if not shapes:
        problems.append((("inputs",), "a seed needs at least one"))
    if independent is not None and any(
        not shape or shape[0] != independent or independent in shape[1:] for shape in shapes.values()
    ):
        text = f"{independent!r} has to be the first dimension of every input, and no other one"
        problems.append((("independent",), text))
    return problems


def _names(template: Any) -> list[str]:
    if isinstance(template, str):
        return [template]
    if isinstance(template, dict):
        return [name for item in template.values() for name in _names(item)]
    if isinstance(template, list | tuple):
        return [name for item in template for name in _names(item)]
    return []
