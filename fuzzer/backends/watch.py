"""What the search is told of the inside of the reference: small words from a few calls that the model makes.

`Watch` is a mode under which the model runs. It looks at the first decisions (see `margins`) and at a few results in
between, each by a sample of its elements, and says in powers of two how near the decisions were and how many zeros,
subnormal, infinite, NaN and equal values there were. It changes no result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fuzzer.backends.margins import margin_of

#: Decisions and results in between that are looked at in one run. Results are those of the 1st, 2nd, 4th, 8th … call.
MOST_DECISIONS = 6
MOST_RESULTS = 4
#: Elements of one result that are looked at.
SAMPLE = 64
#: What makes tensors out of nothing says nothing about the input.
_MADE = ("zeros", "ones", "empty", "full", "arange", "linspace", "rand", "tensor", "as_tensor", "new_")
#: Modules that take another path, with other rounding, wherever a mode or a hook is active.
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


def watchable(module: nn.Module) -> bool:
    """Whether a model's results stay the same under a Watch, as far as its modules tell."""
    return not any(isinstance(part, _FUSED) for part in module.modules())


class Watch(TorchFunctionMode):
    """See the module's docstring. `words` grows while the model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._names: Counter[str] = Counter()
        self._calls = self._decisions = self._results = 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__" or name.startswith(_MADE):  # an attribute such as `shape`, or a new constant
            return func(*args, **(kwargs or {}))
        name = name.partition(".")[0]
        try:
            self._decision(name, args, kwargs or {})
        except Exception as error:  # recorded: what could not be told is a word too
            self.words.append(f"{name}:unseen:{type(error).__name__}")
        result = func(*args, **(kwargs or {}))
        if self._results < MOST_RESULTS and isinstance(result, Tensor) and result.is_floating_point():
            self._calls += 1
            if self._calls & (self._calls - 1) == 0 and result.layout == torch.strided:
                self._results += 1
                self.words += [f"{name}@{self._calls}:{word}" for word in result_words(result)]
        return result

    def _decision(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if self._decisions >= MOST_DECISIONS or not args:
            return
        with torch.no_grad():
            margin = margin_of(name, args, kwargs)
        if margin is None or margin.numel() == 0:
            return
        self._decisions += 1
        self._names[name] += 1
        self.words += [f"{name}#{self._names[name]}:{word}" for word in margin_words(margin)]


def margin_words(margin: Tensor) -> list[str]:
    """The nearest decision that is not a tie, in powers of two; and how many are ties."""
    distances = margin.detach().abs().float().numpy()
    positive = distances[(distances > 0) & np.isfinite(distances)]
    words = [f"even:{int((distances == 0).sum()).bit_length()}"]
    if positive.size:
        words.append(f"near:{int(np.frexp(positive.min())[1]) // 2}")
    return words


def result_words(result: Tensor) -> list[str]:
    """Counts in powers of two of zeros, subnormals, of what is not finite, and of equal values; the largest's size."""
    flat = result.detach().reshape(-1)
    if flat.numel() == 0:
        return ["empty"]
    if flat.numel() > SAMPLE:
        flat = flat[:: flat.numel() // SAMPLE][:SAMPLE]
    values = np.sort(flat.float().numpy())
    bits = values.view(np.int32) & 0x7FFFFFFF
    special, small = int((bits >= 0x7F800000).sum()), int((bits < 0x00800000).sum())
    zeros = int((bits == 0).sum())
    ties = int((values[1:] == values[:-1]).sum())
    counts = {"zero": zeros, "subnormal": small - zeros, "nonfinite": special, "ties": ties}
    words = [f"{name}:{count.bit_length()}" for name, count in counts.items()]
    ordinary = bits[bits < 0x7F800000]
    return [*words, f"range:{int(ordinary.max() >> 23) // 8}"] if ordinary.size else words
