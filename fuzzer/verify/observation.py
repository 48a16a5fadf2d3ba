"""Observe a finding: ask both sides and the oracle for what passes on the way, and draw the curve.

Each side also runs unobserved, so that what observation changes is seen and said.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fuzzer.backends.observe import Observation, output_values
from fuzzer.backends.oracle_observe import split
from fuzzer.backends.session import Session, State
from fuzzer.trees import Leaves
from fuzzer.verify.activations import Activations, GrowthCurve, growth
from fuzzer.verify.compare import compare
from fuzzer.verify.examine import Bench

#: Runs under random rounding.
DRAWS = 4


def observe_finding(bench: Bench, sample: Mapping[str, Tensor], rng_seed: int) -> Activations:
    """Where drift starts on this input. Never raises on the models' account: `reason` then says what went wrong.

    Sessions that are not ready are prepared. Without an oracle gaps are counted in steps of the dtype alone.
    """
    seen: dict[str, Observation] = {}
    plain: dict[str, Leaves] = {}
    for side, session in (("reference", bench.reference), ("target", bench.target)):
        if not _ready(session):
            return _failed(f"the {side} is not ready: {session.reason}")
        answer = session.run(sample, rng_seed=rng_seed)
        watched = session.run(sample, rng_seed=rng_seed, observe=True) if answer.leaves is not None else answer
        if answer.leaves is None or watched.leaves is None:
            return _failed(f"the {side}: {watched.error or answer.error}")
        try:
            seen[side], plain[side] = Observation.from_leaves(watched.leaves), answer.leaves
        except ValueError as error:
            return _failed(f"the {side}: {error}")
    truth, floors = _oracle(bench.oracle, sample, rng_seed)
    return conclude(seen["reference"], seen["target"], plain["reference"], plain["target"], floors, truth)


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


def _oracle(
    session: Session | None, sample: Mapping[str, Tensor], rng_seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Truth and floors; none where there is no oracle or it fails."""
    if session is None or not _ready(session):
        return {}, {}
    answer = session.run(
        sample, rng_seed=rng_seed, observe=True, kind="judge", draws=DRAWS, amplitude=1, decide=False, truth=True
    )
    return ({}, {}) if answer.leaves is None else split(answer.leaves)[:2]


def _ready(session: Session) -> bool:
    return session.state is State.READY or session.prepare() is State.READY


def _failed(reason: str) -> Activations:
    return Activations(GrowthCurve(), reason=reason)
