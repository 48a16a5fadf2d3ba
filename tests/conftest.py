"""What all tests share: one thread, no deadline for Hypothesis on a busy machine, one cache for the test session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fuzzer.backends.session import Where
from fuzzer.place import surroundings

torch.set_num_threads(1)
settings.register_profile("xbfuzz", deadline=None, max_examples=50)
settings.load_profile("xbfuzz")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of this test session's own."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def where(cache: Path) -> Where:
    """How sessions start workers in tests: as the command line does, with `cache`."""
    return surroundings(cache)
