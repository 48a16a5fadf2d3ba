"""Backends by name."""

from __future__ import annotations

import difflib

from fuzzer.backends.base import Backend
from fuzzer.backends.compiled import AotEager, Dynamo, Inductor
from fuzzer.backends.eager import Eager
from fuzzer.backends.interpreter import availability_there
from fuzzer.backends.onnxruntime_backend import OnnxRuntime
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.spec import BackendSpec
from fuzzer.errors import SpecError

_CLASSES: dict[str, type[Backend]] = {}


def register(backend: type[Backend]) -> type[Backend]:
    """Make a backend known under its runtime's name; also usable as a decorator.

    Raises SpecError where it is no whole backend, or where its name is no runtime's name or belongs to another class.
    """
    if not (isinstance(backend, type) and issubclass(backend, Backend)):
        raise SpecError(f"{backend!r} is no subclass of fuzzer.backends.base.Backend")
    runtime = getattr(backend, "runtime", None)
    if not isinstance(runtime, str):
        raise SpecError(f"the backend class {backend.__qualname__} has no `runtime`")
    if BackendSpec.parse(f"{runtime}:cpu").base == ORACLE:
        raise SpecError(f"no backend can be called {runtime!r}: the float64 oracle is")
    lacks = sorted(getattr(backend, "__abstractmethods__", ()))
    if lacks:
        raise SpecError(f"the backend class {backend.__qualname__} does not define {', '.join(lacks)}")
    if _CLASSES.setdefault(runtime, backend) is not backend:
        other = _CLASSES[runtime].__qualname__
        raise SpecError(f"two backends are called {runtime!r}: {other} and {backend.__qualname__}")
    return backend


for _built_in in (Eager, Dynamo, AotEager, Inductor, OnnxRuntime):
    register(_built_in)


def backend_class(runtime: str) -> type[Backend]:
    """The class of that runtime. Raises SpecError, with the nearest known name, where there is none."""
    if runtime in _CLASSES:
        return _CLASSES[runtime]
    near = difflib.get_close_matches(runtime, _CLASSES, n=1, cutoff=0.4)
    others = f"known are {', '.join(sorted(_CLASSES))}; a plug-in's needs --plugin"
    hint = f"did you mean {near[0]!r}?" if near else others
    raise SpecError(f"no backend is called {runtime!r}; {hint}")


def parse(text: str) -> BackendSpec:
    """A backend string, checked against its class. Raises SpecError."""
    spec = BackendSpec.parse(text)
    backend_class(spec.runtime).check(spec)
    return spec


def known() -> list[BackendSpec]:
    """Every runtime on every device it has, with default options."""
    return [BackendSpec(name, device) for name, found in sorted(_CLASSES.items()) for device in found.devices]


def availability(spec: BackendSpec) -> str | None:
    """Why `spec` cannot run on this machine, or None where it can. An interpreter that is named is asked."""
    if spec.python:
        return availability_there(spec.python, str(spec.under("")))
    return backend_class(spec.runtime).unavailable(spec)
