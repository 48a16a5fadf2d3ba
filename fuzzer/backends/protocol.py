"""The language between a campaign and its workers: frames of a JSON header and safetensors bytes.

A worker may run under another interpreter with other versions of everything, so a frame carries no pickles and nothing
that is executed. The form of a frame: four magic bytes, the header's length (4 bytes), the payload's (8 bytes), both
big-endian, then header and payload.

Requests name what to `do`: `prepare` (`seed`, `base`, `backend`, `cache`; payload: the example sample), `run`
(`rng_seed`, `check`, and for the oracle a `variant`; payload: the sample), `runs` (`each`: what `run` takes, and the
`length` of its part of the payload; the reply has the same form), `weights`, `graph` (the module as data;
payload: a sample), `exit`. A reply says `ok`, with what was asked, or an `error` (`Failure`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from torch import Tensor

from fuzzer import tensors
from fuzzer.files import to_json
from fuzzer.trees import Leaves

PROTOCOL = 1
#: The name by which a worker is asked for the oracle, which is no backend that a user can choose.
ORACLE = "oracle:cpu"
#: The environment variable that names a worker's file descriptor for the place of the sample that it runs, of several:
#: four bytes, big-endian, which outlive it.
PROGRESS = "XBFUZZ_PROGRESS"
_MAGIC = b"XBF1"
_LENGTHS = struct.Struct(">IQ")
_LONGEST_HEADER = 64 * 2**20
_LONGEST_PAYLOAD = 16 * 2**30
_CHUNK = 64 * 2**20


class ProtocolError(Exception):
    """Bytes that are no frame: the other side is not a worker, or was cut off in the middle."""


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, as what it is.

    `kind`: `unsupported` (the backend refused the model), `exception` (the run raised), `model` (the seed's model
    could not be built), `internal` (the harness itself failed: a fault of ours, never counted as a difference).
    """

    kind: str
    type: str
    message: str
    stage: str = ""
    traceback: str = ""


@dataclass
class Frame:
    """One message."""

    header: dict[str, Any]
    payload: bytes = b""

    @property
    def ok(self) -> bool:
        return bool(self.header.get("ok"))

    @property
    def failure(self) -> Failure | None:
        error = self.header.get("error")
        if error is None:
            return None
        try:
            return Failure(**error)
        except TypeError:
            return Failure("internal", "ProtocolError", f"an error that cannot be read: {error!r}"[:300])


def write_frame(stream: BinaryIO, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Write one frame and flush it. Raises TypeError or ValueError, with nothing written, on a header not for JSON."""
    send_frame(stream, encode_header(header, len(payload)), payload)


def encode_header(header: Mapping[str, Any], payload_length: int) -> bytes:
    """What stands before the payload. Raises TypeError or ValueError where `header` holds more than JSON values."""
    head = to_json(dict(header)).encode()
    return _MAGIC + _LENGTHS.pack(len(head), payload_length) + head


def send_frame(stream: BinaryIO, start: bytes, payload: bytes) -> None:
    """Write a frame whose header is encoded already."""
    stream.write(start)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame, or None where the stream ended between frames. Raises ProtocolError on anything else."""
    start = stream.read(len(_MAGIC) + _LENGTHS.size)
    if not start:
        return None
    if len(start) < len(_MAGIC) + _LENGTHS.size or not start.startswith(_MAGIC):
        raise ProtocolError("the stream does not hold a frame")
    head_length, payload_length = _LENGTHS.unpack(start[len(_MAGIC) :])
    if head_length > _LONGEST_HEADER:
        raise ProtocolError("a frame's header is too long")
    if payload_length > _LONGEST_PAYLOAD:
        raise ProtocolError("a frame's payload is too long")
    head, payload = stream.read(head_length), _read(stream, payload_length)
    if len(head) < head_length or len(payload) < payload_length:
        raise ProtocolError("the stream ended inside a frame")
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise ProtocolError("a frame's header is not a mapping")
    return Frame(header, payload)


def _read(stream: BinaryIO, length: int) -> bytes:
    """Up to `length` bytes. In chunks, so that a length that is a lie takes no memory."""
    chunks: list[bytes] = []
    while length > 0 and (chunk := stream.read(min(length, _CHUNK))):
        chunks.append(chunk)
        length -= len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def pack_leaves(leaves: Leaves) -> tuple[list[dict[str, Any]], bytes]:
    """Leaves as a JSON list that keeps their order and plain values, and the bytes of their tensors."""
    listed: list[dict[str, Any]] = []
    plain: dict[str, Tensor] = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, Tensor):
            plain[path] = leaf
            listed.append({"path": path})
        elif isinstance(leaf, float):  # as hex, because JSON has no NaN and no infinities
            listed.append({"path": path, "float": leaf.hex()})
        else:
            listed.append({"path": path, "value": leaf})
    return listed, tensors.encode(plain)


def unpack_leaves(listed: list[dict[str, Any]], payload: bytes) -> Leaves:
    """The inverse of `pack_leaves`. Raises ProtocolError where the two do not belong together."""
    try:
        plain = tensors.decode(payload)
        leaves: Leaves = {}
        for entry in listed:
            if "float" in entry:
                leaves[entry["path"]] = float.fromhex(entry["float"])
            else:
                leaves[entry["path"]] = entry["value"] if "value" in entry else plain[entry["path"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"a reply's leaves cannot be read: {error}") from error
    return leaves


def failure_header(failure: Failure) -> dict[str, Any]:
    return {"ok": False, "error": asdict(failure)}
