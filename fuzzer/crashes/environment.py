"""Where a crash was seen: versions, processor, operating system."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "torchvision", "onnxruntime", "onnx", "onnxscript", "numpy")
#: Instruction sets that change which code a backend runs; the names are Linux's.
_FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve")


def environment() -> dict[str, Any]:
    """JSON values that say what a reader needs to see the same again. Imports nothing that is not loaded."""
    found: dict[str, Any] = {"python": platform.python_version()}
    found |= {name: version for name in PACKAGES if (version := _version(name)) is not None}
    found |= {
        "os": platform.platform(),
        "cpu": _cpu_model(),
        "capabilities": sorted({*_cpu_flags(), torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")}),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["cuda"] = {"device": torch.cuda.get_device_name(0), "version": str(torch.version.cuda)}
    return found


def _version(name: str) -> str | None:
    for distribution in (name, f"{name}-gpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _cpu_info(keys: Iterable[str]) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return ""


def _cpu_model() -> str:
    return _cpu_info(["model name", "Model"]) or platform.processor() or platform.machine()


def _cpu_flags() -> list[str]:
    flags = set(_cpu_info(["flags", "Features"]).split())
    return [flag for flag in _FLAGS if flag in flags]
