"""Triage: crashes as tables, as text for a reader, as JSON and CSV, as a report, and as drafts of issues."""

from fuzzer.triage.csv_file import to_csv
from fuzzer.triage.groups import BY, Group, groups
from fuzzer.triage.known import KNOWN, KnownIssue, KnownIssues, load_known
from fuzzer.triage.table import Row, blame_sentence, rows, show, summary, table, to_json

__all__ = [
    "BY",
    "KNOWN",
    "Group",
    "KnownIssue",
    "KnownIssues",
    "Row",
    "blame_sentence",
    "groups",
    "load_known",
    "rows",
    "show",
    "summary",
    "table",
    "to_csv",
    "to_json",
]
