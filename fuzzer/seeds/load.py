"""Seed files to `Seed` objects and back. Every fault of every file is listed at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fuzzer.errors import SeedError
from fuzzer.seeds.checks import check_files, check_names, check_task
from fuzzer.seeds.packages import missing_packages
from fuzzer.seeds.problems import UNKNOWN_KEY, Problem, explain, repaired, shown
from fuzzer.seeds.schema import Seed
from fuzzer.seeds.study import from_study, is_study
from fuzzer.seeds.yaml_file import Document, Fault, KeyPath, YamlError, dump_yaml, scan_yaml

_MAX_BYTES = 4 << 20


def load_seed(path: Path) -> Seed:
    """The seed in the file `path`; its relative paths start from the file's folder.

    Raises SeedError with every problem of the file, each as `file:line: key: what is wrong`.
    """
    if path.is_dir():
        raise SeedError([f"{path}: is a folder, not a seed file"])
    return load_seeds([path])[0]


def load_seeds(paths: Sequence[Path]) -> list[Seed]:
    """The seeds in `paths`, in the order given; a folder stands for the `*.yaml` under it, sorted by path.

    Raises SeedError with every problem of all files; two seeds of one name are a problem.
    """
    problems: list[str] = []
    seeds: dict[Path, Seed] = {}
    named: dict[str, Path] = {}
    for path in _files(paths, problems):
        if path.resolve() in seeds:
            continue
        try:
            seed = _load(path)
        except SeedError as error:
            problems += error.problems
            continue
        seeds[path.resolve()] = seed
        first = named.setdefault(seed.name, path)
        if first is not path:
            problems.append(f"{path}: name: {seed.name!r} is also the name of {first}")
    if problems:
        raise SeedError(problems)
    return list(seeds.values())


def seed_from_text(text: str, base: Path, *, where: str = "seed", name: str | None = None) -> Seed:
    """The seed in a YAML text. `where` stands for the file in messages, `name` for a name that is not given.

    What the seed names on the disk is not looked for. Raises SeedError.
    """
    return _parse(text, base, where, name, files=False)


def seed_from_json(value: str | Mapping[str, Any], base: Path) -> Seed:
    """The seed that `seed_to_json` wrote, as text or as the object. Raises SeedError."""
    try:
        data = json.loads(value) if isinstance(value, str) else dict(value)
    except ValueError as error:
        raise SeedError([f"seed: not JSON: {error}"]) from error
    return _build(Document(data, {}), base, "seed", None, files=False)


def seed_to_json(seed: Seed) -> dict[str, Any]:
    """`seed` as JSON values, without what is not given and without its base folder."""
    dumped: dict[str, Any] = _dumped(seed)
    return dumped


def seed_text(seed: Seed) -> str:
    """The canonical YAML of `seed`: all values in the schema's order, defaults too, so that it keeps its meaning."""
    return dump_yaml(seed_to_json(seed))


def _files(paths: Sequence[Path], problems: list[str]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.rglob("*.yaml") if file.is_file())
        if not inside:
            problems.append(f"{path}: no *.yaml file in this folder")
        found += inside
    return found


def _load(path: Path) -> Seed:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SeedError([f"{path}: larger than {_MAX_BYTES >> 20} MiB, so not a seed"])
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SeedError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise SeedError([f"{path}: not text in UTF-8: {error.reason} at byte {error.start}"]) from error
    return _parse(text, path.parent.resolve(), str(path), path.stem, files=True)


def _parse(text: str, base: Path, where: str, name: str | None, *, files: bool) -> Seed:
    try:
        document = scan_yaml(text)
    except YamlError as error:
        raise SeedError([_line(where, fault) for fault in error.faults]) from error
    return _build(document, base, where, name, files=files)


def _build(document: Document, base: Path, where: str, name: str | None, *, files: bool) -> Seed:
    data = document.data
    if not isinstance(data, dict):
        faults = [*document.faults, Fault(None, (), f"expected a mapping of keys to values, got {shown(data)}")]
        raise SeedError([_line(where, fault) for fault in faults])
    study: list[Problem] = []
    if is_study(data):
        data, study = from_study(data, base)
    if name is not None:
        data = {"name": name, **data}
    problems, renamed = _check(data, base, files=files) if not study else (study, {})
    faults = list(document.faults)
    for path, text in problems:
        known = _written(path, renamed)
        faults.append(Fault(document.line(known) if document.lines else None, path, text))
    if faults:
        ordered = sorted(faults, key=lambda fault: fault.line or 0)
        raise SeedError([_line(where, fault) for fault in ordered])
    seed = Seed.model_validate(data).at(base)
    missing = missing_packages(data)
    if not missing:
        return seed
    return seed.that_cannot_run(f"the package {missing[0]} is not installed; pip install xbfuzz[real]")


def _check(data: dict[str, Any], base: Path, *, files: bool) -> tuple[list[Problem], dict[KeyPath, KeyPath]]:
    """All problems of `data`; and, for what stands under a misspelt key, the key as it was written."""
    problems = _schema_problems(data)
    unknown = [problem for problem in problems if problem[1].startswith(UNKNOWN_KEY)]
    fixed, renamed = repaired(data, unknown)
    if unknown:
        problems = unknown + _schema_problems(fixed)
    problems += check_names(fixed)
    if files:
        problems += [*check_task(fixed), *check_files(fixed, base)]
    return problems, renamed


def _schema_problems(data: dict[str, Any]) -> list[Problem]:
    try:
        Seed.model_validate(data)
    except ValidationError as error:
        # a problem of the seed as a whole is one of names, which `check_names` finds with its key
        return [problem for problem in explain(error) if problem[0]]
    return []


def _written(path: KeyPath, renamed: Mapping[KeyPath, KeyPath]) -> KeyPath:
    for end in range(len(path), 0, -1):
        if path[:end] in renamed:
            return renamed[path[:end]] + path[end:]
    return path


def _line(where: str, fault: Fault) -> str:
    return f"{where}:{fault}" if fault.line is not None else f"{where}: {fault}"


def _dumped(value: Any) -> Any:
    """Models as mappings of what is given, pairs as lists; plain data stays."""
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        return {name: _dumped(item) for name, item in fields.items() if item is not None}
    if isinstance(value, dict):
        return {key: _dumped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_dumped(item) for item in value]
    return value
