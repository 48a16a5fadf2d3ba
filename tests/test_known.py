"""The table of known differences: all that diverges is flagged, and nothing else is."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from benchmarks.known_cases import BOTH_ORT, CASES, EAGER, INDUCTOR, ORT, ORT_PLAIN, Case, Kind, by_name
from benchmarks.known_versions import SINCE, kind_on
from benchmarks.local import RNG_SEED, Local, between, named, seed_for
from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.session import Session, State, Where
from fuzzer.diagnose.provisional import provisional
from fuzzer.seeds import ModelSpec
from fuzzer.verify.examine import Examined
from fuzzer.verify.verdict import Blame, Outcome
from fuzzer.verify.verdict import Kind as DifferenceKind

torch.set_num_threads(1)

slow = pytest.mark.slow


def spec_of(case: Case, target: str) -> str:
    """The target with the exporter that the case needs."""
    if case.exporter == "dynamo" or target == INDUCTOR:
        return target
    return f"{target}{'&' if '?' in target else '?'}exporter={case.exporter}"


@functools.cache
def sides(name: str, target: str) -> tuple[Local, Local, Local]:
    """Reference, target and oracle of a case, each with a module of its own."""
    case = by_name(name)
    of = seed_for(case.ordinary(), dynamic=case.dynamic)
    specs = (EAGER, spec_of(case, target), ORACLE)
    reference, other, oracle = (Local(of, spec, case.module(), case.ordinary()) for spec in specs)
    return reference, other, oracle


@functools.cache
def examined(name: str, target: str, *, ordinary: bool = False) -> Examined:
    case = by_name(name)
    of = seed_for(case.ordinary(), dynamic=case.dynamic)
    return between(of, *sides(name, target), case.ordinary() if ordinary else case.inputs())


def runs_on(target: str, *kinds: Kind) -> list[str]:
    """Names of the cases that are of these kinds on `target`, and that it takes and survives."""
    taken = [c for c in CASES if target in c.targets and target not in c.refused and not c.kills]
    return [c.name for c in taken if kind_on(c, target, torch.__version__) in kinds]


def on(targets: Iterable[str], *kinds: Kind) -> list[object]:
    """Pairs of case and target; all but ONNX Runtime's with every optimisation are slow."""
    pairs = [(name, target) for target in targets for name in runs_on(target, *kinds)]
    return [pytest.param(*pair, marks=[] if pair[1] == ORT else slow) for pair in pairs]


def label_of(name: str, target: str) -> str:
    """The first label of what was found on a case, without the mark of a suspicion."""
    found = examined(name, target)
    truth = None if found.oracle is None else found.oracle.truth
    sample = named(by_name(name).inputs())
    diagnosis = provisional(found.verdict, found.reference.leaves, found.target.leaves, truth, sample, target)
    return str(diagnosis.label).rstrip("?")


ALL = (ORT, ORT_PLAIN, INDUCTOR)


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize(("name", "target"), on(ALL, Kind.DIVERGES))
def test_what_diverges_is_a_mismatch(name: str, target: str) -> None:
    assert examined(name, target).verdict.outcome is Outcome.MISMATCH


@pytest.mark.parametrize(("name", "target"), on(ALL, Kind.DIVERGES))
def test_what_diverges_agrees_on_ordinary_inputs(name: str, target: str) -> None:
    found = examined(name, target, ordinary=True).verdict
    if name == "clamp_beyond_uint8":  # the reference raises on every input
        assert [d.kind for d in found.differences] == [DifferenceKind.EXCEPTION]
    else:
        assert (found.outcome, found.differences) == (Outcome.PASS, [])


@pytest.mark.parametrize(("name", "target"), on(ALL, Kind.CONTROL, Kind.BENIGN))
def test_controls_and_amplified_rounding_are_no_mismatch(name: str, target: str) -> None:
    for ordinary in (False, True):
        found = examined(name, target, ordinary=ordinary).verdict
        assert (found.outcome, found.differences) == (Outcome.PASS, [])


@pytest.mark.parametrize("name", runs_on(ORT, Kind.BENIGN))
def test_amplified_rounding_needs_the_judge_to_be_told_from_a_fault(name: str) -> None:
    found = examined(name, ORT).verdict
    assert found.judged
    assert any("rounding only" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "blame"),
    [
        ("average_pool_divisor", Blame.TARGET),
        ("expm1_tiny", Blame.TARGET),
        ("maxpool_nan", Blame.TARGET),
        ("integer_power", Blame.TARGET),
        ("unique_nan", Blame.TARGET),
        ("float16_log_exp", Blame.REFERENCE),
        ("product_order", Blame.BOTH),
        ("floor_division_of_floats", Blame.NEITHER),
        ("sort_ties", Blame.NEITHER),
        ("sigmoid_gate", Blame.NEITHER),
    ],
)
def test_the_side_that_the_table_calls_wrong_is_blamed(name: str, blame: Blame) -> None:
    assert examined(name, ORT).verdict.blame is blame


@pytest.mark.parametrize(("name", "target"), [(c.name, t) for c in CASES for t in c.refused if t in BOTH_ORT])
def test_a_target_that_takes_no_such_module_refuses_it_with_a_reason(name: str, target: str) -> None:
    case = by_name(name)
    found = Local(
        seed_for(case.ordinary(), dynamic=case.dynamic), spec_of(case, target), case.module(), case.ordinary()
    )
    assert found.state is State.REFUSED
    assert found.reason


def test_the_first_label_of_most_findings_is_the_tables() -> None:
    wrong = {}
    names = runs_on(ORT, Kind.DIVERGES)
    for name in names:
        label, expected = label_of(name, ORT), by_name(name).label
        if label != expected:
            wrong[name] = (label, expected)
    assert len(wrong) <= len(names) / 10, wrong


@slow
@pytest.mark.parametrize(("name", "target"), [("lstm_of_nothing", ORT), ("roi_align_nan", EAGER)])
def test_what_kills_a_process_is_told_by_the_session(name: str, target: str) -> None:
    case = by_name(name)
    model = ModelSpec(source="builder", builder="benchmarks.known_cases:module_of", path=".", args={"name": name})
    of = seed_for(case.ordinary(), dynamic=case.dynamic).model_copy(update={"model": model})
    session = Session(of.at(Path(__file__).parent.parent), target, named(case.ordinary()), Where(cache=None))
    try:
        assert session.prepare() is State.READY, session.reason
        assert session.run(named(case.ordinary()), rng_seed=RNG_SEED).leaves is not None
        death = session.run(named(case.inputs()), rng_seed=RNG_SEED).death
    finally:
        session.close()
    assert death is not None
    assert death.kind == "crash"


def test_before_the_version_that_changed_a_case_the_opposite_is_expected() -> None:
    for name, target in SINCE:
        case = by_name(name)
        assert kind_on(case, target, "2.14.1+cpu") is case.kind
        assert {kind_on(case, target, "2.11.0"), case.kind} == {Kind.DIVERGES, Kind.CONTROL}
        assert kind_on(case, ORT, "2.11.0") is case.kind
