"""The drift taxonomy as data: every label there is, with what it says, and a label as a finding carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

UNKNOWN = "unknown"

#: The classes in the order of the taxonomy, with the letter that the study (arXiv 2509.06977) gave them.
CLASSES: dict[str, str] = {"execution": "A", "structure": "B", "numeric": "C", "order": "C", "state": "C"}


class Entry(NamedTuple):
    """What a label says, and the rerun with one thing changed that confirms it; "" where seeing it is proof."""

    sentence: str
    intervention: str


TAXONOMY: dict[str, Entry] = {
    "execution/unsupported": Entry(
        "export, lowering or compilation refuses the model", "the same graph without that operator prepares"
    ),
    "execution/exception": Entry("one side raises, the other answers", "the nearest input that does not raise"),
    "execution/crash": Entry("the process died", "reproduces in a fresh process"),
    "execution/hang": Entry("no answer within the deadline", "reproduces with a longer deadline"),
    "execution/out-of-memory": Entry("the memory limit was exceeded", "a smaller shape passes"),
    "structure/arity": Entry("the outputs differ in number or in keys", ""),
    "structure/shape": Entry("a leaf has another shape", "compile again with this input as the example"),
    "structure/dtype": Entry("a leaf has another dtype or layout", "compile again with this input as the example"),
    "structure/specialisation": Entry(
        "right on the example's shape or value only", "compile again with this input as the example: gone"
    ),
    "numeric/rounding": Entry(
        "within the model's own noise, over the owner's tolerance", "perturbed runs of the reference reach the same gap"
    ),
    "numeric/accumulation": Entry("the error of a long reduction", "half the terms: the error about halves"),
    "numeric/reduced-precision": Entry(
        "computed in fewer bits than the reference (TF32, float16, bfloat16)", "full precision on"
    ),
    "numeric/approximation": Entry(
        "a special function loses accuracy in part of its domain", "that operator on the reference's implementation"
    ),
    "numeric/subnormal": Entry(
        "values below the smallest normal number differ or vanish", "scale by a power of two, or flush on both sides"
    ),
    "numeric/nonfinite": Entry(
        "NaN or infinity on one side, or at other places", "clamp the input to finite values, or that operator alone"
    ),
    "numeric/overflow": Entry(
        "beyond the range of the dtype used inside", "scale down, or that operator in a wider dtype"
    ),
    "numeric/integer": Entry(
        "integer arithmetic or conversion at the edge of its range", "operands inside the defined range"
    ),
    "numeric/signed-zero": Entry("+0 against −0, and what follows from it", "replace −0 by +0"),
    "numeric/wrong-value": Entry("beyond any noise: another value", "the stage or operator on the reference: gone"),
    "order/tie": Entry("indices or order differ, the values gathered agree", "ties broken by rank times a small step"),
    "order/near-tie": Entry(
        "a decision flips that hangs on a margin within the noise", "margin widened past the floor"
    ),
    "order/nms": Entry("the set of kept boxes differs", "deterministic adapter before NMS"),
    "order/duplicate-index": Entry("repeated indices are written in another order", "indices made unique"),
    "state/nondeterminism": Entry(
        "a backend disagrees with itself", "deterministic algorithms on, one thread, seeded generator"
    ),
    "state/rng": Entry("repeatable, but other random numbers are drawn", "the reference's generator on the target"),
    "state/batch": Entry("a sample's answer depends on its batch", "run alone"),
    "state/recompile": Entry("first and later calls differ", "fresh process, same input"),
    "state/mutation": Entry("a run changed parameters, buffers or inputs", "copies handed in"),
}


@dataclass(frozen=True)
class Label:
    """A label of the taxonomy: `class/cause` where confirmed, `class/cause?` where suspected.

    A cause may be `unknown`, which is never marked. Raises ValueError on what the taxonomy does not have.
    """

    cls: str
    cause: str
    confirmed: bool = False

    def __post_init__(self) -> None:
        if self.cls not in CLASSES or (self.cause != UNKNOWN and self.name not in TAXONOMY):
            raise ValueError(f"the taxonomy has no label {self.name!r}")

    @classmethod
    def parse(cls, text: str) -> Label:
        """The inverse of `str()`. Raises ValueError where `text` is no label."""
        name, _, cause = text.removesuffix("?").partition("/")
        confirmed = not text.endswith("?") and cause != UNKNOWN
        return cls(name, cause, confirmed)

    @property
    def name(self) -> str:
        """`class/cause` without the mark: what an `accept:` pattern matches."""
        return f"{self.cls}/{self.cause}"

    @property
    def sentence(self) -> str:
        return TAXONOMY[self.name].sentence if self.cause != UNKNOWN else "nothing tried explains it"

    @property
    def study_type(self) -> str:
        """The study's letter: A execution, B structure, C all that follows."""
        return CLASSES[self.cls]

    def __str__(self) -> str:
        return self.name if self.confirmed or self.cause == UNKNOWN else f"{self.name}?"


def suspected(name: str) -> Label:
    """The label `name` before any intervention: confirmed only where the taxonomy asks for none."""
    cls, _, cause = name.partition("/")
    return Label(cls, cause, confirmed=name in TAXONOMY and not TAXONOMY[name].intervention)


@dataclass(frozen=True)
class Diagnosis:
    """A finding's label with the evidence for it, one short sentence each."""

    label: Label
    evidence: list[str] = field(default_factory=list)

    @property
    def study_type(self) -> str:
        return self.label.study_type
