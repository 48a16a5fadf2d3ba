"""Tensors as bytes: safetensors for the wire and for files, and a hash of their content.

Nothing read back is executed. What safetensors does not hold (complex, sparse) is written as dense real tensors with
a mark, and comes back as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
#: Dtypes that safetensors writes and does not read back.
_AS_BYTES = (torch.float8_e8m0fnu,)


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """`tensors` as the bytes of a safetensors file. Tensors are detached, moved to the CPU and made contiguous.

    A sparse tensor keeps its layout and its explicit entries, zeros and duplicates included.
    """
    plain: dict[str, Tensor] = {}
    marks: dict[str, Any] = {}
    for name, tensor in tensors.items():
        _add(name, tensor.detach(), plain, marks)
    metadata = {"order": json.dumps(list(tensors)), _MARKS: json.dumps(marks)}
    return _canonical(safetensors.torch.save(plain, metadata=metadata))


def _canonical(data: bytes) -> bytes:
    """The same file with its header's keys in order: safetensors writes the metadata in another order each time."""
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


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


def raw_bytes(tensor: Tensor) -> bytes:
    """The memory of `tensor`, made contiguous on the CPU, in the machine's byte order."""
    value = tensor.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    value = value.to("cpu").contiguous().resolve_conj().resolve_neg()
    if value.numel() == 0:
        return b""
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()
