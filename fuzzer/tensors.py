"""Tensors as bytes: safetensors for the wire and for files, and a hash of their content.

Nothing read back is executed. What safetensors does not hold (complex, sparse) is written as dense real tensors with
a mark, and comes back as it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

_MARKS = "xbfuzz"
#: Between the name of a sparse tensor and that of one of its components.
_PART = "\0"
#: The methods that give the components of a sparse tensor, in the order in which its constructor takes them.
_COMPONENTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
#: What ordinary dtypes are called in a safetensors file, the widest first: so each tensor starts at a multiple of its
#: element's size.
_ORDINARY = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.bool: "BOOL",
}
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_RANK = {dtype: place for place, dtype in enumerate(_ORDINARY)}
#: Dtypes that safetensors writes and does not read back.
_AS_BYTES = (torch.float8_e8m0fnu,)


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """`tensors` as the bytes of a safetensors file. Tensors are detached, moved to the CPU and made contiguous.

    A sparse tensor keeps its layout and its explicit entries, zeros and duplicates included.
    """
    if all(tensor.layout == torch.strided and tensor.dtype in _ORDINARY for tensor in tensors.values()):
        return _encode_ordinary(tensors)
    plain: dict[str, Tensor] = {}
    marks: dict[str, Any] = {}
    for name, tensor in tensors.items():
        _add(name, tensor.detach(), plain, marks)
    metadata = {"order": json.dumps(list(tensors)), _MARKS: json.dumps(marks)}
    return _canonical(safetensors.torch.save(plain, metadata=metadata))


def _encode_ordinary(tensors: Mapping[str, Tensor]) -> bytes:
    """What `encode` gives for tensors that need no marks, without the library: messages to workers are made of it."""
    start = _ordinary_start(tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()))
    ordered = sorted(tensors, key=lambda name: (_RANK[tensors[name].dtype], name))
    return b"".join([start, *(raw_bytes(tensors[name]) for name in ordered)])


@lru_cache(maxsize=512)
def _ordinary_start(listed: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]) -> bytes:
    """What stands before the tensors in a file of those that are `listed`."""
    order = json.dumps([name for name, _, _ in listed])
    header: dict[str, Any] = {"__metadata__": {"order": order, _MARKS: json.dumps({})}}
    end = 0
    for name, dtype, shape in sorted(listed, key=lambda each: (_RANK[each[1]], each[0])):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"data_offsets": [begin, end], "dtype": _ORDINARY[dtype], "shape": list(shape)}
    return _start(header)


def _canonical(data: bytes) -> bytes:
    """The same file with its header's keys in order: safetensors writes the metadata in another order each time."""
    length = int.from_bytes(data[:8], "little")
    return _start(json.loads(data[8 : 8 + length])) + data[8 + length :]


def _start(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text


def _add(name: str, value: Tensor, plain: dict[str, Tensor], marks: dict[str, Any]) -> None:
    if value.layout in _COMPONENTS:
        marks[name] = {"layout": str(value.layout).removeprefix("torch."), "size": list(value.shape)}
        if value.layout == torch.sparse_coo:
            marks[name]["coalesced"] = value.is_coalesced()
        for part in _COMPONENTS[value.layout]:
            _add(name + _PART + part, getattr(value, part)(), plain, marks)
        return
    if value.layout != torch.strided:  # such as mkldnn: another arrangement of the same dense values
        value = value.to_dense()
    value = value.resolve_conj().resolve_neg().to("cpu")
    # Copied before it is seen as real: torch cannot do that with the values of a compressed sparse tensor.
    value = value.clone(memory_format=torch.contiguous_format)
    if value.is_complex():
        marks[name] = "complex"
        value = torch.view_as_real(value)
    if value.dtype in _AS_BYTES:
        marks[name] = str(value.dtype).removeprefix("torch.")
        value = value.view(torch.uint8)
    plain[name] = value


def decode(data: bytes) -> dict[str, Tensor]:
    """The inverse of `encode`, in the order in which the tensors were given.

    Raises ValueError on bytes that are not a safetensors file, or whose marks do not fit its tensors.
    """
    try:
        plain = safetensors.torch.load(data)
        metadata = _metadata(data)
        order = json.loads(metadata.get("order", "null")) or sorted(plain)
        marks = json.loads(metadata.get(_MARKS, "{}"))
        whole = {str(name) for name in order}
        if whole != {name if name in whole else name.rpartition(_PART)[0] for name in plain}:
            raise ValueError("the order of a safetensors file names other tensors than it holds")
        return {name: _restore(name, plain, marks) for name in order}
    except (SafetensorError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error


def _restore(name: str, plain: Mapping[str, Tensor], marks: Mapping[str, Any]) -> Tensor:
    mark = marks.get(name)
    if mark is None:
        return plain[name]
    if mark == "complex":
        return torch.view_as_complex(plain[name])
    for dtype in _AS_BYTES:
        if mark == str(dtype).removeprefix("torch."):
            return plain[name].view(dtype)
    for layout, parts in _COMPONENTS.items():
        if isinstance(mark, dict) and mark["layout"] == str(layout).removeprefix("torch."):
            return _sparse(layout, [_restore(name + _PART + part, plain, marks) for part in parts], mark)
    raise ValueError(f"unknown mark {mark!r} in a safetensors file")


def _sparse(layout: torch.layout, parts: list[Tensor], mark: Mapping[str, Any]) -> Tensor:
    size = [int(length) for length in mark["size"]]
    if layout == torch.sparse_coo:
        indices, values = parts
        known = bool(mark["coalesced"])
        return torch.sparse_coo_tensor(indices, values, size, is_coalesced=known, check_invariants=True)
    compressed, other, values = parts
    return torch.sparse_compressed_tensor(compressed, other, values, size, layout=layout, check_invariants=True)


def _metadata(data: bytes) -> dict[str, str]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found: dict[str, str] = header.get("__metadata__", {})
    return found


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """Sixteen hex digits that change with any bit of any tensor, its name, shape or dtype (NaN payloads included)."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        value = tensor.detach()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(raw_bytes(value))
    return digest.hexdigest()[:16]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits, NaN payloads and signs of zero included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if all(side.layout == torch.strided and side.dtype in _ORDINARY and not side.is_neg() for side in (a, b)) and (
        a.device == b.device
    ):
        bits = _BITS[a.dtype.itemsize]
        return torch.equal(a.detach().view(bits), b.detach().view(bits))
    return raw_bytes(a) == raw_bytes(b)


def raw_bytes(tensor: Tensor) -> bytes:
    """The memory of `tensor`, made contiguous on the CPU, in the machine's byte order."""
    value = tensor.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    value = value.to("cpu").contiguous().resolve_conj().resolve_neg()
    if value.numel() == 0:
        return b""
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()
