"""Changes to what `crash.yaml` says of a stored crash: what is expected of it, and what its keepers decided."""

from __future__ import annotations

from dataclasses import replace

from filelock import FileLock

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.expect import AGREES
from fuzzer.crashes.record import from_yaml, to_yaml
from fuzzer.errors import CrashFolderError
from fuzzer.files import write_atomically


def save_record(crash: Crash) -> None:
    """Write `crash.yaml` anew in the folder that the crash was read from; no other file is touched.

    Raises CrashFolderError for a crash that has no folder or that could not be read again, XbfuzzError where the file
    cannot be written.
    """
    if crash.folder is None:
        raise CrashFolderError(f"{crash.id} was not read from a folder")
    home = crash.folder.resolve()
    text = to_yaml(crash, home)
    from_yaml(text, home)
    with FileLock(home.parent / ".lock"):
        write_atomically(home / "crash.yaml", text)


def guard(crash: Crash) -> Crash:
    """A fixed crash becomes a guard: from now on it is expected to agree. The changed crash, saved."""
    guarded = replace(crash, expect=AGREES)
    save_record(guarded)
    return guarded


def decide(crash: Crash, status: str, link: str | None = None) -> Crash:
    """Keep what was decided, and where to read of it (None: as it was). The changed crash, saved."""
    decided = replace(crash, status=status, link=crash.link if link is None else link)
    save_record(decided)
    return decided
