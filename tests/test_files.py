"""Files that are whole or not there."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json, write_atomically


class TestWriting:
    def test_a_new_file_and_its_folders_are_made(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "a" / "b" / "c.txt", "é")
        assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "é".encode()

    def test_an_old_file_is_replaced_and_nothing_else_is_left(self, tmp_path: Path) -> None:
        for data in (b"first", b"2"):
            write_atomically(tmp_path / "x", data)
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert (tmp_path / "x").read_bytes() == b"2"

    def test_a_reader_who_has_the_old_file_open_keeps_it(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "x", b"old")
        with (tmp_path / "x").open("rb") as reader:
            write_atomically(tmp_path / "x", b"new")
            assert reader.read() == b"old"

    def test_a_folder_in_its_place_is_one_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "x" / "y").mkdir(parents=True)
        with pytest.raises(XbfuzzError, match=r"cannot write .*x"):
            write_atomically(tmp_path / "x", b"data")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]

    def test_a_file_where_a_folder_is_needed_is_one_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "x").touch()
        with pytest.raises(XbfuzzError, match="cannot write"):
            write_atomically(tmp_path / "x" / "y", b"data")

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
    def test_nothing_is_left_behind_when_it_is_interrupted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        write_atomically(tmp_path / "x", b"old")

        def fails(descriptor: int) -> None:
            raise error

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises((XbfuzzError, KeyboardInterrupt)):
            write_atomically(tmp_path / "x", b"new")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]
        assert (tmp_path / "x").read_bytes() == b"old"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


def finite(value: Any) -> Any:
    """What JSON can keep: other floats as their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"nan": "nan", "inf": "inf", "-inf": "-inf"}[str(value)]
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


class TestJson:
    @given(VALUES)
    def test_it_is_strict_one_line_and_reads_back(self, value: Any) -> None:
        text = to_json(value)
        assert "\n" not in text
        assert json.loads(text, parse_constant=refuse) == finite(value)

    def test_tuples_become_lists_and_keys_text(self) -> None:
        assert to_json({1: (2, 3)}) == '{"1": [2, 3]}'
