"""Features of a reference's answer: small strings, by which the corpus knows an input that is unlike the others."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from torch import Tensor

from fuzzer.backends.margins import MOST, top_gaps
from fuzzer.backends.session import Answer
from fuzzer.backends.watch import margin_words
from fuzzer.verify.compare import as_real

#: What differs between two messages of one kind: sizes and addresses.
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


def features(answer: Answer) -> frozenset[str]:
    """Shapes, counts of special values in powers of two, scale, ties and margins of each leaf, or the error's kind and
    message; and what was seen inside the model.
    """
    found = {f"in:{word}" for word in answer.inside}
    if answer.leaves is None:
        kind = answer.failure.type if answer.failure is not None else str(answer.death.kind if answer.death else "")
        words = "" if answer.failure is None else _NUMBER.sub("#", answer.failure.message)[:60]
        return frozenset(found | {f"error:{kind}", f"error:{kind}:{words}"})
    for path, leaf in answer.leaves.items():
        if isinstance(leaf, Tensor):
            found |= {f"{path}:{feature}" for feature in _of_tensor(leaf)}
    return frozenset(found)


def _of_tensor(leaf: Tensor) -> set[str]:
    found = {f"shape:{'x'.join(str(_power(side)) for side in leaf.shape)}"}
    if leaf.numel() == 0 or leaf.is_quantized:
        return found
    values = np.sort(as_real(leaf).to(torch.float64).reshape(-1).numpy())  # numpy: small arrays, and many calls
    finite = values[np.isfinite(values)]
    nan = int(np.isnan(values).sum())
    sizes = np.abs(finite[finite != 0])
    counts = {
        "nan": nan,
        "inf": values.size - nan - finite.size,
        "zero": finite.size - sizes.size,
        "ties": int((finite[1:] == finite[:-1]).sum()),
    }
    if leaf.is_floating_point():
        counts["subnormal"] = int((sizes < torch.finfo(leaf.dtype).tiny).sum())
    found |= {f"{name}:{_power(count)}" for name, count in counts.items()}
    gaps = top_gaps(leaf) if leaf.is_floating_point() and 1 < leaf.shape[-1:].numel() * leaf.dim() <= MOST else None
    if gaps is not None:
        found |= {f"margin:{word}" for word in margin_words(gaps)}
    if sizes.size:
        middle = (sizes.size - 1) // 2  # the lower one of an even number
        largest, least = float(sizes.max()), float(sizes.min())
        found |= {f"range:{_scale(largest, 4)}", f"least:{_scale(least, 8)}"}
        found.add(f"middle:{_scale(float(np.partition(sizes, middle)[middle]), 4)}")
    return found


def _scale(value: float, step: int) -> int:
    """The binary exponent of a positive number, in steps of `step`."""
    return math.frexp(value)[1] // step


def _power(count: int) -> int:
    return count.bit_length()
