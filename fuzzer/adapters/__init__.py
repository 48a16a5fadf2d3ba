"""What a user can switch on to make backends agree. Needs torch alone (and torchvision for NMS), not the fuzzer.

`StableOrder` and `Float32` are context managers: whatever is run, compiled or exported inside them is adapted.
"""

from fuzzer.adapters.fallback import capture, modules_in_eager, operator_name, operators, split
from fuzzer.adapters.ordering import (
    QUANTUM,
    StableOrder,
    stable_argmax,
    stable_argsort,
    stable_nms,
    stable_rank,
    stable_sort,
    stable_topk,
)
from fuzzer.adapters.precision import Float32, emulated_casts, in_float32, without_tf32

__all__ = [
    "QUANTUM",
    "Float32",
    "StableOrder",
    "capture",
    "emulated_casts",
    "in_float32",
    "modules_in_eager",
    "operator_name",
    "operators",
    "split",
    "stable_argmax",
    "stable_argsort",
    "stable_nms",
    "stable_rank",
    "stable_sort",
    "stable_topk",
    "without_tf32",
]
