"""The frames between a campaign and its workers, and leaves as they travel in them."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fuzzer.backends import protocol
from fuzzer.backends.protocol import (
    Failure,
    Frame,
    ProtocolError,
    failure_header,
    pack_leaves,
    read_frame,
    unpack_leaves,
    write_frame,
)
from fuzzer.tensors import raw_bytes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
HEADERS = st.dictionaries(st.text(max_size=5), JSON, max_size=4)
FRAMES = st.tuples(HEADERS, st.binary(max_size=100))
LEAVES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.floats(width=32), max_size=4).map(torch.tensor),
    max_size=6,
)


def written(header: dict[str, Any], payload: bytes = b"") -> bytes:
    stream = io.BytesIO()
    write_frame(stream, header, payload)
    return stream.getvalue()


class TestFrames:
    @given(st.lists(FRAMES, max_size=4))
    def test_what_is_written_is_read_and_then_the_stream_ends(self, frames: list[tuple[dict[str, Any], bytes]]) -> None:
        stream = io.BytesIO(b"".join(written(*frame) for frame in frames))
        for header, payload in frames:
            assert read_frame(stream) == Frame(header, payload)
        assert read_frame(stream) is None

    def test_their_form_is_magic_lengths_header_payload(self) -> None:
        assert written({"a": 1}, b"xyz") == b"XBF1" + struct.pack(">IQ", 8, 3) + b'{"a": 1}' + b"xyz"

    @given(FRAMES, st.data())
    def test_a_frame_that_is_cut_off_is_an_error(
        self, frame: tuple[dict[str, Any], bytes], data: st.DataObject
    ) -> None:
        whole = written(*frame)
        cut = data.draw(st.integers(1, len(whole) - 1))
        with pytest.raises(ProtocolError):
            read_frame(io.BytesIO(whole[:cut]))

    @given(st.binary(min_size=1, max_size=50).filter(lambda data: not data.startswith(b"XBF1")))
    def test_any_other_bytes_are_an_error(self, data: bytes) -> None:
        with pytest.raises(ProtocolError):
            read_frame(io.BytesIO(data))

    @given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=30))
    def test_lengths_that_lie_are_an_error_and_cost_no_memory(self, head: int, payload: int, rest: bytes) -> None:
        stream = io.BytesIO(b"XBF1" + struct.pack(">IQ", head, payload) + rest)
        try:
            frame = read_frame(stream)
        except ProtocolError:
            return
        assert frame is not None
        assert head + payload <= len(rest)

    def test_a_payload_longer_than_a_chunk_is_put_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(protocol, "_CHUNK", 3)
        stream = io.BytesIO(written({}, b"0123456789") + written({"next": 1}))
        assert read_frame(stream) == Frame({}, b"0123456789")
        assert read_frame(stream) == Frame({"next": 1})

    def test_a_header_that_is_not_for_json_writes_nothing(self) -> None:
        stream = io.BytesIO()
        with pytest.raises(TypeError):
            write_frame(stream, {"dtype": torch.float32})
        assert stream.getvalue() == b""


class TestLeaves:
    @given(LEAVES)
    def test_they_survive_with_their_order_types_and_bits(self, leaves: dict[str, Any]) -> None:
        listed, payload = pack_leaves(leaves)
        sent = read_frame(io.BytesIO(written({"leaves": listed}, payload)))
        assert sent is not None
        back = unpack_leaves(sent.header["leaves"], sent.payload)
        assert list(back) == list(leaves)
        for path, leaf in leaves.items():
            found = back[path]
            assert type(found) is type(leaf)
            if isinstance(leaf, Tensor):
                assert isinstance(found, Tensor)
                assert raw_bytes(found) == raw_bytes(leaf)
            elif isinstance(leaf, float):
                assert repr(found) == repr(leaf)  # NaN, and the sign of zero
            else:
                assert found == leaf

    @pytest.mark.parametrize(
        ("listed", "payload"),
        [
            ([{"path": "a"}], pack_leaves({})[1]),
            ([{"value": 1}], pack_leaves({})[1]),
            ([{"path": "a", "float": "one"}], pack_leaves({})[1]),
            ([{"path": "a", "float": 1}], pack_leaves({})[1]),
            (["a"], pack_leaves({})[1]),
            ([], b"no tensors"),
        ],
    )
    def test_a_list_and_a_payload_that_do_not_belong_together_are_an_error(self, listed: Any, payload: bytes) -> None:
        with pytest.raises(ProtocolError):
            unpack_leaves(listed, payload)


class TestFailures:
    @given(st.tuples(*[st.text(max_size=9)] * 5))
    def test_they_survive(self, texts: tuple[str, str, str, str, str]) -> None:
        failure = Failure(*texts)
        frame = read_frame(io.BytesIO(written(failure_header(failure))))
        assert frame is not None
        assert (frame.ok, frame.failure) == (False, failure)

    def test_a_good_answer_has_none(self) -> None:
        assert Frame({"ok": True}).failure is None

    @pytest.mark.parametrize("error", ["text", 3, {"kind": "x"}, {"new field": 1}, ["kind"]])
    def test_one_that_cannot_be_read_is_a_fault_of_the_harness(self, error: Any) -> None:
        failure = Frame({"ok": False, "error": error}).failure
        assert failure is not None
        assert failure.kind == "internal"
