"""`crash.yaml`: the schema of the file, and a crash to it and back. Nothing that is read is believed unchecked."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.crash import Crash
from fuzzer.crashes.expect import Expectation
from fuzzer.crashes.severity import SEVERITIES
from fuzzer.crashes.signature import CLASS_OF_KIND, NEAR_TIE, Signature
from fuzzer.diagnose import Label
from fuzzer.errors import CrashFolderError, XbfuzzError
from fuzzer.files import to_json
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds.load import seed_from_json
from fuzzer.seeds.yaml_file import YamlError, dump_yaml, read_yaml
from fuzzer.verify.activations import MOST_POINTS
from fuzzer.verify.verdict import Blame, Kind, Outcome

FORMAT = 1
#: What the keepers of a crash folder decided about a crash.
Status = Literal["open", "reported", "accepted", "wontfix"]
#: The files of a crash that are read back, beside `crash.yaml` itself.
DATA_FILES = ("inputs.safetensors", "original.safetensors", "weights.safetensors", "model.onnx")
#: The file that holds the source of a builder, for a reader and for `repro.py`. Never imported from here.
SOURCE_FILE = "model.py"

_HASH = re.compile(r"[0-9a-f]{64}")
Text = Annotated[str, Field(max_length=10_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Signature(_Part):
    seed: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]
    target: Text
    cls: Literal["execution", "structure", "numeric", "order", "state"]
    leaf: Text
    kind: str


class _Difference(BaseModel):
    """What readers of a crash rely on; the rest of a difference is shown as it is."""

    model_config = ConfigDict(extra="allow", strict=True)
    path: Text
    kind: str
    message: Text
    compared: int
    mismatched: int
    reference: Text
    target: Text
    truth: Text
    index: list[int] | None
    drift_reference: float | Text | None
    drift_target: float | Text | None
    near_tie: bool
    blame: str


class _Verdict(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)
    outcome: str
    differences: Annotated[list[_Difference], Field(min_length=1)]
    stats: list[dict[str, Any]]
    notes: list[Text]


class _Point(BaseModel):
    """What readers rely on."""

    model_config = ConfigDict(extra="allow", strict=True)
    gap: float | Text | None = None


class _Activations(BaseModel):
    """What readers rely on; empty where tier 2 was not run."""

    model_config = ConfigDict(extra="allow", strict=True)
    status: Literal["fail", "pass", "not-run"] = "not-run"
    sentence: Text = ""
    points: Annotated[list[_Point], Field(max_length=MOST_POINTS)] = []


class _Mitigation(BaseModel):
    """What readers rely on."""

    model_config = ConfigDict(extra="allow", strict=True)
    restores: bool = False
    tiers: dict[str, Text] = {}
    latency_ms: float | None = None
    unmitigated_ms: float | None = None


class _Diagnosis(BaseModel):
    """What readers rely on; empty where no rerun was made."""

    model_config = ConfigDict(extra="allow", strict=True)
    interventions: list[dict[str, Any]] = []
    stages: list[Text] = []


class _Record(_Part):
    format: int
    id: Text
    label: Text
    study_type: Literal["A", "B", "C"]
    severity: str
    blame: str
    stage: Text | None
    mitigations: list[_Mitigation]
    expect: Text | dict[str, Text]
    status: Status = "open"
    link: Annotated[str, Field(pattern=r"^(https?://\S+)?$", max_length=2000)] = ""
    evidence: list[Text]
    tiers: dict[str, Text]
    reference: Text
    target: Text
    signature: _Signature
    rng_seed: int
    sizes: dict[str, int]
    recipe: dict[str, Any] | None
    found: dict[str, Any]
    environment: dict[str, Any]
    weights: dict[str, Any]
    files: dict[str, str]
    base: Text
    seed: dict[str, Any]
    whole_seed: dict[str, Any] | None = None
    statistics: _Verdict
    activations: _Activations = _Activations()
    diagnosis: _Diagnosis = _Diagnosis()


def to_yaml(crash: Crash, home: Path) -> str:
    """The text of `crash.yaml` for the folder `home`: what a reader wants first comes first."""
    record = {
        "format": FORMAT,
        "id": crash.id,
        "label": str(crash.label),
        "study_type": crash.study_type,
        "severity": crash.severity,
        "blame": crash.blame,
        "stage": crash.stage,
        "mitigations": [dict(item) for item in crash.mitigations],
        "expect": Expectation.parse(crash.expect).to_plain(),
        **({"status": crash.status} if crash.status != "open" else {}),
        **({"link": crash.link} if crash.link else {}),
        "evidence": list(crash.evidence),
        "tiers": dict(crash.tiers),
        "reference": crash.reference,
        "target": crash.target,
        "signature": dict(crash.signature.__dict__),
        "rng_seed": crash.rng_seed,
        "sizes": dict(crash.sizes),
        "recipe": None if crash.recipe is None else crash.recipe.to_json(),
        "found": dict(crash.found),
        "environment": dict(crash.environment),
        "weights": dict(crash.weights),
        "files": dict(crash.files),
        "base": Path(os.path.relpath(crash.base, home)).as_posix(),
        "seed": dict(crash.seed),
        **({"whole_seed": dict(crash.whole_seed)} if crash.whole_seed is not None else {}),
        "statistics": dict(crash.verdict),
        **({"activations": dict(crash.activations)} if crash.activations else {}),
        **({"diagnosis": dict(crash.diagnosis)} if crash.diagnosis else {}),
    }
    return dump_yaml(json.loads(to_json(record)))  # plain values only: no tuples, no NaN


def from_yaml(text: str, home: Path) -> Crash:
    """The crash that `text` describes, without its tensors. Raises CrashFolderError in one line."""
    where = home / "crash.yaml"
    try:
        data = read_yaml(text).data
    except YamlError as error:
        raise CrashFolderError(f"{where}: {error.faults[0]}") from error
    try:
        record = _Record.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise CrashFolderError(f"{where}: {place}: {first['msg']}") from error
    try:
        return _crash(record, data, home)
    except (XbfuzzError, ValueError) as error:
        raise CrashFolderError(f"{where}: {_one_line(error)}") from error


def _crash(record: _Record, data: Mapping[str, Any], home: Path) -> Crash:
    signature = Signature(**record.signature.model_dump())
    _check(record, signature)
    return Crash(
        signature=signature,
        label=Label.parse(record.label),
        evidence=tuple(record.evidence),
        blame=str(Blame(record.blame)),
        severity=record.severity,
        verdict=data["statistics"],
        activations=data.get("activations", {}),
        diagnosis=data.get("diagnosis", {}),
        seed=record.seed,
        whole_seed=record.whole_seed,
        base=_base(record.base, home),
        reference=str(BackendSpec.parse(record.reference)),
        target=str(BackendSpec.parse(record.target)),
        inputs={},
        recipe=None if record.recipe is None else Recipe.from_json(record.recipe),
        rng_seed=record.rng_seed,
        environment=record.environment,
        found=record.found,
        tiers=record.tiers,
        expect=str(Expectation.parse(record.expect)),
        status=record.status,
        link=record.link,
        stage=record.stage,
        mitigations=tuple(data["mitigations"]),
        sizes=record.sizes,
        weights=record.weights,
        files=record.files,
        folder=home,
    )


def _check(record: _Record, signature: Signature) -> None:
    """What the schema cannot say. Raises ValueError."""
    if record.format != FORMAT:
        raise ValueError(f"format {record.format} is not the {FORMAT} that this version reads")
    if record.id != signature.id:
        raise ValueError(f"id {record.id[:100]!r} is not that of its signature, {signature.id}")
    known = signature.kind == NEAR_TIE or Kind(signature.kind) in CLASS_OF_KIND
    if not known or record.severity not in SEVERITIES:
        raise ValueError(f"{record.severity[:100]!r} is no severity")
    for difference in record.statistics.differences:
        Kind(difference.kind)
        Blame(difference.blame)
    Outcome(record.statistics.outcome)
    if signature.target != BackendSpec.parse(record.target).base:
        raise ValueError(f"target {record.target} is not that of the signature, {signature.target}")
    for name, digest in record.files.items():
        if name not in (*DATA_FILES, SOURCE_FILE):
            raise ValueError(f"files: {name[:100]!r} is no file of a crash")
        if not _HASH.fullmatch(digest):
            raise ValueError(f"files: {name}: {digest[:100]!r} is no SHA-256")
    if "inputs.safetensors" not in record.files:
        raise ValueError("files: inputs.safetensors is missing")


def _base(text: str, home: Path) -> Path:
    if "\0" in text:
        raise ValueError("base: no path")
    return (home / text).resolve()


def check_inputs(crash: Crash, sample: Mapping[str, Tensor], name: str) -> None:
    """Do the tensors fit the inputs of the seed by name, dtype and rank. Raises CrashFolderError."""
    try:
        seed = seed_from_json(dict(crash.seed), crash.base)
    except XbfuzzError as error:
        raise CrashFolderError(f"{crash.folder}: seed: {_one_line(error)}") from error
    if seed.name != crash.signature.seed:
        raise CrashFolderError(f"{crash.folder}: the seed is {seed.name}, the signature says {crash.signature.seed}")
    if set(sample) != set(seed.inputs):
        wanted, found = ", ".join(sorted(seed.inputs)), ", ".join(sorted(sample)) or "none"
        raise CrashFolderError(
            f"{crash.folder}: {name}: the seed has the inputs {wanted}; the file holds {found}"[:500]
        )
    for key, spec in seed.inputs.items():
        dtype = str(sample[key].dtype).removeprefix("torch.")
        if dtype != spec.dtype_name:
            raise CrashFolderError(f"{crash.folder}: {name}: {key} is {dtype}, the seed says {spec.dtype_name}")
        if sample[key].dim() != len(spec.shape):
            shape = list(sample[key].shape)
            raise CrashFolderError(f"{crash.folder}: {name}: {key} has shape {shape}, the seed says {spec.shape}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
