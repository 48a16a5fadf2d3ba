"""Crash folders: `<id>/` with `crash.yaml`, `inputs.safetensors` and what else belongs to it.

A folder is built beside its place and renamed into it, so that it is whole or not there. What is read is believed only
as far as it can be checked, and nothing in it is executed by being read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from torch import Tensor

from fuzzer.crashes.crash import Crash, seed_of
from fuzzer.crashes.record import SOURCE_FILE, check_inputs, from_yaml, to_yaml
from fuzzer.crashes.repro import render_repro
from fuzzer.errors import CrashFolderError, XbfuzzError
from fuzzer.models.sources import builder_file
from fuzzer.seeds.load import seed_from_json
from fuzzer.seeds.stages import whole
from fuzzer.tensors import content_hash, decode, encode

#: Weights up to this many bytes are kept in the folder, unless told otherwise.
KEEP_WEIGHTS = 16 * 2**20
#: No file of a crash may be larger.
MAX_FILE = 2**30
_MAX_YAML = 4 * 2**20
_NEW, _OLD = ".new-", ".old-"


def write_crash(
    folder: Path,
    crash: Crash,
    *,
    weights: Mapping[str, Tensor] | None = None,
    onnx: bytes | None = None,
    keep_weights: int = KEEP_WEIGHTS,
    private: bool = False,
) -> Path:
    """Store `crash` under `folder`; gives its folder. One that is there already is replaced, whole.

    `weights`: the model's state dict, kept where it has at most `keep_weights` bytes, else hashed with the way to
    rebuild it. `onnx`: the model, where the seed's source is an ONNX file; read from there unless given. `private`:
    the original inputs are not kept. Raises XbfuzzError, with nothing half-written left, where the disk is full or the
    folder cannot be written.
    """
    home = folder / crash.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            _recover(folder)
            temporary = Path(tempfile.mkdtemp(dir=folder, prefix=_NEW))
            try:
                _fill(temporary, home, crash, weights, onnx, keep_weights, private)
                _swap(temporary, home)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise XbfuzzError(f"cannot write {home}: {error.strerror or error}") from error
    return home


def _fill(
    temporary: Path,
    home: Path,
    crash: Crash,
    weights: Mapping[str, Tensor] | None,
    onnx: bytes | None,
    keep_weights: int,
    private: bool,
) -> None:
    contents = {"inputs.safetensors": encode(crash.inputs)}
    if crash.original is not None and not private:
        contents["original.safetensors"] = encode(crash.original)
    about: dict[str, object] = dict(crash.weights)
    if weights is not None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        kept = size <= keep_weights
        about = {"hash": content_hash(weights), "bytes": size, "kept": kept, "rebuild": _rebuild(crash)}
        if kept and weights:
            contents["weights.safetensors"] = encode(weights)
    model = onnx if onnx is not None else _onnx_file(crash)
    if model is not None:
        contents["model.onnx"] = model
    source = builder_source(crash)
    if source is not None:
        contents[SOURCE_FILE] = source
    contents |= _carried(crash, set(contents))
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    stored = replace(crash, files=hashes, weights=about)
    text = None if source is None else source.decode(errors="replace")
    _put(temporary / "repro.py", render_repro(stored, text, home).encode())
    for name, data in contents.items():
        _put(temporary / name, data)
    _put(temporary / "crash.yaml", to_yaml(stored, home).encode())
    os.chmod(temporary, 0o755)
    _sync(temporary)


def _carried(crash: Crash, have: set[str]) -> dict[str, bytes]:
    """Files of a crash that was loaded and is written again, which its tensors in memory do not cover."""
    if crash.folder is None:
        return {}
    names = {"weights.safetensors", "model.onnx", SOURCE_FILE} & set(crash.files) - have
    return {name: _read(crash.folder, name) for name in sorted(names)}


def _rebuild(crash: Crash) -> str:
    seed = whole(seed_from_json(dict(crash.seed), crash.base))
    what = seed.model.name or seed.model.builder or seed.model.path or "of operators"
    weights = seed.model.weights
    return f"{seed.model.source} {what}, weights {weights.file or weights.kind}, seed {weights.seed}"


def _onnx_file(crash: Crash) -> bytes | None:
    """The ONNX file that the seed names, where it is one file of a size that can be kept."""
    seed = seed_of(crash)
    if seed.model.source != "onnx" or seed.model.path is None:
        return None
    path = seed.path(seed.model.path)
    return path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_FILE else None


def builder_source(crash: Crash) -> bytes | None:
    """The source of the seed's builder, read as text from its file; None where it is no single file."""
    seed = whole(seed_from_json(dict(crash.seed), crash.base))
    file = builder_file(seed) if seed.model.source == "builder" else None  # one file of a repository is not enough
    try:
        return file.read_bytes() if file is not None and file.stat().st_size <= _MAX_YAML else None
    except OSError:
        return None


