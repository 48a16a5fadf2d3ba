"""Which of a verdict's differences a finding is named after."""

from __future__ import annotations

from fuzzer.verify.verdict import Blame, Difference, Kind, Verdict

#: The kinds, gravest first. What says nothing about the values (a dtype) comes after what does.
GRAVITY: tuple[Kind, ...] = (
    Kind.CRASH,
    Kind.HANG,
    Kind.MEMORY,
    Kind.MUTATION,
    Kind.NONDETERMINISM,
    Kind.EXCEPTION,
    Kind.ARITY,
    Kind.OBJECT,
    Kind.SHAPE,
    Kind.NONFINITE,
    Kind.INTEGER,
    Kind.VALUE,
    Kind.TASK,
    Kind.DTYPE,
    Kind.SIGNED_ZERO,
)


def primary(verdict: Verdict) -> Difference | None:
    """The gravest difference, the first of its kind in the order of the leaves; None where there is none.

    What the judge could not explain by noise comes before what it could, so that one wrong value is not hidden behind
    a decision that flipped within the noise.
    """
    ranked = sorted(verdict.differences, key=lambda d: (_excused(d), GRAVITY.index(d.kind)))
    return ranked[0] if ranked else None


def _excused(difference: Difference) -> bool:
    return difference.near_tie or difference.blame is Blame.NEITHER
