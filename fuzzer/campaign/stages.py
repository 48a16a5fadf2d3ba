"""The stages of seeds as seeds of their own, with inputs captured once from the whole model and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fuzzer.backends.process import worker_environment
from fuzzer.errors import XbfuzzError
from fuzzer.inputs import base_sample
from fuzzer.models.build import code_hashes
from fuzzer.seeds import InputSpec, ModelSpec, Seed, seed_from_json
from fuzzer.seeds.stages import carried, stage_name, with_files
from fuzzer.tensors import content_hash

#: Part of the key; to be raised when capturing changes.
CAPTURE = 1
_PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx2torch")


def with_stages(seeds: Sequence[Seed], cache: Path | None) -> list[Seed]:
    """`seeds`, each followed by its stages.

    Inputs that are not in the cache are captured in a process for each seed, together. A stage whose inputs cannot be
    captured is marked with the reason. Raises XbfuzzError where two seeds would have one name.
    """
    kept = _cache(cache)
    folders = {stage_name(seed, name): kept / _key(seed, name) for seed in seeds for name in seed.stages}
    running = {seed.name: process for seed in seeds if (process := _capturing(seed, folders, cache)) is not None}
    found: list[Seed] = []
    for seed in seeds:
        found.append(seed)
        reasons = _waited(seed, running[seed.name]) if seed.name in running else {}
        found += [_loaded(seed, name, folders[stage_name(seed, name)], reasons.get(name)) for name in seed.stages]
    names = [seed.name for seed in found]
    for name in names:
        if names.count(name) > 1:
            raise XbfuzzError(f"{name} is the name of a seed and of a stage; rename one of them")
    return found


def _cache(cache: Path | None) -> Path:
    from fuzzer.place import cache_folder

    return (cache or cache_folder()) / "stages"


def _capturing(seed: Seed, folders: dict[str, Path], cache: Path | None) -> subprocess.Popen[str] | None:
    """A process that captures what is missing; None where nothing is."""
    stages = {name: folders[stage_name(seed, name)] for name in seed.stages}
    missing = {name: str(folder) for name, folder in stages.items() if not (folder / "seed.json").is_file()}
    if not missing:
        return None
    asked: dict[str, Any] = {
        "seed": carried(seed) | {"stages": {name: _plain(seed, name) for name in missing}},
        "base": str(seed.base.resolve()),
        "cache": None if cache is None else str(cache),
        "stages": missing,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "fuzzer.models.stage_program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=worker_environment(),
        start_new_session=True,  # Ctrl-C is the campaign's
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None
    return process


def _plain(seed: Seed, name: str) -> dict[str, Any]:
    return seed.stages[name].model_dump(mode="json", exclude_none=True)


def _waited(seed: Seed, process: subprocess.Popen[str]) -> dict[str, str]:
    """Why stages could not be captured, by name."""
    try:
        output, errors = process.communicate(timeout=2 * seed.prepare_deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return dict.fromkeys(seed.stages, f"capturing its inputs took longer than {2 * seed.prepare_deadline_s:.0f} s")
    try:
        answer: dict[str, str] = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        last = (errors.strip().splitlines() or ["no reason given"])[-1][:300]
        return dict.fromkeys(
            seed.stages, f"the process that captures its inputs ended with {process.returncode}: {last}"
        )
    return answer


def _loaded(seed: Seed, name: str, folder: Path, reason: str | None) -> Seed:
    """The stage's seed as it was captured, with the seed's own choices of now; else one that says why it cannot run."""
    file = folder / "seed.json"
    if reason is None and file.is_file():
        written = json.loads(file.read_text())
        files = [folder / f"{i}.safetensors" for i in range(written.pop("samples"))]
        return with_files(seed_from_json(written, seed.base), files)
    stage = seed.stages[name]
    shown = Seed(
        name=stage_name(seed, name),
        model=ModelSpec(source="stage", of=carried(seed), module=stage.module),
        inputs={"x": InputSpec(kind="floats", shape=[1])},
        backends=seed.backends,
        reference=seed.reference,
    )
    return shown.at(seed.base).that_cannot_run(reason or "its inputs could not be captured")


def _key(seed: Seed, name: str) -> str:
    """Names what captured inputs follow from: the seed, its base inputs, the model's code and files, versions."""
    files = [seed.model.path, seed.model.weights.file]
    paths = [seed.path(file) for file in files if file is not None]
    parts = [
        json.dumps([carried(seed), name, _plain(seed, name)], sort_keys=True),
        content_hash(base_sample(seed, 0)),
        *code_hashes(seed),
        *(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()),
        *(f"{package} {_version(package)}" for package in _PACKAGES),
        str(CAPTURE),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
