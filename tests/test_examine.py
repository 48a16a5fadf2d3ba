"""From two answers to a verdict: screen, judge, repeat, and what to do without an oracle or without leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.known_cases import Function
from benchmarks.local import RNG_SEED, Local, named, seed_for
from fuzzer.backends.process import Death
from fuzzer.backends.protocol import ORACLE, Failure
from fuzzer.backends.session import Answer
from fuzzer.seeds import Seed, Tolerance
from fuzzer.verify.compare import compare
from fuzzer.verify.corruptions import corruptions, self_test
from fuzzer.verify.examine import Bench, Examined, ask_oracle, examine, large_gaps, passed, verdict_of
from fuzzer.verify.judge import OracleAnswer
from fuzzer.verify.noise import noise_floor
from fuzzer.verify.screen import FloorScreen, Nearness, nearness
from fuzzer.verify.vacuity import Vacuity, informative_leaves
from fuzzer.verify.verdict import Blame, Kind, Outcome, Verdict

torch.set_num_threads(1)


def normal(*shape: int, seed: int = 1, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


X = normal(8, 32)


class Table:
    """Two functions and their oracle, ready to be examined."""

    def __init__(self, first: Any, second: Any, *, oracle: bool = True, seed: Seed | None = None) -> None:
        modules = [side if isinstance(side, nn.Module) else Function(side) for side in (first, second)]
        self.seed = seed or seed_for([X])
        self.reference, self.target = (Local(self.seed, "eager:cpu", module, [X]) for module in modules)
        self.oracle = Local(self.seed, ORACLE, modules[0], [X]) if oracle else None

    def examine(self, x: Tensor = X, **how: Any) -> Examined:
        sample = named([x])
        answers = [side.run(sample, rng_seed=RNG_SEED) for side in (self.reference, self.target)]
        return self.examine_answers(*answers, x=x, **how)

    def examine_answers(self, reference: Answer, target: Answer, x: Tensor = X, **how: Any) -> Examined:
        bench = Bench(self.seed, self.reference, self.target, self.oracle)  # type: ignore[arg-type]
        given_ = {"rng_seed": RNG_SEED, "vacuity": None, "screen": None} | how
        return examine(bench, named([x]), reference, target, **given_)

    @property
    def requests(self) -> int:
        """How often the oracle was asked."""
        assert self.oracle is not None
        return len(self.oracle.calls)


def raises(x: Tensor) -> Tensor:
    raise IndexError("index 7 is out of range")


def straight(x: Tensor) -> Tensor:
    return torch.tanh(x).sum(-1)


def reverse(x: Tensor) -> Tensor:
    return torch.tanh(x.flip(-1)).sum(-1)


# Answers without leaves.


def test_both_that_raise_are_not_compared() -> None:
    both = Table(raises, raises).examine().verdict
    assert (both.outcome, both.compared, both.differences) == (Outcome.NOT_COMPARED, 0, [])
    assert both.notes == ["both sides raise: IndexError and IndexError"]


def only_in_float32(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        raise RuntimeError("no kernel for Float")
    return straight(x)


def dtype_in_words(x: Tensor) -> Tensor:
    raise RuntimeError(f"no kernel for {'Float' if x.dtype == torch.float32 else 'Double'}")


def one_error_for_each_dtype(x: Tensor) -> Tensor:
    raise ValueError("too coarse") if x.dtype == torch.float32 else OverflowError("too fine")


def not_in_float64(x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise NotImplementedError("no float64")
    return straight(x)


@pytest.mark.parametrize(
    ("first", "second", "side", "blame", "told"),
    [
        (straight, raises, "target", Blame.TARGET, ", and so does float64"),
        (only_in_float32, straight, "reference", Blame.REFERENCE, ", and so does float64"),
        (raises, straight, "reference", Blame.TARGET, "the model refuses this input, and the target does not"),
        (dtype_in_words, straight, "reference", Blame.TARGET, "the model refuses this input, and the target does not"),
        (one_error_for_each_dtype, straight, "reference", Blame.UNKNOWN, ""),
        (not_in_float64, raises, "target", Blame.UNKNOWN, ""),
    ],
)
def test_an_exception_is_blamed_by_what_float64_does(
    first: Any, second: Any, side: str, blame: Blame, told: str
) -> None:
    found = Table(first, second).examine().verdict
    assert (found.outcome, found.blame, found.judged) == (Outcome.MISMATCH, blame, True)
    (difference,) = found.differences
    assert difference.kind is Kind.EXCEPTION
    assert difference.message.startswith(f"the {side} raises, the other side answers")
    assert difference.message.endswith(told)
    assert ": " in (difference.reference if side == "reference" else difference.target)
    assert (blame is Blame.UNKNOWN) == any("no float64 answer" in note for note in found.notes)


def test_without_an_oracle_nobody_is_blamed_for_an_exception() -> None:
    found = Table(straight, raises, oracle=False).examine().verdict
    assert (found.outcome, found.blame, found.judged) == (Outcome.MISMATCH, Blame.UNKNOWN, False)
    assert found.notes == ["not judged: there is no oracle"]


def test_the_words_of_a_death_say_which_side_died_and_what_the_other_did() -> None:
    table = Table(straight, straight)
    death, answer = Answer(death=Death("crash", "killed by SIGSEGV")), Answer({"$": X})
    error = Answer(failure=Failure("exception", "ValueError", "no"))
    for sides, message in (
        ((death, answer), "the reference dies (killed by SIGSEGV); the other side answers"),
        ((error, death), "the target dies (killed by SIGSEGV); the other side raises"),
    ):
        (difference,) = table.examine_answers(*sides).verdict.differences
        assert difference.message == message
    assert table.requests == 0


def test_a_death_is_blamed_on_the_side_that_died_even_where_the_other_raised() -> None:
    table = Table(straight, straight)
    death = Answer(death=Death("crash", "killed by SIGSEGV"))
    error = Answer(failure=Failure("exception", "ValueError", "no"))
    for reference, target, blame in (
        (Answer({"$": X}), death, Blame.TARGET),
        (error, death, Blame.TARGET),
        (death, Answer({"$": X}), Blame.REFERENCE),
        (death, death, Blame.BOTH),
    ):
        found = table.examine_answers(reference, target).verdict
        assert (found.outcome, found.blame) == (Outcome.MISMATCH, blame)
        assert {d.kind for d in found.differences} == {Kind.CRASH}


@pytest.mark.parametrize("kind", ["internal", "unsupported"])
def test_our_own_failures_and_refused_inputs_are_no_findings(kind: str) -> None:
    failed = Answer(failure=Failure(kind, "ProtocolError", "cut short"))
    for answers in ((failed, Answer({"$": X})), (Answer({"$": X}), failed)):
        found = Table(straight, straight).examine_answers(*answers).verdict
        assert (found.outcome, found.differences) == (Outcome.NOT_COMPARED, [])
        assert "cut short" in found.notes[0]


# The screen.


def test_what_is_equal_asks_nobody() -> None:
    table = Table(straight, straight)
    assert table.examine().verdict.outcome is Outcome.PASS
    assert table.requests == 0


def knowing(table: Table, inputs: int) -> FloorScreen:
    """A screen that may pass after so many judged inputs, and has had them."""
    screen = FloorScreen(least=inputs)
    for draw in range(inputs):
        table.examine(normal(8, 32, seed=draw), screen=screen, always_judge=True)
    return screen


def test_the_screen_spares_the_judge_once_it_knows_the_floor() -> None:
    table, screen = Table(straight, reverse), FloorScreen(least=2)
    for asked in (1, 2):
        found = table.examine(screen=screen).verdict
        assert (found.outcome, found.judged, table.requests) == (Outcome.PASS, True, asked)
    spared = table.examine(screen=screen).verdict
    assert (spared.outcome, spared.judged, table.requests) == (Outcome.PASS, False, 2)
    anyway = table.examine(screen=screen, always_judge=True).verdict
    assert (anyway.outcome, anyway.judged, table.requests) == (Outcome.PASS, True, 3)


@given(places=st.integers(1, 4000), index=st.integers(0, 7))
@settings(deadline=None, max_examples=40)
def test_the_screen_is_stricter_than_the_judge(places: int, index: int) -> None:
    """Whatever stands when it is judged must not pass the screen that has learnt from the same input."""
    table, screen = Table(straight, reverse), FloorScreen(least=1)
    table.examine(screen=screen)
    reference = table.reference.run(named([X]), rng_seed=RNG_SEED)
    assert reference.leaves is not None
    wrong = reference.leaves["$"].clone()  # type: ignore[union-attr]
    wrong[index] += places * 2.0**-21
    screened = table.examine_answers(reference, Answer({"$": wrong}), screen=screen).verdict
    judged = table.examine_answers(reference, Answer({"$": wrong}), screen=screen, always_judge=True).verdict
    assert judged.judged
    assert screened.outcome is judged.outcome


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_noise_of_answers_of_any_size_passes_and_one_element_a_little_off_is_judged(scale: float) -> None:
    """What a sum of another order does on inputs never seen, and a fault of 6 floors or of 1e-4 of the spread."""

    def linear(x: Tensor) -> Tensor:
        return x.sum(-1)

    def backwards(x: Tensor) -> Tensor:
        return x.flip(-1).sum(-1)

    table = Table(linear, backwards)
    screen = knowing(table, 12)
    x = normal(8, 32, seed=77, scale=scale)
    asked = table.requests
    assert table.examine(x, screen=screen).verdict.outcome is Outcome.PASS
    assert table.requests == asked, "plain noise asks nobody"
    assert table.oracle is not None
    measured = ask_oracle(table.oracle, named([x]), rng_seed=RNG_SEED)  # type: ignore[arg-type]
    floor = noise_floor("$", measured)
    reference = table.reference.run(named([x]), rng_seed=RNG_SEED)
    assert floor is not None
    assert reference.leaves is not None
    answer = reference.leaves["$"]
    assert isinstance(answer, Tensor)
    for index in range(8):
        step = float(torch.nextafter(answer[index].abs(), torch.tensor(math.inf)) - answer[index].abs())
        for size in (6 * (float(floor[index]) + step), 1e-4 * float(answer.std())):
            wrong = answer.clone()
            wrong[index] += size
            sides = (reference, Answer({"$": wrong}))
            assert passed(table.seed, *sides, vacuity=None, screen=screen) is None, (index, size)


# Scales by hand. Of the sizes [1, 2, 4, 8] the median (the lower of two) is 2 and the lower quartile 1, so that what is
# typical is min(2 / 4, 1) = 1/2.


def test_the_screen_keeps_the_smallest_share_of_any_element_and_input_for_all_shapes() -> None:
    screen = FloorScreen(threshold=5.0, least=2)
    values = torch.tensor([1.0, -2.0, 4.0, 8.0])  # beside 9/16, 10/16, 12/16 and 1
    steps = torch.tensor([2.0**-23, 2.0**-22, 2.0**-21, 2.0**-20]).double()
    screen.learn({"$": torch.tensor([9.0, 10.0, 6.0, 16.0]).double() - steps}, {"$": values})  # shares 16, 16, 8, 16
    assert screen.allowance("$", values) is None, "one input is not enough to know the smallest"
    screen.learn({"$": torch.tensor([9.0, 10.0, 12.0, 2.0]).double() - steps}, {"$": values})  # 16, 16, 16, 2
    screen.learn({"$": torch.tensor([9.0, 10.0, 12.0, 16.0]).double() - steps}, {"$": values})  # all 16
    allowed = screen.allowance("$", torch.tensor([[16.0], [0.0]]))  # typical is 16 / 4
    assert allowed is not None
    assert allowed.flatten().tolist() == pytest.approx([4 * 2 * (4 + 1), 4 * 2 * 4], rel=1e-12)
    assert screen.allowance("other", values) is None


def test_the_screen_measures_by_the_small_part_of_a_leaf_most_of_which_is_huge() -> None:
    screen = FloorScreen(threshold=5.0, least=1)
    screen.learn({"$": torch.full((4,), 5 / 16).double()}, {"$": torch.ones(4)})  # beside 1/4 + 1/16
    allowed = screen.allowance("$", torch.tensor([1.0, 1e30, 1e30, 1e30]))
    assert allowed is not None
    assert allowed[0].item() == pytest.approx(4 * (1 + 1 / 16), rel=1e-6)


def test_the_screen_allows_a_small_answer_no_more_of_itself_than_a_large_one() -> None:
    """A target that loses all of 1e-7 is not within the noise of answers near 1."""
    screen = FloorScreen(threshold=5.0, least=1)
    screen.learn({"$": torch.tensor([2.0**-22 - 2.0**-23]).double()}, {"$": torch.tensor([1.0])})
    for value in (2.0**-23, 1.0, 1024.0):
        allowed = screen.allowance("$", torch.tensor([value]))
        assert allowed is not None
        assert allowed.item() == pytest.approx(4 * 2.0**-22 * value, rel=1e-12)


def test_the_screen_knows_nothing_beside_nan_and_infinities_or_zeros_alone() -> None:
    screen = FloorScreen(threshold=5.0, least=1)
    screen.learn({"$": torch.ones(3).double()}, {"$": torch.tensor([math.nan, math.inf, 0.0])})
    assert screen.allowance("$", torch.ones(3)) is None, "an answer without a size teaches nothing"
    screen.learn({"$": torch.tensor([0.0, 0.0, 5.0]).double()}, {"$": torch.tensor([math.nan, math.inf, 16.0])})
    allowed = screen.allowance("$", torch.tensor([math.nan, math.inf, 16.0]))
    assert allowed is not None
    assert allowed.isnan().tolist() == [True, True, False]
    assert allowed[2].item() == pytest.approx(4 * 5.0, rel=1e-6)
    assert screen.allowance("$", torch.zeros(3)) is None


# The oracle.


numbers = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-23, 1.0 + 2**-20, 1e-30, -3.0, 3e38, math.inf, math.nan])


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.int64]),
    st.sampled_from([None, Tolerance(atol=0.0, rtol=1e-6), Tolerance(atol=10.0, rtol=0.0)]),
    st.sampled_from([None, 1e-7, 1.0]),
    st.booleans(),
)
def test_the_quick_look_lets_pass_only_what_the_comparison_calls_equal(
    pairs: list[tuple[float, float]],
    dtype: torch.dtype,
    tolerance: Tolerance | None,
    floor: float | None,
    signed_zero: bool,
) -> None:
    finite = dtype.is_floating_point or all(math.isfinite(x) and abs(x) < 9 for pair in pairs for x in pair)
    sides = [[pair[i] if finite else 1.0 + i for pair in pairs] for i in (0, 1)]
    r, t = ({"$": torch.tensor(side, dtype=torch.float64).to(dtype)} for side in sides)
    screen = FloorScreen(least=1)
    if floor is not None:
        screen.learn({"$": torch.full((len(pairs),), floor, dtype=torch.float64)}, {"$": torch.ones(len(pairs))})
    near = nearness(r, t, tolerance=tolerance, signed_zero=signed_zero, screen=screen)
    seen = compare(r, t, tolerance=tolerance, signed_zero=signed_zero, screen=screen)
    if near is not Nearness.BEYOND:
        assert not seen.differences
        assert not large_gaps(Verdict(Outcome.PASS, stats=seen.stats), r)  # type: ignore[arg-type]
    assert (near is Nearness.SAME) == (r["$"].numpy().tobytes() == t["$"].numpy().tobytes())


def test_what_passes_at_a_look_is_what_a_whole_examination_passes() -> None:
    table, screen = Table(straight, reverse), FloorScreen(least=1)
    sides = [table.reference.run({"a": X}, rng_seed=RNG_SEED), table.target.run({"a": X}, rng_seed=RNG_SEED)]
    assert passed(table.seed, *sides, vacuity=None, screen=screen) is None, "no floor is known yet"
    table.examine(X, screen=screen)
    found = passed(table.seed, *sides, vacuity=None, screen=screen)
    assert found is not None
    whole = table.examine(X, screen=screen)
    assert (found.verdict.outcome, found.verdict.compared) == (whole.verdict.outcome, whole.verdict.compared)
    assert (
        passed(table.seed, sides[0], Answer(changed=["input a"], leaves=sides[1].leaves), vacuity=None, screen=screen)
        is None
    )
    assert passed(table.seed, sides[0], Answer(), vacuity=None, screen=screen) is None


def doubled(x: Tensor) -> Tensor:
    return 2 * torch.tanh(x).sum(-1)


def test_without_an_oracle_a_difference_stands_unjudged_and_the_note_says_why() -> None:
    found = Table(straight, doubled, oracle=False).examine().verdict
    assert (found.outcome, found.judged, found.blame) == (Outcome.MISMATCH, False, Blame.UNKNOWN)
    assert found.notes == ["not judged: there is no oracle"]


def test_without_an_oracle_what_may_be_rounding_is_not_reported() -> None:
    found = Table(straight, reverse, oracle=False).examine().verdict
    assert (found.outcome, found.judged, found.differences) == (Outcome.PASS, False, [])
    assert found.notes == ["not judged: there is no oracle"]


def test_an_oracle_that_fails_is_told_and_the_difference_stands() -> None:
    table = Table(straight, doubled)
    table.oracle = Local(table.seed, ORACLE, Function(raises), [X])
    found = table.examine().verdict
    assert (found.outcome, found.judged) == (Outcome.MISMATCH, False)
    assert found.notes == ["not judged: the oracle failed: IndexError: index 7 is out of range"]


def test_the_oracles_answer_comes_with_the_verdict() -> None:
    found = Table(straight, reverse).examine()
    assert found.oracle is not None
    assert found.oracle.truth is not None
    assert torch.equal(found.oracle.truth["$"], torch.tanh(X.double()).sum(-1))  # type: ignore[arg-type]


# Repeats.


class Forgetful(nn.Module):
    """Answers something else each time it is asked."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step, self.calls = step, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.step * self.calls


