"""Features of a reference's answer: small strings, by which the corpus knows an input that is unlike the others."""

from __future__ import annotations

import math
import re

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
    values = as_real(leaf).to(torch.float64).reshape(-1)
    finite = values[torch.isfinite(values)]
    counts = {
        "nan": torch.isnan(values).sum(),
        "inf": torch.isinf(values).sum(),
        "zero": (values == 0).sum(),
        "ties": torch.tensor(finite.numel() - len(torch.unique(finite))),
    }
    if leaf.is_floating_point():
        counts["subnormal"] = ((finite != 0) & (finite.abs() < torch.finfo(leaf.dtype).tiny)).sum()
    found |= {f"{name}:{_power(int(count))}" for name, count in counts.items()}
    gaps = top_gaps(leaf) if leaf.is_floating_point() and 1 < leaf.shape[-1:].numel() * leaf.dim() <= MOST else None
    if gaps is not None:
        found |= {f"margin:{word}" for word in margin_words(gaps)}
    nonzero = finite[finite != 0].abs()
    if nonzero.numel():
        largest, middle, least = (float(each) for each in (nonzero.max(), nonzero.median(), nonzero.min()))
        found |= {f"range:{_scale(largest, 4)}", f"middle:{_scale(middle, 4)}", f"least:{_scale(least, 8)}"}
    return found


def _scale(value: float, step: int) -> int:
    """The binary exponent of a positive number, in steps of `step`."""
    return math.frexp(value)[1] // step


def _power(count: int) -> int:
    return count.bit_length()
