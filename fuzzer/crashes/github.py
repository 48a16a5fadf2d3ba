"""Annotations that GitHub shows beside a change, printed as workflow commands."""

from __future__ import annotations

from pathlib import Path

from fuzzer.crashes.crash import Crash
from fuzzer.crashes.replay import CrashState, Replayed


def annotation(crash: Crash, result: Replayed, root: Path) -> str | None:
    """The line for one replayed crash, or None where it did what it should on the machine that was recorded.

    An error where it did not, a warning where it could not run, a notice where other versions or another processor ran
    it. `root` is the folder of the checkout: files are named from there.
    """
    if result.state is CrashState.UNAVAILABLE:
        level = "warning"
    elif not result.ok:
        level = "error"
    elif result.differs:
        level = "notice"
    else:
        return None
    text = "\n".join([result.sentence, *(f"recorded elsewhere: {line}" for line in result.differs)])
    place = ""
    if crash.folder is not None:
        file = (crash.folder / "crash.yaml").resolve()
        place = f"file={_property(str(file.relative_to(root) if file.is_relative_to(root) else file))},"
    return f"::{level} {place}title={_property(f'{crash.id}: {crash.label}')}::{_data(text)}"


def _data(text: str) -> str:
    """As GitHub's own toolkit escapes a message: a new line would end the command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
