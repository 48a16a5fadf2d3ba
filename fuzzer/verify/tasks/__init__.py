"""Tier 3: what a difference between outputs means for the task that they serve."""

from fuzzer.verify.tasks import classification, detection, embedding, regression, segmentation, tokens
from fuzzer.verify.tasks.base import Answer, Evidence, NoAnswer, TaskKind, check_task, find_task, register, task_names
from fuzzer.verify.tasks.tier3 import evaluate, lists_of, over_set, plainly_alike, task_difference, tier3

__all__ = [
    "Answer",
    "Evidence",
    "NoAnswer",
    "TaskKind",
    "check_task",
    "evaluate",
    "find_task",
    "lists_of",
    "over_set",
    "plainly_alike",
    "register",
    "task_difference",
    "task_names",
    "tier3",
]
#: Importing a module registers its task.
_BUILT_IN = (classification, detection, embedding, regression, segmentation, tokens)
