"""Plug-ins: modules and files that register backends, mutators, tasks and interventions when they are imported.

Loaded are those that installed packages announce by entry point, those that the environment variable XBFUZZ_PLUGINS
names, and those that the caller names; each once a process. The names of the last two go to that variable, so that
worker processes know the same. A plug-in is code that runs with the user's rights: nothing that is read from a seed or
a crash folder can name one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from fuzzer.errors import PluginError, XbfuzzError

#: The environment variable: names joined by os.pathsep, files by their absolute paths.
PLUGINS = "XBFUZZ_PLUGINS"
#: What this package's own entry points name, for a source tree that is not installed and so announces nothing.
SHIPPED = {
    "xbfuzz.backends": ("fuzzer.contrib.onnx_reference", "fuzzer.contrib.openvino_backend"),
    "xbfuzz.interventions": ("fuzzer.contrib.openvino_precision",),
}
#: What a plug-in can register → the module that holds the register of it.
_REGISTERS = {
    "backends": "fuzzer.backends.registry",
    "mutators": "fuzzer.mutate.base",
    "tasks": "fuzzer.verify.tasks.base",
    "interventions": "fuzzer.diagnose.interventions",
}
#: Where what is built in lives; it registers itself when a plug-in is the first to import it.
_BUILT_IN = ("fuzzer.backends.", "fuzzer.mutate.", "fuzzer.verify.", "fuzzer.diagnose.")
#: The entry-point groups that installed packages announce plug-ins in.
GROUPS = tuple(f"xbfuzz.{kind}" for kind in _REGISTERS)


@dataclass(frozen=True)
class Plugin:
    """A plug-in after the attempt to load it. `name` is a module or an absolute path, `source` who named it.

    `registered`: backends, mutators, tasks, interventions → names that are known because of it. `failure` is None where
    it was loaded; a plug-in that failed has registered nothing.
    """

    name: str
    source: str
    registered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    failure: str | None = None


_loaded: dict[str, Plugin] = {}


def load_plugins(names: Sequence[str] = ()) -> list[Plugin]:
    """Load all plug-ins that this process has not loaded yet, `names` (MODULE or FILE.py) last; gives all of them.

    What an installed package announces and cannot be loaded is told in its `failure`. Raises PluginError, one line,
    where that happens to one that the user named.
    """
    for name, source in _installed(GROUPS):
        _load_once(name, source)
    named = _named()
    wanted = dict.fromkeys([*named, *(_absolute(name) for name in names)])
    for name in wanted:
        plugin = _load_once(name, PLUGINS if name in named else "--plugin")
        if plugin.failure is not None:
            del _loaded[name]  # whoever mends it may try again
            raise PluginError(plugin.failure)
    if wanted:
        os.environ[PLUGINS] = os.pathsep.join(wanted)
    return list(_loaded.values())


def load_backends() -> list[str]:
    """Load what a worker needs: announced backends, and all that the user named. One line for each that failed.

    Another interpreter may lack what a plug-in imports, which matters only to the plug-in's own backends.
    """
    loaded = [_load_once(name, source) for name, source in _installed(GROUPS[:1])]
    loaded += [_load_once(name, PLUGINS) for name in _named()]
    return [plugin.failure for plugin in loaded if plugin.failure is not None]


def origin(kind: str, name: str) -> str | None:
    """The plug-in from which the backend (or mutator, task, intervention: `kind` in the plural) `name` comes.

    None where it is built in, or registered by the program itself.
    """
    return next((plugin.name for plugin in _loaded.values() if name in plugin.registered.get(kind, ())), None)


def _installed(groups: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Modules of entry points, and the package that announces each."""
    announced = metadata.entry_points()
    found = [entry for group in groups for entry in announced.select(group=group)]
    for entry in found:
        yield entry.module, f"package {entry.dist.name} {entry.dist.version}" if entry.dist else "an entry point"
    for group in groups:
        for name in SHIPPED.get(group, ()):
            if name not in {entry.module for entry in found}:
                yield name, "xbfuzz"


def _named() -> list[str]:
    return [name for name in os.environ.get(PLUGINS, "").split(os.pathsep) if name]


def _absolute(name: str) -> str:
    """A module's name as it is, a file's as its absolute path. Raises PluginError where it can be neither."""
    if not _is_file(name):
        if not all(part.isidentifier() for part in name.split(".")):
            raise PluginError(f"plug-in {name!r} is neither a module's name nor a file that ends in .py")
        return name
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise PluginError(f"plug-in {name}: there is no such file")
    if os.pathsep in str(path):
        raise PluginError(f"plug-in {path}: a path with {os.pathsep!r} in it cannot be told to workers")
    return str(path)


def _is_file(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def _load_once(name: str, source: str) -> Plugin:
    if name not in _loaded:
        _loaded[name] = _load(name, source)
    return _loaded[name]


def _load(name: str, source: str) -> Plugin:
    """Import it; where that fails, whatever it had registered until then is taken back."""
    from fuzzer.models.contain import contained

    before = _known()
    shown = f"plug-in {name}"
    folder = Path(name).parent if _is_file(name) else None
    failure = None
    try:
        with contained(shown, near=folder):
            _import(name, folder)
    except XbfuzzError as error:
        text = " ".join(str(error).split())
        failure = text if text.startswith(shown) else f"{shown}: {text}"
    new = {kind: sorted(names - before[kind]) for kind, names in _known().items()}
    if failure is not None:
        _forget(new)
        return Plugin(name, source, failure=failure)
    return Plugin(name, source, {kind: tuple(names) for kind, names in new.items() if names})


def _import(name: str, folder: Path | None) -> None:
    """By name, or from the file. What stands beside it, or in the current folder, can be imported meanwhile."""
    sys.path.insert(0, str(folder or Path.cwd()))
    if folder is None:
        module = importlib.import_module(name)
        if getattr(module, "__file__", None) is None and hasattr(module, "__path__"):  # a folder is a package then
            raise PluginError(f"{next(iter(module.__path__))} is a folder without Python code of its own")
        return
    # Under a name of its own, which stands in sys.modules because dataclasses and Dynamo look a class's module up.
    unique = f"xbfuzz_plugin_{Path(name).stem}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(unique, name)
    if spec is None or spec.loader is None:
        raise PluginError("cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise


def _register(kind: str) -> dict[str, Any]:
    """The register itself; empty where its module was not imported, which costs seconds and is not needed."""
    module = sys.modules.get(_REGISTERS[kind])
    if module is None:
        return {}
    found: dict[str, Any] = module._CLASSES if kind == "backends" else module._REGISTER
    return found


def _known() -> dict[str, set[str]]:
    """What is registered and not built in."""
    return {
        kind: {
            name
            for name, entry in _register(kind).items()
            if not (entry if isinstance(entry, type) else type(entry)).__module__.startswith(_BUILT_IN)
        }
        for kind in _REGISTERS
    }


def _forget(names: Mapping[str, Iterable[str]]) -> None:
    from fuzzer.seeds.schema import TASK_KINDS

    for kind, gone in names.items():
        for name in gone:
            del _register(kind)[name]
    TASK_KINDS[:] = [name for name in TASK_KINDS if name not in names["tasks"]]
