"""Models of installed libraries by name: torchvision, timm, transformers; only torchvision's weights are fetched."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable
from typing import Any
from urllib.error import URLError

import torch
from torch import nn

from fuzzer.errors import ModelError
from fuzzer.models.contain import contained, one_line
from fuzzer.seeds import Seed


def library_module(seed: Seed) -> nn.Module:
    """The seed's library model, its random initialisation seeded by `weights.seed`.

    Raises ModelError for a library that is not installed, an unknown name, arguments that do not fit, or a download
    that fails.
    """
    makers = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}
    return makers[seed.model.library or "torchvision"](seed)


def _torchvision(seed: Seed) -> nn.Module:
    """Pretrained for `weights: default`. The submodule's name may stand in front (`detection.`, `video.`)."""
    import torchvision  # a second to import: only for seeds that need it

    spec = seed.model
    assert spec.name is not None
    name = spec.name.rsplit(".", 1)[-1]
    known = torchvision.models.list_models()
    if name not in known:
        raise ModelError(f"{seed.name}: torchvision has no model {spec.name!r}{_nearest(name, known)}")
    arguments: dict[str, Any] = {"weights": None}
    if spec.weights.kind == "default":
        arguments["weights"] = "DEFAULT"
    elif "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
        arguments["weights_backbone"] = None
    with contained(f"{seed.name}: torchvision {name}"):
        torch.manual_seed(spec.weights.seed)
        try:
            module: nn.Module = torchvision.models.get_model(name, **arguments, **spec.args)
        except (URLError, TimeoutError, ConnectionError) as error:
            raise ModelError(
                f"{seed.name}: cannot download the weights of {name} ({one_line(error)}); "
                "give `weights: {kind: calibrated}` or a file"
            ) from error
        return module


def _timm(seed: Seed) -> nn.Module:
    """`timm.create_model(name, pretrained=False)`."""
    timm = _installed(seed, "timm")
    name = seed.model.name
    assert name is not None
    known = timm.list_models()
    if name not in known:  # also keeps out names that mean a download, such as `hf-hub:…`
        raise ModelError(f"{seed.name}: timm has no model {name!r}{_nearest(name, known)}")
    _nothing_fetched(seed)
    with contained(f"{seed.name}: timm {name}"):
        torch.manual_seed(seed.model.weights.seed)
        module: nn.Module = timm.create_model(name, pretrained=False, **seed.model.args)
        return module


def _transformers(seed: Seed) -> nn.Module:
    """A class of transformers (`BertModel`), or AutoModel for a model type (`bert`), of a configuration from `args`.

    `use_cache` is off unless given: a cache is no tensor, and its content is in the other outputs.
    """
    transformers = _installed(seed, "transformers")
    name = seed.model.name
    assert name is not None
    types = transformers.CONFIG_MAPPING
    by_type = name in types
    configuration = types[name] if by_type else getattr(getattr(transformers, name, None), "config_class", None)
    if configuration is None:
        known = [*types, *(each for each in dir(transformers) if each.endswith("Model"))]
        raise ModelError(f"{seed.name}: transformers has no model {name!r}{_nearest(name, known)}")
    _nothing_fetched(seed)
    with contained(f"{seed.name}: transformers {name}"):
        config = configuration(**{"use_cache": False, **seed.model.args})
        torch.manual_seed(seed.model.weights.seed)
        make = transformers.AutoModel.from_config if by_type else getattr(transformers, name)
        module: nn.Module = make(config)
        return module


def library_version(seed: Seed) -> str:
    """The version of the library that the seed's model comes from; empty for other sources."""
    if seed.model.source != "library":
        return ""
    return str(_installed(seed, seed.model.library or "torchvision").__version__)


def _installed(seed: Seed, package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ModelError(
            f"{seed.name}: the package {package} is not installed ({one_line(error)}); pip install xbfuzz[{package}]"
        ) from error


def _nothing_fetched(seed: Seed) -> None:
    if seed.model.weights.kind == "default":
        raise ModelError(
            f"{seed.name}: nothing is downloaded for {seed.model.library}; "
            "give `weights: calibrated`, `weights: random` or a file"
        )


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
