"""Triage: crashes as tables, as text for a reader, and as JSON."""

from fuzzer.triage.table import Row, blame_sentence, rows, show, summary, table, to_json

__all__ = ["Row", "blame_sentence", "rows", "show", "summary", "table", "to_json"]
