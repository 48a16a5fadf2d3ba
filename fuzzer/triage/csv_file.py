"""The table of crashes as CSV, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from fuzzer.triage.table import HEADINGS, Row

#: A cell that starts so is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(rows: Sequence[Row]) -> str:
    """Headings and one line a crash (RFC 4180). Text that a spreadsheet would compute is marked as text."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(HEADINGS)
    for row in rows:
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) and cell != "-" else cell for cell in row])
    return stream.getvalue()
