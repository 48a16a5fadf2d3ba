"""Files that are whole or not there: write to a neighbour, flush to the disk, rename."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from fuzzer.errors import XbfuzzError


def write_atomically(path: Path, data: bytes | str) -> None:
    """Put `data` at `path` so that a reader sees the old content or the new, never a part.

    Raises XbfuzzError, with nothing left behind, where the disk is full or the folder cannot be written.
    """
    payload = data.encode() if isinstance(data, str) else data
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise XbfuzzError(f"cannot write {path}: {error.strerror or error}") from error
    finally:  # Ctrl-C leaves nothing behind either
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def to_json(value: Any) -> str:
    """Strict JSON on one line: NaN and infinities are not JSON, so they are written as text."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:  # it holds one of them
        return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
