"""The table of planted faults: what each does, its right label, and what a minimal case looks like."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.planted import arithmetic, integers, order, process, state
from benchmarks.planted.fault import Call, Fault, Mechanism, Wrong


def _plain(
    name: str,
    label: str,
    wrong: Wrong,
    operators: str,
    minimal: str,
    mechanism: Mechanism = Mechanism.OPERATOR,
    effect: Callable[[], None] | None = None,
    also: Iterable[str] = (),
) -> Fault:
    """A fault that remembers nothing; its docstring says what it does."""
    about, seats = _about(wrong), frozenset(operators.split())
    return Fault(name, label, about, minimal, seats, lambda: wrong, mechanism, None, effect, frozenset(also))


def _stateful(name: str, label: str, build: Callable[[], Wrong], operators: str, minimal: str) -> Fault:
    return Fault(
        name, label, _about(build), minimal, frozenset(operators.split()), build, Mechanism.STATE, remembers=True
    )


def _process(name: str, label: str, strikes: Wrong, effect: Callable[[], None], operators: str, minimal: str) -> Fault:
    return _plain(name, label, strikes, operators, minimal, Mechanism.PROCESS, effect)


def _about(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def _inductor(name: str, label: str, option: str, value: str, minimal: str) -> Fault:
    about = f"torch.compile with torch._inductor.config.{option} = {value!r}"
    return Fault(name, label, about, minimal, frozenset(), lambda: _right, Mechanism.INDUCTOR, (option, value))


def _right(call: Call) -> None:
    """No fault."""


_ORDER = (
    _plain("topk_ties", "order/tie", order.topk_ties, "topk", "two equal values among the largest"),
    _plain("sort_ties", "order/tie", order.sort_ties, "sort", "two equal values"),
    _plain("argmax_last", "order/tie", order.argmax_last, "argmax", "two equal maxima in one row"),
    _plain(
        "pool_indices",
        "order/tie",
        order.pool_indices,
        "max_pool2d_with_indices",
        "two equal maxima in one window",
    ),
    _plain("nms_ge", "order/nms", order.nms_ge, "nms", "two boxes whose IoU is exactly the threshold"),
    # Of boxes with tied scores the order changes, or the set that is kept, as they overlap or not.
    _plain("nms_unordered", "order/nms", order.nms_unordered, "nms", "two boxes with equal scores", also=["order/tie"]),
)
_NUMBERS = (
    _plain("flush_subnormal", "numeric/subnormal", arithmetic.flush_subnormal, "mul", "one subnormal product"),
    _plain("amax_drops_nan", "numeric/nonfinite", arithmetic.amax_drops_nan, "amax max", "one NaN"),
    _plain("clamp_drops_nan", "numeric/nonfinite", arithmetic.clamp_drops_nan, "clamp clamp_min", "one NaN"),
    _plain(
        "positive_zero", "numeric/signed-zero", arithmetic.positive_zero, "trunc round ceil", "one element in (-1, 0]"
    ),
    _plain("last_tile", "numeric/wrong-value", arithmetic.last_tile, "sum", "9 elements of which the last is not zero"),
    _plain(
        "round_half_away", "numeric/wrong-value", arithmetic.round_half_away, "round", "one element k + 0.5, k even"
    ),
    _plain(
        "half_accumulation",
        "numeric/reduced-precision",
        arithmetic.half_accumulation,
        "mm bmm addmm",
        "all of the left operand within ±0.85, and a sum of two terms that float16 rounds",
    ),
    _plain("fast_exp", "numeric/approximation", arithmetic.fast_exp, "exp", "one element above 10"),
    _plain("fast_tanh", "numeric/approximation", arithmetic.fast_tanh, "tanh", "one element above 4 in size"),
    _plain("log1p_small", "numeric/approximation", arithmetic.log1p_small, "log1p", "one element below 1e-4 in size"),
)
_INTEGERS = (
    _plain("floor_division", "numeric/integer", integers.floor_division, "div", "a negative number, not divisible"),
    _plain(
        "shift_wraps",
        "numeric/integer",
        integers.shift_wraps,
        "bitwise_left_shift __lshift__",
        "one shift by 32",
    ),
    _plain("saturating_cast", "numeric/integer", integers.saturating_cast, "_to_copy to", "one element of 2^31"),
    _plain(
        "duplicate_index",
        "order/duplicate-index",
        integers.duplicate_index,
        "index_add",
        "two equal indices, the first of them with a term that is not zero",
    ),
    _plain("empty_product", "numeric/wrong-value", integers.empty_product, "prod", "no elements"),
)
_STATE = (
    _stateful("stale_size", "structure/specialisation", state.StaleSize, "mean", "one row more than the example"),
    _stateful("first_call", "state/recompile", state.FirstCall, "cumsum", "57 elements, one of them not zero"),
    _plain(
        "batch_maximum",
        "state/batch",
        state.batch_maximum,
        "_softmax",
        "two rows, one 88 below the other",
        Mechanism.STATE,
    ),
    _plain("writes_input", "state/mutation", state.writes_input, "relu", "one negative element", Mechanism.STATE),
    _plain(
        "strides_ignored",
        "numeric/wrong-value",
        state.strides_ignored,
        "cumsum",
        "8 rows of two columns, one element not zero",
        Mechanism.STATE,
    ),
)
_PROCESS = (
    _process("crash", "execution/crash", process.crash, process.die, "sqrt", "one negative element"),
    _process("hang", "execution/hang", process.hang, process.spin, "fmod", "one divisor lost in rounding"),
    _process("memory", "execution/out-of-memory", process.memory, process.swell, "bincount", "one number from 995"),
)
_INDUCTOR = (
    _inductor(
        "relu_compile_error", "execution/unsupported", "cpp.inject_relu_bug_TESTING_ONLY", "compile_error", "any"
    ),
    _inductor("relu_runtime_error", "execution/exception", "cpp.inject_relu_bug_TESTING_ONLY", "runtime_error", "any"),
    _inductor("relu_accuracy", "numeric/wrong-value", "cpp.inject_relu_bug_TESTING_ONLY", "accuracy", "any element"),
    _inductor("log1p_accuracy", "numeric/wrong-value", "cpp.inject_log1p_bug_TESTING_ONLY", "accuracy", "any element"),
)
_CONTROLS = (
    Fault("none", "", "The module as it is.", "", frozenset(), lambda: _right, Mechanism.CONTROL),
    _plain("reversed_sum", "", arithmetic.reversed_sum, "sum", "", Mechanism.CONTROL),
)


def _by_name(faults: Iterable[Fault]) -> dict[str, Fault]:
    return {fault.name: fault for fault in faults}


#: Every planted fault by name; `CONTROLS` have none.
FAULTS = _by_name((*_ORDER, *_NUMBERS, *_INTEGERS, *_STATE, *_PROCESS, *_INDUCTOR))
CONTROLS = _by_name(_CONTROLS)
