"""Observe a finding: ask both sides and the oracle for what passes on the way, and draw the curve.

Each side also runs unobserved, so that what observation changes is seen and said.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fuzzer.backends.observe import Observation, output_values
from fuzzer.backends.oracle_observe import split
from fuzzer.backends.session import Answer, Session, State
from fuzzer.trees import Leaves
from fuzzer.verify.activations import Activations, GrowthCurve, growth
from fuzzer.verify.compare import compare
from fuzzer.verify.examine import Bench

#: Runs under random rounding.
DRAWS = 4
#: Side → its unobserved output and its observation.
Sides = dict[str, tuple[Leaves, Observation]]


def observe_finding(bench: Bench, sample: Mapping[str, Tensor], rng_seed: int) -> Activations:
    """Where drift starts on this input. Never raises on the models' account: `reason` then says what went wrong.

    Sessions that are not ready are prepared; all three processes work at the same time. Without an oracle gaps are
    counted in steps of the dtype alone.
    """
    for side, session in (("reference", bench.reference), ("target", bench.target)):
        if not _ready(session):
            return _failed(f"the {side} is not ready: {session.reason}")
    oracle = bench.oracle if bench.oracle is not None and _ready(bench.oracle) else None
    if oracle is not None:
        oracle.begin(sample, rng_seed=rng_seed, observe=True, kind="judge", draws=DRAWS, amplitude=1)
    sides: Sides = {}
    try:
        reason = _observe_sides(bench, sample, rng_seed, sides)
    finally:
        measured = {} if oracle is None else oracle.finish().leaves or {}
    if reason:
        return _failed(reason)
    truth, floors, _ = split(measured)
    (plain_reference, reference), (plain_target, target) = sides["reference"], sides["target"]
    return conclude(reference, target, plain_reference, plain_target, floors, truth)


def _observe_sides(bench: Bench, sample: Mapping[str, Tensor], rng_seed: int, sides: Sides) -> str:
    """Fill in both sides' answers, unobserved and observed; gives what went wrong, if anything did."""
    sessions = {"reference": bench.reference, "target": bench.target}
    answers: dict[tuple[str, bool], Answer] = {}
    for observe in (False, True):
        for session in sessions.values():
            session.begin(sample, rng_seed=rng_seed, observe=observe)
        for side, session in sessions.items():
            answers[side, observe] = session.finish()
        for side in sessions:
            if answers[side, observe].leaves is None:
                return f"the {side}: {answers[side, observe].error}"
    for side in sessions:
        try:
            sides[side] = answers[side, False].leaves or {}, Observation.from_leaves(answers[side, True].leaves or {})
        except ValueError as error:
            return f"the {side}: {error}"
    return ""


def conclude(
    reference: Observation,
    target: Observation,
    plain_reference: Leaves,
    plain_target: Leaves,
    floors: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
) -> Activations:
    """The curve from both sides' observations, with what their unobserved outputs (`plain_…`) tell about it."""
    curve = growth(reference.values, target.values, floors, truth, reference.steps)
    before = growth(output_values(plain_reference), output_values(plain_target), floors, truth)
    changed = [
        side
        for side, plain, watched in (("reference", plain_reference, reference), ("target", plain_target, target))
        if compare(plain, watched.output).differences
    ]
    lost = {name: target.lost.get(name, "not among the target's values") for name in reference.values}
    return Activations(
        curve=curve,
        observed={"reference": reference.how, "target": target.how},
        changed=tuple(changed),
        vanishes=before.output_past and not curve.output_past,
        lost={name: why for name, why in lost.items() if name not in target.values},
    )


def _ready(session: Session) -> bool:
    return session.state is State.READY or session.prepare() is State.READY


def _failed(reason: str) -> Activations:
    return Activations(GrowthCurve(), reason=reason)
