"""What a compiler or an exporter says when it refuses, as one line that a table can hold."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_LONGEST = 300


def one_line(error: BaseException) -> str:
    """Type and first meaningful line of the error that started it all.

    Compilers wrap: the cause that was raised first is what a reader can act on, so explicit causes are followed to it.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    told = f"{type(error).__name__}: {first_line(str(error))}"
    explained = _EXPLANATION.search(str(error))  # Dynamo's messages: a title, then what happened
    return _cut(f"{told}. {explained[1]}") if explained else told


def first_line(text: str) -> str:
    """The first line of `text` that is not empty, without colours, cut at 300 characters.

    A line that ends in a colon takes the next one along.
    """
    lines = [" ".join(line.split()) for line in _COLOUR.sub("", text).splitlines()]
    told = [line for line in lines if line]
    if not told:
        return "no message"
    line = " ".join(told[:2]) if told[0].endswith(":") else told[0]
    return _cut(line)


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