@pytest.mark.parametrize("who", [Blame.REFERENCE, Blame.TARGET])
def test_a_side_that_disagrees_with_itself_is_the_finding(who: Blame) -> None:
    sides: list[Any] = [lambda x: x, Forgetful(0.1)]
    table = Table(*(sides if who is Blame.TARGET else sides[::-1]))
    found = table.examine().verdict
    assert [(d.kind, d.blame) for d in found.differences] == [(Kind.NONDETERMINISM, who)]


def test_a_little_wobble_does_not_excuse_a_large_difference() -> None:
    class Wobbling(Forgetful):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 1.0

    found = Table(lambda x: x, Wobbling(1e-4)).examine().verdict
    assert [(d.kind, d.blame) for d in found.differences] == [(Kind.VALUE, Blame.TARGET)]


def test_changed_inputs_are_a_finding_though_the_answers_agree() -> None:
    leaves = {"$": X}
    found = Table(lambda x: x, lambda x: x).examine_answers(
        Answer(dict(leaves)), Answer(dict(leaves), changed=["input a"])
    )
    assert [(d.kind, d.blame) for d in found.verdict.differences] == [(Kind.MUTATION, Blame.TARGET)]
    assert found.verdict.outcome is Outcome.MISMATCH


# Vacuous verdicts and the self-test.


