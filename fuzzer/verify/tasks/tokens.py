"""Tokens: does each position of a sequence still choose the same token, and from where on does it not?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fuzzer.trees import Leaves
from fuzzer.verify.tasks.base import (
    Evidence,
    NoAnswer,
    TaskKind,
    count,
    find_leaf,
    not_run,
    register,
    values,
)
from fuzzer.verify.tasks.decisions import MASKED, Decisions, decide, flips
from fuzzer.verify.tasks.over_set import agreement
from fuzzer.verify.verdict import TaskVerdict


@register
class Tokens(TaskKind[Decisions]):
    """Logits float [..., length, vocabulary], or token ids, integer [..., length]; `mask` [..., length] where given.

    Positions at which the mask is 0 count for nothing. Fails where a token flips.
    """

    name = "tokens"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Decisions:
        named = {name: path for name, path in outputs.items() if name != "mask"}
        path = find_leaf(named, leaves, ("logits", "tokens", "ids"), (".logits", ".ids"))
        tensor, dtype = values(leaves, path)
        read = decide(path, tensor, dtype) if tensor.is_floating_point() else Decisions(path, tensor)
        if read.labels.dim() == 0:
            raise NoAnswer(f"the output {path} of shape {tuple(tensor.shape)} is no sequence")
        if "mask" not in outputs:
            return read
        mask, _ = values(leaves, outputs["mask"])
        if mask.shape != read.labels.shape:
            raise NoAnswer(f"the mask of shape {tuple(mask.shape)} does not fit {tuple(read.labels.shape)} tokens")
        return Decisions(path, torch.where(mask != 0, read.labels, MASKED), read.scores, dtype)

    def compare(self, reference: Decisions, target: Decisions, evidence: Evidence[Decisions]) -> TaskVerdict:
        found = flips(reference, target, evidence)
        if not found.elements:
            return not_run("no position has a token: none there, all masked, or NaN in every one")
        metrics: dict[str, float | int | str] = {
            "positions": found.elements,
            "flipped": found.count,
            "near_ties": found.count - found.real,
            "agreement": 1 - found.count / found.elements,
            "first_divergence": first_divergence(found.flipped),
            **found.metrics(),
        }
        if not found.count:
            sentence = f"the token agrees at {count(found.elements, 'position')}"
            return TaskVerdict("pass", sentence, found.elements, metrics, leaf=reference.path)
        where = f"first at {metrics['first_divergence']}"
        sentence = f"the token flips at {found.count} of {count(found.elements, 'position')}, {where}: {found.words()}"
        near_tie = found.real == 0
        return TaskVerdict("fail", sentence, found.elements, metrics, near_tie, found.blame, reference.path)

    def over_set(self, pairs: Sequence[tuple[Decisions, Decisions]]) -> dict[str, float]:
        return agreement([(r.labels, t.labels) for r, t in pairs])


def first_divergence(flipped: Tensor) -> int:
    """The smallest position along the last dimension at which any sequence flips, −1 where none does. Bool [..., L]."""
    at = flipped.nonzero()
    return int(at[:, -1].min()) if at.numel() else -1
