"""Running a user's code, and leaving the process as it was: state restored, exits and errors turned into one line."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzzer.errors import ModelError, XbfuzzError

_LONGEST = 300  # characters of a message that are worth a reader's line


@contextlib.contextmanager
def contained(what: str, *, near: Path | None = None) -> Iterator[None]:
    """Run a body of foreign code; whatever it sets process-wide is put back, and what it prints goes to stderr.

    It sees an empty command line and an empty standard input. Any exception, SystemExit included, becomes a ModelError
    that reads `what: Error: message`, with the line where a file under `near` raised it. KeyboardInterrupt and this
    project's own errors pass.
    """
    with _restored(), contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except (KeyboardInterrupt, XbfuzzError):
            raise
        except BaseException as error:
            raise ModelError(f"{what}: {one_line(error)}{_where(error, near)}") from error


def one_line(error: BaseException) -> str:
    """The type and the first line of the message of `error`."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def _where(error: BaseException, near: Path | None) -> str:
    if near is None:
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(near)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    undo = [
        *_settings(),
        _undo(random.getstate(), random.setstate),
        _undo(np.random.get_state(), np.random.set_state),
        _undo(list(sys.path), lambda path: sys.path.__setitem__(slice(None), path)),
        _undo(Path.cwd(), os.chdir),
        _undo(dict(os.environ), _set_environment),
        _undo((sys.argv, sys.stdin), _set_arguments_and_input),
        _undo(list(warnings.filters), _set_warning_filters),
        _undo((logging.root.level, logging.root.manager.disable, list(logging.root.handlers)), _set_logging),
        *_handlers(),
    ]
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices), open(os.devnull) as empty:
        # Code that parses the command line must not see xbfuzz's; code that asks must not wait for an answer.
        sys.argv, sys.stdin = sys.argv[:1], empty
        try:
            yield
        finally:
            for put_back in undo:
                put_back()


def _settings() -> list[Callable[[], None]]:
    """How to put back torch's process-wide settings as they are now."""
    return [
        _undo(torch.get_default_dtype(), torch.set_default_dtype),
        _undo(_default_device(), torch.set_default_device),
        _undo(torch.get_num_threads(), torch.set_num_threads),
        _undo(torch.is_grad_enabled(), torch.set_grad_enabled),
        _undo(_flushes_subnormals(), torch.set_flush_denormal),
        _undo(_deterministic(), _set_deterministic),
        _undo(_matmul_precision(), _set_matmul_precision),
        _undo(_cudnn_tf32(), _set_cudnn_tf32),
        *(_flag(holder, "fp32_precision") for holder in _precision_holders()),
        *(_flag(torch.backends.cudnn, name) for name in ("benchmark", "deterministic")),
    ]


def _flag(holder: Any, name: str) -> Callable[[], None]:
    """Written only where it changed: to write a precision is to choose between torch's two ways to set it."""
    value = getattr(holder, name)
    return lambda: None if getattr(holder, name) == value else setattr(holder, name, value)


def _precision_holders() -> list[Any]:
    backends: Any = torch.backends
    # torch.backends first: what it says holds for the parts that say nothing themselves.
    parts = [backends] + [getattr(backends.mkldnn, part, None) for part in ("matmul", "conv", "rnn")]
    parts += [backends.cuda.matmul, getattr(backends.cudnn, "conv", None), getattr(backends.cudnn, "rnn", None)]
    return [part for part in parts if hasattr(part, "fp32_precision")]


def _matmul_precision() -> str | None:
    """None where the precisions were set one by one: the older, common setting then has no value."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _set_matmul_precision(value: str | None) -> None:
    if value is not None and _matmul_precision() != value:
        torch.set_float32_matmul_precision(value)


def _cudnn_tf32() -> bool | None:
    """None as above."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:
        return None


def _set_cudnn_tf32(value: bool | None) -> None:
    if value is not None and _cudnn_tf32() != value:
        torch.backends.cudnn.allow_tf32 = value


def _set_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


def _set_arguments_and_input(before: tuple[list[str], Any]) -> None:
    sys.argv, sys.stdin = before


def _set_warning_filters(before: list[Any]) -> None:
    if warnings.filters != before:
        warnings.filters[:] = before  # type: ignore[index]  # a list, whatever its stub says
        getattr(warnings, "_filters_mutated", lambda: None)()  # else warnings that were told stay told


def _set_logging(before: tuple[int, int, list[logging.Handler]]) -> None:
    level, disabled, handlers = before
    logging.root.setLevel(level)
    logging.disable(disabled)
    logging.root.handlers[:] = handlers


def _handlers() -> list[Callable[[], None]]:
    """How to put back the handlers of the signals by which a user ends a program; only a main thread may set them."""
    if threading.current_thread() is not threading.main_thread():
        return []
    held = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return [
        lambda number=number, handler=handler: signal.signal(number, handler)  # type: ignore[misc]
        for number, handler in held.items()
        if handler is not None
    ]


def _deterministic() -> tuple[bool, bool]:
    """Whether algorithms must be deterministic, and whether one that is not is only warned of."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    """Written only where it changed: torch imports the whole of Inductor for it, more than a second."""
    if _deterministic() != value:
        torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _undo(value: Any, put: Callable[[Any], Any]) -> Callable[[], None]:
    return lambda: put(value)


def _default_device() -> torch.device | None:
    """None where none was set: setting `cpu` explicitly would install a mode that slows every call."""
    device = torch.get_default_device()
    return None if device.type == "cpu" else device


def _flushes_subnormals() -> bool:
    smallest = torch.tensor([2.0**-140], dtype=torch.float32, device="cpu")
    return bool((smallest * 1.0 == 0).item())