def ask_with(oracle: OracleAnswer) -> Callable[[bool], OracleAnswer]:
    return lambda decide: oracle


def test_agreement_on_nothing_is_vacuous_and_a_mismatch_outranks_it() -> None:
    nothing = Vacuity(reasons={"$": "constant whatever the input"})
    same, _ = verdict_of(seed_for([X]), {"$": X}, {"$": X}, ask_with(OracleAnswer({}, None, [])), vacuity=nothing)
    assert (same.outcome, same.compared, same.informative) == (Outcome.VACUOUS, X.numel(), 0)
    wrong, _ = verdict_of(seed_for([X]), {"$": X}, {"$": X + 1}, ask_with(OracleAnswer({}, None, [])), vacuity=nothing)
    assert wrong.outcome is Outcome.MISMATCH
    empty, _ = verdict_of(seed_for([X]), {}, {}, ask_with(OracleAnswer({}, None, [])), vacuity=None)
    assert empty.outcome is Outcome.VACUOUS


def self_test_with(tolerance: Tolerance | None) -> Any:
    """The self-test of a small network under a seed's own tolerance, as a campaign runs it."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 16), nn.GELU(), nn.Linear(16, 6))
    seed = seed_for([X], tolerance=tolerance)
    table = Table(module, module, seed=seed)
    outputs = table.reference.run(named([X]), rng_seed=RNG_SEED).leaves
    assert outputs is not None
    assert table.oracle is not None
    asked = [table.oracle.run(named([X]), rng_seed=RNG_SEED, kind="judge", draws=8, amplitude=1).leaves]
    assert asked[0] is not None
    oracle = OracleAnswer.from_leaves(asked[0])
    return self_test(
        outputs,
        lambda leaves: verdict_of(seed, outputs, leaves, ask_with(oracle), vacuity=None)[0],
        tolerance=tolerance,
    )


@pytest.mark.parametrize(
    "tolerance",
    [None, Tolerance(atol=1e-3, rtol=1e-3), Tolerance(atol=1e-2), Tolerance(rtol=5e-2), Tolerance(atol=1e-6)],
)
def test_an_ordinary_tolerance_is_not_called_blind(tolerance: Tolerance | None) -> None:
    found = self_test_with(tolerance)
    assert found.missed == []
    assert {"one element moved", "two elements swapped", "a leaf zeroed", "a NaN set"} <= set(found.caught)
    assert found.ok


def test_a_tolerance_beyond_the_spread_is_seen_by_the_self_test_and_called_vacuous() -> None:
    tolerance = Tolerance(atol=100.0)
    assert {"two elements swapped", "a leaf zeroed"} <= set(self_test_with(tolerance).missed)
    assert informative_leaves([{"$": X}, {"$": X * 2}], tolerance).vacuous


@given(atol=st.floats(0, 1), rtol=st.floats(0, 0.1), seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(deadline=None, max_examples=50)
def test_the_element_that_is_moved_leaves_the_tolerance(atol: float, rtol: float, seed: int, scale: float) -> None:
    leaf = normal(6, 5, seed=seed, scale=scale)
    rng = torch.Generator().manual_seed(seed)
    moved = corruptions({"$": leaf}, rng, tolerance=Tolerance(atol=atol, rtol=rtol))[0]
    assert moved.applicable
    gap = (moved.leaves["$"].double() - leaf.double()).abs()  # type: ignore[union-attr]
    at = gap > 0
    assert int(at.sum()) == 1
    assert float(gap[at]) > atol + rtol * float(leaf[at].abs().double())
    assert float(gap[at]) >= 0.99e-3 * float(leaf.double().std(correction=0))


def test_the_floor_of_a_python_float_is_measured() -> None:
    found = Table(lambda x: (x, float(x.sum())), lambda x: (x, float(x.flip(-1).sum()))).examine()
    assert (found.verdict.outcome, found.verdict.differences) == (Outcome.PASS, [])
    assert found.oracle is not None
    floor = noise_floor("[1]", found.oracle)
    assert floor is not None
    assert 0 < float(floor) < 1e-3
