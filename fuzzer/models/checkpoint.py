"""Weights from a file: read without executing anything, unwrapped, and loaded whole or not at all."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fuzzer.errors import ModelError
from fuzzer.models.contain import one_line
from fuzzer.tensors import decode

#: Keys under which training code keeps the state dict beside optimizer and epoch.
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "ema")
#: Prefixes that wrappers put before every name: DataParallel, torch.compile, and attributes named so.
PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_SHOWN = 3


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file, or of a checkpoint that `torch.load(weights_only=True)` reads.

    Raises ModelError where the file cannot be read or holds no tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return decode(path.read_bytes())
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ModelError(f"{path}: cannot read the weights: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path}: not read, because it holds more than tensors; save its state_dict alone, or as safetensors"
        ) from error
    except (ValueError, RuntimeError, EOFError, KeyError) as error:
        raise ModelError(f"{path}: not a weights file: {one_line(error)}") from error
    tensors = {name: value for name, value in _unwrap(loaded).items() if isinstance(value, Tensor)}
    if not tensors:
        raise ModelError(f"{path}: holds no tensors")
    return tensors


def _unwrap(loaded: Any) -> Mapping[str, Any]:
    if not isinstance(loaded, Mapping):
        return {}
    for key in WRAPPERS:
        if isinstance(loaded.get(key), Mapping):
            return _unwrap(loaded[key])
    return loaded


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Copy `tensors` into `module`: every parameter and buffer, or none.

    Raises ModelError that names the first few missing, unexpected and differently shaped tensors; the module is then
    unchanged. Counters of BatchNorm (`num_batches_tracked`) may be missing.
    """
    wanted = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    found = _without_prefix(tensors, wanted)
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in found if name not in wanted]
    shapes = [
        f"{name} {tuple(found[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    problems = [
        f"{len(names)} {word} ({_first(names)})"
        for word, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if names
    ]
    if problems:
        raise ModelError(f"{origin}: weights do not fit the model: {', '.join(problems)}")
    state = OrderedDict(found)
    # The versions of the module's own layers, which a file of tensors alone does not tell, and which MNASNet asks for.
    state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    module.load_state_dict(state, strict=False)


def _without_prefix(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """`tensors` with common prefixes taken off as long as none of the names fits the model as it is."""
    while tensors and not any(name in wanted for name in tensors):
        prefix = next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in tensors)), None)
        if prefix is None:
            break
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
