"""The findings of a campaign: one record a signature, however often it is seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from fuzzer.crashes.signature import Signature
from fuzzer.diagnose import Diagnosis
from fuzzer.seeds import Accept, Seed
from fuzzer.verify.verdict import Blame, Difference


class Standing(StrEnum):
    """What became of a finding."""

    PENDING = "pending"  # seen, and not yet tried in fresh processes
    STORED = "stored"  # reproduced, and a crash now
    KNOWN = "known"  # the crash folder had it before
    UNCONFIRMED = "unconfirmed"  # did not reproduce from its files, or nothing could try


@dataclass
class Finding:
    """One signature as this campaign saw it. `executions` counts those of the campaign until it was first seen."""

    signature: Signature
    label: str
    executions: int
    tiers: dict[str, str]
    blame: str
    message: str
    standing: Standing
    count: int = 1  # how often it was seen, the first time included
    detail: str = ""
    also: list[str] = field(default_factory=list)  # other targets on which the reference was seen at the same fault

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.signature.id,
            "label": self.label,
            "seed": self.signature.seed,
            "target": self.signature.target,
            "class": self.signature.cls,
            "leaf": self.signature.leaf,
            "kind": self.signature.kind,
            "tiers": dict(self.tiers),
            "blame": self.blame,
            "executions_to_detection": self.executions,
            "new": self.standing is Standing.STORED,
            "standing": str(self.standing),
            "count": self.count,
            "message": self.message,
            "detail": self.detail,
            "also": list(self.also),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        """The inverse of `to_json`, with a count of 0: the journal's runs say how often it was seen."""
        return cls(
            Signature(value["seed"], value["target"], value["class"], value["leaf"], value["kind"]),
            value["label"],
            value["executions_to_detection"],
            dict(value["tiers"]),
            value["blame"],
            value["message"],
            Standing(value["standing"]),
            count=0,
            detail=value["detail"],
        )


@dataclass
class Ledger:
    """Findings by id, accepted behaviour by the reason that its owner gave, and the ids that are crashes already."""

    known: set[str]
    findings: dict[str, Finding] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)

    @classmethod
    def with_known(cls, ids: Iterable[str]) -> Ledger:
        return cls(set(ids))

    def seen(self, signature: Signature) -> bool:
        """Count a signature that this campaign has met before; False where it has not."""
        found = self.findings.get(signature.id)
        if found is not None:
            found.count += 1
        return found is not None

    def same_fault(self, signature: Signature, blame: str) -> Finding | None:
        """Where the reference is to blame, the finding that another target showed first: it is the same fault."""
        if blame != Blame.REFERENCE:
            return None
        for finding in self.findings.values():
            if finding.blame == blame and replace(finding.signature, target=signature.target) == signature:
                finding.count += 1
                if signature.target not in (*finding.also, finding.signature.target):
                    finding.also.append(signature.target)
                return finding
        return None

    def accept(self, why: str) -> None:
        """Count behaviour that the seed's owner knows."""
        self.accepted[why] = self.accepted.get(why, 0) + 1

    def new_crashes(self) -> list[Finding]:
        return [finding for finding in self.findings.values() if finding.standing is Standing.STORED]


def accepted_by(seed: Seed, target: str, diagnosis: Diagnosis, difference: Difference) -> Accept | None:
    """The `accept:` entry of the seed that covers a finding, if there is one."""
    label = str(diagnosis.label)
    for entry in seed.accept:
        facts = (
            (label.removesuffix("?"), entry.label),
            (target, entry.target),
            (difference.path, entry.leaf),
            (str(difference.kind), entry.kind),
        )
        if all(fnmatchcase(fact, pattern) or fact == pattern for fact, pattern in facts):
            return entry
    return None
