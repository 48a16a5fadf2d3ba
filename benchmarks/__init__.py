"""Measurements of xbfuzz itself: each module prints a table, or JSON with `--json`."""
