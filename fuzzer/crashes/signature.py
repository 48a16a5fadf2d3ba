"""What makes two findings the same crash: what was observed, and nothing that varies with the input.

The class in a signature must not move when a finding is labelled anew, so it comes from the kind of difference, with
one exception: a difference that consists in other order is `order`, so that a tie that is broken another way does not
hide a wrong value at the same leaf. That is read from the provisional label, which states it only from exact facts of
the outputs (the same rows permuted, equal values gathered, other rows kept). Always pass the provisional label here,
never one that was improved later.

What hangs on near-ties alone has one signature for a target, whichever leaf shows it: five crashes for one decision
that nobody is to blame for would bury the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from fuzzer.backends.spec import BackendSpec
from fuzzer.diagnose import Label, primary
from fuzzer.trees import ROOT
from fuzzer.verify.verdict import Kind, Verdict

#: The kind, in a signature, of all that hangs on near-ties.
NEAR_TIE = "near-tie"

CLASS_OF_KIND: dict[Kind, str] = {
    Kind.ARITY: "structure",
    Kind.OBJECT: "structure",
    Kind.SHAPE: "structure",
    Kind.DTYPE: "structure",
    Kind.NONFINITE: "numeric",
    Kind.VALUE: "numeric",
    Kind.INTEGER: "numeric",
    Kind.SIGNED_ZERO: "numeric",
    Kind.EXCEPTION: "execution",
    Kind.CRASH: "execution",
    Kind.HANG: "execution",
    Kind.MEMORY: "execution",
    Kind.NONDETERMINISM: "state",
    Kind.MUTATION: "state",
    Kind.TASK: "numeric",
}

#: A folder's name has at most 255 bytes on common file systems; the hash tells long names apart.
_SEED_IN_ID = 80


@dataclass(frozen=True)
class Signature:
    """`target` is runtime and device without options; `leaf` a path as the outputs have it."""

    seed: str
    target: str
    cls: str
    leaf: str
    kind: str

    @property
    def hash(self) -> str:
        """Eight hex digits of all five fields."""
        text = json.dumps([self.seed, self.target, self.cls, self.leaf, self.kind], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """The name of the crash and of its folder: readable, stable, safe as a file name."""
        words = [self.seed[:_SEED_IN_ID], *self.target.split(":"), self.hash]
        return re.sub(r"\.\.+", ".", re.sub(r"[^A-Za-z0-9_.-]", "_", "-".join(words))).lstrip(".-") or self.hash


def signature_of(seed_name: str, target: str, verdict: Verdict, label: Label) -> Signature:
    """The signature of a failed verdict, from its primary difference and its provisional label.

    Where everything that differs hangs on near-ties it is `order`, NEAR_TIE, at the root: one flipped decision shows
    at one leaf or at another, as a shape or as values, just as the input has it.
    Raises ValueError on a verdict without differences, and SpecError where `target` is no backend string.
    """
    difference = primary(verdict)
    if difference is None:
        raise ValueError("a verdict without differences has no signature")
    if all(one.near_tie for one in verdict.differences):
        return Signature(seed_name, BackendSpec.parse(target).base, "order", ROOT, NEAR_TIE)
    cls = CLASS_OF_KIND[difference.kind]
    if label.cls == "order" and label.cause != "near-tie":  # beside another difference
        cls = "order"
    leaf = difference.path or ROOT
    return Signature(seed_name, BackendSpec.parse(target).base, cls, leaf, str(difference.kind))
