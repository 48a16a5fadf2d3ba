"""Tensors as bytes: safetensors for the wire and for files, and a hash of their content.

Nothing read back is executed. What safetensors does not hold (complex, sparse) is written as dense real tensors
under the
same name with a mark, and comes back as it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

_MARKS = "xbfuzz"


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """`tensors` as the bytes of a safetensors file. Tensors are detached, moved to the CPU and made contiguous."""
    plain: dict[str, Tensor] = {}
    marks: dict[str, str] = {}
    for name, tensor in tensors.items():
        value = tensor.detach()
        if value.layout != torch.strided:
            marks[name] = str(value.layout).removeprefix("torch.")
            value = value.to_dense()
        value = value.resolve_conj().resolve_neg().to("cpu")
        if value.is_complex():
            marks[name] = "complex"
            value = torch.view_as_real(value)
        plain[name] = value.clone(memory_format=torch.contiguous_format)
    order = json.dumps(list(tensors))
    metadata = {"order": order, _MARKS: json.dumps(marks)}
    return safetensors.torch.save(plain, metadata=metadata)


def decode(data: bytes) -> dict[str, Tensor]:
    """The inverse of `encode`, in the order in which the tensors were given.

    Raises ValueError on bytes that are not a safetensors file.
    """
    try:
        plain = safetensors.torch.load(data)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error
    metadata = _metadata(data)
    order = json.loads(metadata.get("order", "null")) or sorted(plain)
    marks = json.loads(metadata.get(_MARKS, "{}"))
    if set(order) != set(plain):
        raise ValueError("the order of a safetensors file names other tensors than it holds")
    return {name: _restore(plain[name], marks.get(name)) for name in order}


def _restore(value: Tensor, mark: str | None) -> Tensor:
    if mark is None:
        return value
    if mark == "complex":
        return torch.view_as_complex(value)
    if mark == "sparse_coo":
        return value.to_sparse()
    if mark == "sparse_csr":
        return value.to_sparse_csr()
    raise ValueError(f"unknown mark {mark!r} in a safetensors file")


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
