"""Inputs from files: images, NumPy arrays, safetensors. Nothing read is executed."""

from __future__ import annotations

import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fuzzer.errors import InputError
from fuzzer.inputs.dtypes import DTYPES
from fuzzer.inputs.generate import Shape, finish_image
from fuzzer.seeds.packages import placed
from fuzzer.seeds.schema import InputSpec

IMAGES = frozenset({".png", ".jpg", ".jpeg"})


def read_input(spec: InputSpec, folder: Path, shape: Shape, draw: int) -> Tensor:
    """The `draw`-th input of a spec with files, of the spec's dtype.

    An image is resized (bilinear) to the last two dimensions of `shape`, put into the spec's range and normalised; a
    batch holds consecutive files. An array is taken as it is, and has `shape`. Raises InputError.
    """
    files = [placed(folder, file) for file in spec.files]
    if files[draw % len(files)].suffix.lower() not in IMAGES:
        return _array(spec, files[draw % len(files)], shape)
    if spec.kind != "image":
        raise InputError(f"{files[draw % len(files)]}: an image file goes with `kind: image`, not {spec.kind}")
    channels = shape[-3] if len(shape) > 2 else 1
    batch = 1
    for size in shape[:-3]:
        batch *= size
    if 0 in shape:
        return torch.zeros(tuple(shape), dtype=DTYPES[spec.dtype_name])
    planes = [_image(files[(draw + i) % len(files)], channels, shape[-2], shape[-1]) for i in range(batch)]
    return finish_image(spec, torch.stack(planes).reshape(tuple(shape)))


def _image(path: Path, channels: int, height: int, width: int) -> Tensor:
    """(channels, height, width), float64 in [0, 1]."""
    if channels not in (1, 3):
        raise InputError(f"{path}: an image file gives 1 or 3 channels, the shape asks for {channels}")
    try:
        about = path.stat()
        pixels = _pixels(path, channels, height, width, (about.st_mtime_ns, about.st_size))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image: {error}") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float64) / 255


@lru_cache(maxsize=16)
def _pixels(path: Path, channels: int, height: int, width: int, version: tuple[int, int]) -> np.ndarray:
    """[height, width, channels], uint8; not to be written to. `version` tells one content of the file from another."""
    with Image.open(path) as image:
        if image.mode.startswith(("I", "F")):
            raise InputError(f"{path}: has more than 8 bits a channel; give it as .npy")
        plain = image.convert("RGB" if channels == 3 else "L")
        pixels = np.array(plain.resize((width, height), Image.Resampling.BILINEAR))
    return pixels.reshape(height, width, channels)


def _array(spec: InputSpec, path: Path, shape: Shape) -> Tensor:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        found = _safetensors(path, spec.key)
    elif suffix in (".npy", ".npz"):
        found = _numpy(path, spec.key)
    else:
        raise InputError(f"{path}: inputs are read from .png, .jpg, .npy, .npz and .safetensors")
    if tuple(found.shape) != tuple(shape):
        raise InputError(f"{path}: has shape {list(found.shape)}, the seed asks for {list(shape)}")
    return _converted(found, spec, path)


def _safetensors(path: Path, key: str | None) -> Tensor:
    try:
        with safe_open(str(path), framework="pt") as file:
            return torch.as_tensor(file.get_tensor(_chosen(key, list(file.keys()), path)))
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file: {error}") from error


def _numpy(path: Path, key: str | None) -> Tensor:
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if key is not None:
                raise InputError(f"{path}: holds one array without a name; `key` goes with .npz and .safetensors")
            array = loaded
        else:
            with loaded:
                array = loaded[_chosen(key, list(loaded.files), path)]
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))).reshape(array.shape))
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable array: {error}") from error


def _chosen(key: str | None, names: list[str], path: Path) -> str:
    if key is None and len(names) == 1:
        return names[0]
    if key is None or key not in names:
        what = "`key` must say which array" if key is None else f"no array {key!r}"
        raise InputError(f"{path}: {what}; it holds {', '.join(names[:8]) or 'none'}")
    return key


def _converted(found: Tensor, spec: InputSpec, path: Path) -> Tensor:
    """`found` in the spec's dtype where that keeps its meaning: floats may be rounded, whole numbers may not change."""
    dtype = DTYPES[spec.dtype_name]
    if found.dtype == dtype:
        return found.clone()
    floating = found.is_floating_point() and (dtype.is_floating_point or dtype.is_complex)
    if not found.is_complex():
        value = found.to(dtype)
        if floating or torch.equal(value.to(found.dtype), found):
            return value
    raise InputError(f"{path}: values of dtype {str(found.dtype).removeprefix('torch.')} do not fit {spec.dtype_name}")
