"""From a seed to a model whose weights are the same, bit for bit, in every process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from fuzzer.errors import ModelError
from fuzzer.files import write_atomically
from fuzzer.inputs import base_sample, noise_sample
from fuzzer.models.calibrate import calibrate
from fuzzer.models.checkpoint import load_weights, read_checkpoint
from fuzzer.models.contain import contained
from fuzzer.models.graph import graph_module
from fuzzer.models.hub import hub_folder, hub_module
from fuzzer.models.libraries import library_module, library_version
from fuzzer.models.model import Model
from fuzzer.models.onnx_torch import NotConverted, onnx_module
from fuzzer.models.sources import builder_file, builder_module, exported_module, onnx_file
from fuzzer.models.stage import stage_module
from fuzzer.seeds import Seed
from fuzzer.seeds.stages import whole
from fuzzer.tensors import content_hash, decode, encode

#: How many base inputs calibration looks at.
DRAWS = 8
#: Part of the cache key; to be raised when calibration changes.
CALIBRATION = 2


_MODULES: dict[str, Callable[[Seed], nn.Module]] = {
    "library": library_module,
    "builder": builder_module,
    "repo": builder_module,
    "hub": hub_module,
    "exported": exported_module,
    "graph": graph_module,
}


def build_model(seed: Seed, cache: Path | None, *, convert: bool = True) -> Model:
    """The seed's model, in eval mode and without gradients, on the CPU.

    Calibrated weights are computed once and kept in the folder `cache`, from which every later process reads the same
    bits; with None they are computed each time. The process's global state (RNG, default dtype, threads) is left as it
    was, whatever the model's code does. An ONNX file is converted to a module where that can be done, unless `convert`
    is false: for backends that run the file itself. Raises ModelError where the model cannot be built or its weights
    do not fit.
    """
    if seed.model.source == "onnx":
        return _onnx_model(seed, convert=convert)
    module = _stage(seed, cache) if seed.model.source == "stage" else _MODULES[seed.model.source](seed)
    if seed.model.source != "exported":  # whose mode was fixed when it was exported
        module.eval()
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.requires_grad_(False)
    model = Model(seed, module)
    weights = seed.model.weights
    if weights.file is not None:
        path = seed.path(weights.file)
        load_weights(module, read_checkpoint(path), str(path))
    elif weights.kind == "calibrated":
        if cache is None:
            _calibrate(model)
        else:
            _calibrate_once(model, cache)
    return model


def _stage(seed: Seed, cache: Path | None) -> nn.Module:
    """The part of the whole model, which has its own weights, calibrated on its own inputs."""
    built = build_model(whole(seed), cache)
    if built.module is None:
        raise ModelError(f"{seed.name}: an ONNX file that is no PyTorch module has no stages: {built.no_module}")
    assert seed.model.module is not None
    return stage_module(built.module, seed.model.module)


def _onnx_model(seed: Seed, *, convert: bool) -> Model:
    path = onnx_file(seed)
    if not convert:
        return Model(seed, None, path, "it was not asked for")
    try:
        module = onnx_module(seed, path)
    except NotConverted as error:
        return Model(seed, None, path, str(error))
    return Model(seed, module.requires_grad_(False), path)


def weights_hash(module: nn.Module) -> str:
    """Sixteen hex digits that change with any bit of any parameter or buffer."""
    return content_hash(_tensors(module))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _calibrate(model: Model) -> None:
    assert model.module is not None
    seed = model.seed
    calls = [model.call(sample) for sample in _samples(seed)]
    with contained(f"{seed.name}: the model fails on its own base inputs", near=_folder(seed)):
        torch.manual_seed(seed.model.weights.seed)
        calibrate(model.module, calls, seed.model.weights.seed)
    bad = [name for name, value in _tensors(model.module).items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise ModelError(f"{seed.name}: calibration gave weights that are not finite ({bad[0]})")


def _samples(seed: Seed) -> list[dict[str, Tensor]]:
    noise = [noise_sample(seed, DRAWS)] if seed.model.weights.noise else []
    return [*(base_sample(seed, draw) for draw in range(DRAWS)), *noise]


def _calibrate_once(model: Model, cache: Path) -> None:
    assert model.module is not None
    path = cache / f"{_key(model)}.safetensors"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                _calibrate(model)
                write_atomically(path, encode(_tensors(model.module)))
        tensors = decode(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot use the folder {cache} for weights: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{path} is damaged ({error}); delete it, and it will be computed again") from error
    load_weights(model.module, tensors, str(path))


def _key(model: Model) -> str:
    """Names what calibrated weights follow from: model, base inputs, the weights before, builder's code, versions."""
    assert model.module is not None
    seed = model.seed
    parts: Sequence[str] = [
        json.dumps(_describes(seed), sort_keys=True),
        weights_hash(model.module),
        *(content_hash(sample) for sample in _samples(seed)),
        *code_hashes(seed),
        str(CALIBRATION),
        torch.__version__,
        library_version(seed),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _describes(seed: Seed) -> dict[str, Any]:
    """The seed's model and call as JSON values; without `noise`, which the samples tell."""
    found: dict[str, Any] = seed.model_dump(mode="json", include={"model", "call"})
    del found["model"]["weights"]["noise"]
    return found


def code_hashes(seed: Seed) -> list[str]:
    """Hashes of the seed's own code: the builder's file, or all Python files of a repository."""
    file, folder = builder_file(seed), _folder(seed)
    files = [] if file is None else [file]
    if seed.model.source in ("repo", "hub") and folder is not None:
        files = sorted(path for path in folder.rglob("*.py") if path.is_file())
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def _folder(seed: Seed) -> Path | None:
    if seed.model.source == "hub":
        return hub_folder(seed)
    return seed.path(seed.model.path) if seed.model.path is not None else None
