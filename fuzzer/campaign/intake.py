"""Intake: what becomes of a failed verdict. Counted, or written down, its recipe reduced, and handed to confirmation.

A finding is written before anything is tried on it, so that a campaign that is killed has lost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fuzzer.backends.session import State
from fuzzer.campaign.confirm import Confirmed, Confirmer
from fuzzer.campaign.findings import Finding, Ledger, Standing, accepted_by
from fuzzer.campaign.journal import Journal
from fuzzer.campaign.lane import Lane, Target
from fuzzer.campaign.plan import Options
from fuzzer.crashes.crash import Crash, make_crash
from fuzzer.crashes.environment import environment
from fuzzer.crashes.replay import diagnosed_on
from fuzzer.crashes.signature import Signature, signature_of
from fuzzer.crashes.store import write_crash
from fuzzer.diagnose import Diagnosis, primary
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.reduce.recipe import shrink_recipe
from fuzzer.seeds import Seed
from fuzzer.verify.examine import Examined, examine
from fuzzer.verify.verdict import Outcome

#: Reducing one finding's recipe takes no longer than this.
SHRINK_S = 10.0


@dataclass(frozen=True)
class Sighting:
    """A failed verdict on one input, with what it is called. `index` is the input's place in the lane's stream."""

    lane: Lane
    target: Target
    recipe: Recipe
    sample: Mapping[str, Tensor]
    found: Examined
    index: int
    diagnosis: Diagnosis
    signature: Signature


class Intake:
    """Takes failed verdicts, and the outcomes of their confirmation, into the ledger."""

    def __init__(
        self,
        options: Options,
        journal: Journal,
        ledger: Ledger,
        confirmer: Confirmer,
        clock: Callable[[], float],
    ) -> None:
        self._options = options
        self._journal = journal
        self._ledger = ledger
        self._confirmer = confirmer
        self._clock = clock

    @property
    def staging(self) -> Path:
        """Where findings wait for their confirmation."""
        return self._journal.folder / "findings"

    def take(
        self,
        lane: Lane,
        target: Target,
        recipe: Recipe,
        sample: Mapping[str, Tensor],
        found: Examined,
        index: int,
        executions: int,
    ) -> dict[str, str]:
        """Take a mismatch in; gives what the journal has to know: the `finding`'s id, or why it is `accepted`."""
        diagnosis, signature = _named(lane.seed, target.spec, found, sample)
        sighting = Sighting(lane, target, recipe, sample, found, index, diagnosis, signature)
        difference = primary(found.verdict)
        assert difference is not None
        accept = accepted_by(lane.seed, target.spec, diagnosis, difference)
        if accept is not None:
            self._ledger.accept(accept.why)
            return {"accepted": accept.why}
        if self._ledger.seen(signature):
            return {"finding": signature.id}
        same = self._ledger.same_fault(signature, str(found.verdict.blame))
        if same is not None:
            return {"finding": same.signature.id}
        known = signature.id in self._ledger.known
        finding = Finding(
            signature,
            str(diagnosis.label),
            executions,
            found.verdict.tiers(),
            str(found.verdict.blame),
            difference.message,
            Standing.KNOWN if known else Standing.PENDING,
        )
        self._ledger.findings[signature.id] = finding
        self._journal.write("finding", **finding.to_json(), recipe=recipe.to_json(), index=index)
        if not known:
            self._stage(sighting, executions)
        return {"finding": signature.id}

    def poll(self) -> None:
        """Enter the outcomes of confirmations that have ended."""
        while (confirmed := self._confirmer.poll()) is not None:
            self._enter(confirmed)

    def again(self) -> None:
        """After a restore: have the findings confirmed that were not yet; forget those that were not yet written."""
        for finding in list(self._ledger.findings.values()):
            if finding.standing is not Standing.PENDING:
                continue
            staged = self.staging / finding.signature.id
            if (staged / "crash.yaml").exists():
                self._confirmer.add(staged)
            else:
                del self._ledger.findings[finding.signature.id]

    def give_up(self) -> None:
        """Say of the findings that were not tried where they are."""
        for finding in self._ledger.findings.values():
            if finding.standing is Standing.PENDING:
                finding.detail = f"not tried in fresh processes yet; kept in {self.staging / finding.signature.id}"

    def _enter(self, confirmed: Confirmed) -> None:
        finding = self._ledger.findings[confirmed.id]
        finding.standing = Standing.STORED if confirmed.stored else Standing.UNCONFIRMED
        finding.detail = confirmed.detail
        if confirmed.label:
            finding.label = confirmed.label
        self._journal.write(
            "confirmed", id=confirmed.id, standing=str(finding.standing), label=finding.label, detail=finding.detail
        )

    def _stage(self, sighting: Sighting, executions: int) -> None:
        """Write the finding as it is, reduce its recipe, write it again, and have it confirmed."""
        staged = self._write(sighting, sighting, executions)
        if sighting.found.target.death is None and sighting.found.reference.death is None:
            smaller = self._shrunk(sighting)
            if smaller is not sighting:
                staged = self._write(smaller, sighting, executions)
        self._confirmer.add(staged)

    def _write(self, sighting: Sighting, original: Sighting, executions: int) -> Path:
        lane, seed = sighting.lane, sighting.lane.seed
        crash: Crash = make_crash(
            seed,
            sighting.target.spec,
            sighting.found.verdict,
            sighting.diagnosis,
            sighting.sample,
            recipe=sighting.recipe,
            original=original.sample,
            rng_seed=lane.rng_seed(sighting.index),
            environment=environment(),
            found={"run": self._journal.folder.name, "execution": executions, "date": time.strftime("%Y-%m-%d")},
        )
        return write_crash(self.staging, crash, private=self._options.private)

    def _shrunk(self, sighting: Sighting) -> Sighting:
        """The sighting on a recipe without what the finding does not need; itself where nothing goes."""
        best = sighting
        lane, target = sighting.lane, sighting.target
        rng_seed = lane.rng_seed(sighting.index)
        ends = self._clock() + SHRINK_S

        def still_fails(candidate: Recipe) -> bool:
            nonlocal best
            assert target.session is not None
            if self._clock() > ends or not target.runs or lane.reference.state is not State.READY:
                return False
            sample = apply_recipe(lane.seed, candidate)
            reference = lane.reference.run(sample, rng_seed=rng_seed)
            answer = target.session.run(sample, rng_seed=rng_seed)
            found = examine(
                lane.bench(target), sample, reference, answer, rng_seed=rng_seed, vacuity=lane.vacuity, screen=None
            )
            if found.verdict.outcome is not Outcome.MISMATCH:
                return False
            diagnosis, signature = _named(lane.seed, target.spec, found, sample)
            if signature != sighting.signature:
                return False
            best = Sighting(lane, target, candidate, sample, found, sighting.index, diagnosis, signature)
            return True

        shrink_recipe(sighting.recipe, still_fails)
        return best


def restore(ledger: Ledger, event: Mapping[str, Any]) -> None:
    """Take up one event of a journal: findings, what became of them, and how often they were seen."""
    if event["event"] == "finding":
        finding = Finding.from_json(event)
        ledger.findings[finding.signature.id] = finding
    elif event["event"] == "confirmed" and event["id"] in ledger.findings:
        finding = ledger.findings[event["id"]]
        finding.standing, finding.detail = Standing(event["standing"]), event["detail"]
        finding.label = event["label"]
    elif event["event"] == "run" and "accepted" in event:
        ledger.accept(event["accepted"])
    elif event["event"] == "run" and event.get("finding") in ledger.findings:
        ledger.findings[event["finding"]].count += 1


def _named(seed: Seed, target: str, found: Examined, sample: Mapping[str, Tensor]) -> tuple[Diagnosis, Signature]:
    diagnosis = diagnosed_on(sample, target, found)
    return diagnosis, signature_of(seed.name, target, found.verdict, diagnosis.label)
