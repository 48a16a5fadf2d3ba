"""Where things are kept outside the project: calibrated weights, exported models, Inductor's compiled code."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from fuzzer.backends.process import Worker
from fuzzer.backends.session import Where


def cache_folder(given: Path | None = None) -> Path:
    """The cache: what was given, else XBFUZZ_CACHE, else `xbfuzz` under the user's cache folder."""
    if given is not None:
        return given.absolute()
    if os.environ.get("XBFUZZ_CACHE"):
        return Path(os.environ["XBFUZZ_CACHE"]).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xbfuzz"


def surroundings(cache: Path) -> Where:
    """How sessions start workers: with Inductor's cache under `cache`, unless the environment says where it is."""
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(cache / "inductor")
    return Where(cache, functools.partial(Worker, environment={"TORCHINDUCTOR_CACHE_DIR": inductor}))
