"""A crash in memory: a finding with all that is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer.backends.spec import BackendSpec
from fuzzer.crashes.severity import severity
from fuzzer.crashes.signature import NEAR_TIE, Signature, signature_of
from fuzzer.diagnose import Diagnosis, Label, primary
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed, Weights
from fuzzer.seeds.load import seed_from_json, seed_to_json
from fuzzer.seeds.stages import sentence, without_files
from fuzzer.verify.activations import Activations
from fuzzer.verify.verdict import Kind, Verdict

#: What is kept of a verdict at most: a detector with hundreds of leaves must not make a file that nobody reads.
MAX_DIFFERENCES = 50
MAX_STATS = 100
MAX_TEXT = 2000

#: Kinds of difference in which a side gives no answer to the crash's own input.
NO_ANSWER = frozenset({Kind.EXCEPTION, Kind.CRASH, Kind.HANG, Kind.MEMORY})
TIERS = {"tensors": "fail", "activations": "not-run", "task": "not-run"}


@dataclass(frozen=True)
class Crash:
    """What a folder under `crashes/` holds.

    `verdict` is the verdict's JSON, bounded. `seed` is the seed as JSON, its relative paths starting at `base`.
    `recipe` is None where no recipe makes the inputs (they came from elsewhere, or were reduced value by value).
    `original` are the inputs as found, where they are kept. `activations` is tier 2's JSON, empty where it was not
    run. `weights` and `files` say what the folder holds and are filled in by `write_crash`. `folder` is where the
    crash was read from. `whole_seed` is the seed as it was before its model was reduced to a graph: that of `original`.
    `expect` is read by `fuzzer.crashes.expect`. `status` and `link` are what its keepers decided.
    """

    signature: Signature
    label: Label
    evidence: tuple[str, ...]
    blame: str
    severity: str
    verdict: Mapping[str, Any]
    seed: Mapping[str, Any]
    base: Path
    reference: str
    target: str
    inputs: Mapping[str, Tensor]
    recipe: Recipe | None = None
    original: Mapping[str, Tensor] | None = None
    rng_seed: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    found: Mapping[str, Any] = field(default_factory=dict)
    tiers: Mapping[str, str] = field(default_factory=lambda: dict(TIERS))
    expect: str = "diverges"
    stage: str | None = None
    mitigations: tuple[Mapping[str, Any], ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    activations: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    status: str = "open"
    link: str = ""
    diagnosis: Mapping[str, Any] = field(default_factory=dict)  # what reruns said: `fuzzer.diagnose.engine.Diagnosed`
    whole_seed: Mapping[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.signature.id

    @property
    def study_type(self) -> str:
        return self.label.study_type

    @property
    def kind(self) -> str:
        return self.signature.kind if self.signature.kind != NEAR_TIE else str(self.difference["kind"])

    @property
    def leaf(self) -> str:
        return self.signature.leaf if self.signature.kind != NEAR_TIE else str(self.difference["path"])

    @property
    def difference(self) -> Mapping[str, Any]:
        """The primary difference as JSON: the first one that is kept."""
        first: Mapping[str, Any] = self.verdict["differences"][0]
        return first


def make_crash(
    seed: Seed,
    target: str,
    verdict: Verdict,
    diagnosis: Diagnosis,
    inputs: Mapping[str, Tensor],
    *,
    recipe: Recipe | None = None,
    original: Mapping[str, Tensor] | None = None,
    rng_seed: int = 0,
    environment: Mapping[str, Any] | None = None,
    found: Mapping[str, Any] | None = None,
) -> Crash:
    """A crash from a confirmed finding with its provisional diagnosis.

    `found` says where it was seen: `{run, execution, date}`. `rng_seed` seeds the generators before every call.
    Raises ValueError on a verdict without differences.
    """
    before = original if original is not None else inputs
    return Crash(
        signature=signature_of(seed.name, target, verdict, diagnosis.label),
        label=diagnosis.label,
        evidence=tuple(text[:MAX_TEXT] for text in (*diagnosis.evidence, sentence(seed)) if text),
        blame=str(verdict.blame),
        severity=severity(verdict, diagnosis.label),
        verdict=bounded(verdict),
        seed=seed_to_json(without_files(seed)),
        base=seed.base.resolve(),
        reference=str(BackendSpec.parse(seed.reference)),
        target=str(BackendSpec.parse(target)),
        inputs=dict(inputs),
        recipe=recipe,
        original=None if original is None else dict(original),
        rng_seed=rng_seed,
        environment=dict(environment or {}),
        found=dict(found or {}),
        tiers=verdict.tiers(),
        sizes={"original": _elements(before), "reduced": _elements(inputs)},
    )


def with_activations(crash: Crash, activations: Activations) -> Crash:
    """The crash with what tier 2 saw of it."""
    tiers = {**crash.tiers, "activations": activations.status}
    return replace(crash, activations=_short(activations.to_json()), tiers=tiers)


def seed_of(crash: Crash, base: Path | None = None) -> Seed:
    """The seed to replay a crash with; `base` replaces the recorded folder from which relative paths start.

    Weights and an ONNX file that the crash's folder keeps are used from there, so that what is replayed is what was
    seen, whatever became of the originals. Raises SeedError where the recorded seed does not hold together.
    """
    seed = seed_from_json(dict(crash.seed), base if base is not None else crash.base)
    if crash.folder is None:
        return seed
    changes: dict[str, Any] = {}
    if "weights.safetensors" in crash.files:
        changes["weights"] = Weights(kind="file", file=str((crash.folder / "weights.safetensors").resolve()))
    if "model.onnx" in crash.files:
        changes["path"] = str((crash.folder / "model.onnx").resolve())
    if changes:
        seed = seed.model_copy(update={"model": seed.model.model_copy(update=changes)}).at(seed.base)
    if seed.model.source in ("graph", "stage") and "inputs.safetensors" in crash.files and crash.kind not in NO_ANSWER:
        # No generator makes ordinary inputs for the inside of a model: backends are prepared on the crash's own.
        file = str((crash.folder / "inputs.safetensors").resolve())
        real = {name: spec for name, spec in seed.inputs.items() if spec.dtype_name != "complex64"}
        own = {name: spec.model_copy(update={"files": [file], "key": name}) for name, spec in real.items()}
        seed = seed.model_copy(update={"inputs": {**seed.inputs, **own}}).at(seed.base)
    return seed


def bounded(verdict: Verdict) -> dict[str, Any]:
    """The verdict's JSON with its primary difference first, long lists and long texts cut; what was cut is noted."""
    value = verdict.to_json()
    first = primary(verdict)
    if first is not None:
        rest = [d for d in verdict.differences if d is not first]
        value["differences"] = [d.to_json() for d in (first, *rest)]
    for name, most in (("differences", MAX_DIFFERENCES), ("stats", MAX_STATS)):
        if len(value[name]) > most:
            value["notes"].append(f"{len(value[name]) - most} more {name} not kept")
            if name == "stats":
                wanted = {d["path"] for d in value["differences"]}
                value[name].sort(key=lambda stats: stats["path"] not in wanted)
            del value[name][most:]
    shortened: dict[str, Any] = _short(value)
    return shortened


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return str(value) if len(value) <= MAX_TEXT else value[:MAX_TEXT] + " …"  # an enum's member becomes its text
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return value


def _elements(sample: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in sample.values())
