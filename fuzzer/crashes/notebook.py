"""What a reduction has come to, on disk: the smallest input so far and what was tried, for the next one to go on from.

It lies beside the crash, under a name that no reader of crash folders looks at, and is removed when nothing is left to
try. A notebook of other versions or backends counts as none: their answers may differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fuzzer.crashes.crash import Crash
from fuzzer.files import to_json, write_atomically
from fuzzer.models.graph import Graph
from fuzzer.reduce.case import Case
from fuzzer.tensors import decode, encode

_ABOUT, _BEST, _TRIED = "about.json", "best.safetensors", "tried"
_GRAPH, _TENSORS = "graph.json", "graph.safetensors"


class Tried(set[str]):
    """Hashes of the inputs that were asked about, each appended to a file as it comes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_text().split() if path.exists() else ())
        self._path = path

    def add(self, key: str) -> None:
        if key not in self:
            super().add(key)
            with open(self._path, "a", encoding="ascii") as stream:
                stream.write(key + "\n")


class Notebook:
    """The notebook of one crash in the folder of crashes `folder`. `versions`: of what the two sides run on."""

    def __init__(self, folder: Path, crash: Crash, versions: Mapping[str, object]) -> None:
        self._home = folder / f".reduce-{crash.id}"
        seed = crash.seed if crash.whole_seed is None else crash.whole_seed
        about = [crash.id, crash.reference, crash.target, crash.rng_seed, dict(seed), dict(versions)]
        text = to_json(about)
        if self._about() != json.loads(text):
            self.remove()
            write_atomically(self._home / _ABOUT, text)
        self.tried = Tried(self._home / _TRIED)

    def _about(self) -> object:
        try:
            return json.loads((self._home / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def best(self) -> dict[str, Tensor] | None:
        """The smallest input that was kept, or None."""
        try:
            return decode((self._home / _BEST).read_bytes())
        except (OSError, ValueError):
            return None

    def keep(self, sample: Mapping[str, Tensor]) -> None:
        """Put a smaller input in place of the one before."""
        write_atomically(self._home / _BEST, encode(sample))

    def best_case(self) -> Case | None:
        """The smallest graph that was kept, with its tensors, or None."""
        try:
            graph = Graph.from_json(json.loads((self._home / _GRAPH).read_text(encoding="utf-8")))
            return Case.of(graph, decode((self._home / _TENSORS).read_bytes()))
        except (OSError, ValueError, KeyError):
            return None

    def keep_case(self, case: Case) -> None:
        """Put a smaller graph in place of the one before."""
        write_atomically(self._home / _TENSORS, encode(case.tensors))
        write_atomically(self._home / _GRAPH, to_json(case.graph.to_json()))

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._home, ignore_errors=True)
