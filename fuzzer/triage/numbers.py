"""Numbers as crash files have them."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> float | None:
    """A number as a crash file has it: infinities are text there. None for NaN and for anything else."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def short(value: Any) -> str:
    """Three digits of a number, "" of None, and what it is of anything else."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, int | float) else str(value)
