"""Classification: is the first class still the same, and are the first five?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

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
from fuzzer.verify.tasks.decisions import Decisions, decide, flips
from fuzzer.verify.tasks.over_set import agreement
from fuzzer.verify.verdict import TaskVerdict

_TOP = 5


@register
class Classification(TaskKind[Decisions]):
    """Logits (or probabilities) float [..., classes], or class indices, integer [...]. Fails where a top-1 flips."""

    name = "classification"

    def read(self, outputs: Mapping[str, str], leaves: Leaves) -> Decisions:
        path = find_leaf(outputs, leaves, ("logits", "scores", "labels"), (".logits",))
        tensor, dtype = values(leaves, path)
        if not tensor.is_floating_point():
            return Decisions(path, tensor)
        if tensor.dim() == 0:
            raise NoAnswer(f"the output {path} is a single number")
        return decide(path, tensor, dtype)

    def compare(self, reference: Decisions, target: Decisions, evidence: Evidence[Decisions]) -> TaskVerdict:
        found = flips(reference, target, evidence)
        if not found.elements:
            return not_run("no sample has a class: none there, or NaN in every one")
        metrics: dict[str, float | int | str] = {
            "samples": found.elements,
            "top1_flips": found.count,
            "near_ties": found.count - found.real,
            **_top5(reference, target),
            **found.metrics(),
        }
        if not found.count:
            sentence = f"top-1 agrees on {count(found.elements, 'sample')}"
            return TaskVerdict("pass", sentence, found.elements, metrics, leaf=reference.path)
        metrics["first_flip"] = str(found.flipped.nonzero()[0].tolist())
        sentence = f"top-1 flips on {found.count} of {count(found.elements, 'sample')}: {found.words()}"
        near_tie = found.real == 0
        return TaskVerdict("fail", sentence, found.elements, metrics, near_tie, found.blame, reference.path)

    def plainly_alike(self, reference: Decisions, target: Decisions) -> bool:
        return torch.equal(reference.labels, target.labels)

    def over_set(self, pairs: Sequence[tuple[Decisions, Decisions]]) -> dict[str, float]:
        return agreement([(r.labels, t.labels) for r, t in pairs])


def _top5(reference: Decisions, target: Decisions) -> dict[str, int]:
    """Samples whose first five classes are another set, and those where only their order changed."""
    r, t = reference.scores, target.scores
    if r is None or t is None or r.shape[-1] <= _TOP or r.numel() == 0:
        return {}
    rows = (reference.labels >= 0) & (target.labels >= 0)
    first, second = (torch.sort(x[rows], dim=-1, descending=True, stable=True).indices[:, :_TOP] for x in (r, t))
    other_set = (first.sort(-1).values != second.sort(-1).values).any(-1)
    other_order = (first != second).any(-1) & ~other_set
    return {"top5_set_changes": int(other_set.sum()), "top5_order_changes": int(other_order.sum())}