def _put(path: Path, data: bytes) -> None:
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _swap(temporary: Path, home: Path) -> None:
    """Put `temporary` at `home`. A folder cannot be renamed over another, so the old one steps aside first."""
    old = home.with_name(_OLD + home.name)
    if home.exists():
        os.replace(home, old)
    try:
        os.replace(temporary, home)
    except OSError:
        if old.exists():
            os.replace(old, home)
        raise
    _sync(home.parent)
    shutil.rmtree(old, ignore_errors=True)


def _recover(folder: Path) -> None:
    """Finish what a killed writer left: an old folder goes back to its place where no new one took it."""
    for left in folder.glob(f"{_OLD}*"):
        home = folder / left.name.removeprefix(_OLD)
        if home.exists():
            shutil.rmtree(left, ignore_errors=True)
        else:
            os.replace(left, home)
    for left in folder.glob(f"{_NEW}*"):
        shutil.rmtree(left, ignore_errors=True)


def list_crashes(folder: Path) -> list[Path]:
    """The crash folders under `folder`, sorted by name; none where it does not exist. Damaged ones are listed too."""
    if not folder.is_dir():
        return []
    if any(folder.glob(f"{_OLD}*")):
        with FileLock(folder / ".lock"):
            _recover(folder)
    return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_dir() and not p.is_symlink())


def load_crash(path: Path) -> Crash:
    """The crash in the folder `path`, every file that it names checked against its hash, its inputs against its seed.

    Raises CrashFolderError, one line, on a folder that is damaged, or that was made to do harm: a link, a file that is
    no plain file or larger than `MAX_FILE`, YAML that is not plain data, a name that is no file of a crash.
    """
    if not path.is_dir():
        raise CrashFolderError(f"{path}: there is no such crash folder")
    try:
        text = _read(path, "crash.yaml", _MAX_YAML).decode()
    except UnicodeDecodeError as error:
        raise CrashFolderError(f"{path}/crash.yaml: not UTF-8 text") from error
    crash = from_yaml(text, path)
    contents: dict[str, bytes] = {}
    for name, digest in crash.files.items():
        data = _read(path, name)
        if hashlib.sha256(data).hexdigest() != digest:
            raise CrashFolderError(f"{path}/{name}: its content is not what crash.yaml says (SHA-256 differs)")
        if name in ("inputs.safetensors", "original.safetensors"):
            contents[name] = data
    inputs = _tensors(path, "inputs.safetensors", contents["inputs.safetensors"])
    check_inputs(crash, inputs, "inputs.safetensors")
    original = None
    if "original.safetensors" in contents:
        original = _tensors(path, "original.safetensors", contents["original.safetensors"])
        whole = crash if crash.whole_seed is None else replace(crash, seed=crash.whole_seed)
        check_inputs(whole, original, "original.safetensors")
    return replace(crash, inputs=inputs, original=original)


def kept_weights(crash: Crash) -> dict[str, Tensor] | None:
    """The weights in the folder of a crash that was loaded, or None. Raises CrashFolderError."""
    if crash.folder is None or "weights.safetensors" not in crash.files:
        return None
    return _tensors(crash.folder, "weights.safetensors", _read(crash.folder, "weights.safetensors"))


def read_script(crash: Crash) -> str:
    """The text of `repro.py` in the folder of a crash that was loaded. Raises CrashFolderError."""
    if crash.folder is None:
        raise CrashFolderError(f"{crash.id} was not read from a folder")
    return _read(crash.folder, "repro.py", _MAX_YAML).decode(errors="replace")


def _read(folder: Path, name: str, most: int = MAX_FILE) -> bytes:
    path = folder / name
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise CrashFolderError(f"{path}: not a plain file; a crash folder holds no links or devices")
        if found.st_size > most:
            raise CrashFolderError(f"{path}: {found.st_size} bytes, more than the {most} that are read")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CrashFolderError(f"{path}: missing") from error
    except OSError as error:
        raise CrashFolderError(f"{path}: cannot be read: {error.strerror or error}") from error


def _tensors(folder: Path, name: str, data: bytes) -> dict[str, Tensor]:
    try:
        return decode(data)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise CrashFolderError(f"{folder}/{name}: cannot be read as tensors: {said}") from error
