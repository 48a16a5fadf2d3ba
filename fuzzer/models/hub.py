"""Entry points of a `hubconf.py`, as torch.hub loads them, from a folder or from torch.hub's own copy of a repository.

Nothing is fetched unless the seed says `download: true`: neither a repository nor weights that an entry point asks
torch.hub for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fuzzer.errors import ModelError
from fuzzer.models.contain import contained
from fuzzer.models.imports import fresh_names, stays_importable
from fuzzer.seeds import Seed

#: Branches that torch.hub takes where a repository is named without one.
_BRANCHES = ("main", "master")


def hub_folder(seed: Seed) -> Path | None:
    """The folder with the seed's `hubconf.py`; None where the repository must be fetched first."""
    spec = seed.model
    if spec.path is not None:
        return seed.path(spec.path)
    assert spec.repo is not None
    name, _, ref = spec.repo.partition(":")
    for branch in (ref,) if ref else _BRANCHES:
        folder = Path(torch.hub.get_dir()) / f"{name}/{branch}".replace("/", "_")
        if (folder / "hubconf.py").is_file():
            return folder
    return None


def hub_module(seed: Seed) -> nn.Module:
    """What the entry point returns for `args`, its draws seeded by `weights.seed`.

    Raises ModelError where there is no such repository or entry point, where something would have to be fetched
    without leave, or where the code fails, exits, or returns something else than an nn.Module.
    """
    spec = seed.model
    assert spec.name is not None
    folder = hub_folder(seed)
    shown = f"{seed.name}: hub {spec.repo or folder} {spec.name}"
    if folder is not None and not (folder / "hubconf.py").is_file():
        raise ModelError(f"{seed.name}: there is no file {folder / 'hubconf.py'}")
    if folder is None and not spec.download:
        raise ModelError(f"{shown}: torch.hub has no copy in {torch.hub.get_dir()}; `download: true` fetches it")
    load: Callable[..., Any] = torch.hub.load
    with contained(shown, near=folder), _downloads(shown, allowed=bool(spec.download)):
        torch.manual_seed(spec.weights.seed)
        if folder is None:
            built = load(spec.repo, spec.name, trust_repo=True, **spec.args)
        else:
            fresh_names(folder)
            built = load(str(folder), spec.name, source="local", **spec.args)
    if not isinstance(built, nn.Module):
        raise ModelError(f"{shown}: returned {type(built).__name__}, not a torch.nn.Module")
    if folder is not None:
        stays_importable(folder)
    return built


@contextlib.contextmanager
def _downloads(shown: str, *, allowed: bool) -> Iterator[None]:
    """Turn torch.hub's downloads into a ModelError, unless they are allowed."""
    fetch = torch.hub.download_url_to_file

    def refuse(url: str, *_: Any, **__: Any) -> None:
        raise ModelError(f"{shown}: asks for {url}; `download: true` allows it")

    if not allowed:
        torch.hub.download_url_to_file = refuse
    try:
        yield
    finally:
        torch.hub.download_url_to_file = fetch
