"""The campaign: take a lane, run its next input on the reference and on every target that is ready, judge, repeat.

The loop knows every step of the path; no step knows the loop. Preparations go on in worker processes, and confirmations
in a thread, while it turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.campaign import corpus
from fuzzer.campaign.confirm import Confirmed, Confirmer
from fuzzer.campaign.findings import Finding, Ledger, Standing, accepted_by
from fuzzer.campaign.journal import Journal, stamp
from fuzzer.campaign.lane import MOST_DEATHS, Lane, Target
from fuzzer.campaign.plan import Options, make_plan
from fuzzer.campaign.pool import Pool, most_workers
from fuzzer.campaign.summary import Summary, summarize
from fuzzer.crashes.crash import Crash, make_crash
from fuzzer.crashes.environment import environment
from fuzzer.crashes.signature import Signature, signature_of
from fuzzer.crashes.store import list_crashes, write_crash
from fuzzer.diagnose import Diagnosis, primary, provisional
from fuzzer.errors import XbfuzzError
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe
from fuzzer.reduce.recipe import shrink_recipe
from fuzzer.seeds import Seed
from fuzzer.tensors import content_hash
from fuzzer.verify.examine import Examined, examine
from fuzzer.verify.verdict import Outcome

#: One execution in so many is judged although the screen passed it, so that what the screen misses is known.
JUDGE_ONE_IN = 50
#: One run in so many hashes the parameters as well.
CHECK_ONE_IN = 64
#: With more lanes than fit into memory, each has this many seconds before it makes room.
SLICE_S = 20.0
#: Reducing one finding's recipe takes no longer than this.
SHRINK_S = 10.0


class Campaign:
    """One campaign over `seeds`. `run` does it all; `stop` ends it after the execution in hand."""

    def __init__(
        self,
        seeds: Sequence[Seed],
        options: Options,
        where: Where,
        *,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        watch: Callable[[Campaign], None] = lambda campaign: None,
    ) -> None:
        self.options = options
        self._clock = clock
        self._started = clock() if started is None else started
        self._where = where
        self._watch = watch
        self.plan = make_plan(seeds, options)
        self.lanes = [
            Lane(planned, where, options.rng_seed, corpus.read(options.corpus, planned.seed) if options.corpus else [])
            for planned in self.plan.seeds
        ]
        self.ledger = Ledger.with_known(path.name for path in list_crashes(options.crashes))
        self.executions = self.inputs = self.screen_misses = self.screen_samples = 0
        self.first_comparison_s: float | None = None
        self.interrupted = False
        self._spent: dict[str, float] = {lane.name: 0.0 for lane in self.lanes}
        self._turn = 0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    @property
    def run_name(self) -> str:
        """The run's folder, relative to `out`."""
        return f"runs/{self._journal.folder.name}"

    def stop(self) -> None:
        """End after the execution in hand, with everything saved."""
        self.interrupted = True

    def run(self) -> Summary:
        """Fuzz until the budget is spent. Raises XbfuzzError where nothing can be written."""
        with Journal(self.options.out, stamp(), resume=self.options.resume) as journal:
            self._journal = journal
            if self.options.resume:
                self._restore()
            journal.write("start", rng_seed=self.options.rng_seed, seeds=[lane.name for lane in self.lanes])
            self._pool = Pool(self.lanes, self.options.max_workers or most_workers())
            self._confirmer = Confirmer(self.options.crashes, self._where, private=self.options.private)
            try:
                self._loop()
                self._await_confirmations()
            finally:
                for lane in self.lanes:
                    lane.close()
                self._confirmer.close(timeout_s=5.0)
            summary = summarize(self)
            journal.write("end", **{k: v for k, v in summary.to_json().items() if k != "targets"})
            journal.stats(summary.to_json())
            return summary

    def _loop(self) -> None:
        slice_ends: dict[str, float] = {}
        while not self._over():
            for session in self._pool.pump():
                self._prepared(session)
            self._confirmations()
            lane = self._next_lane()
            self._watch(self)
            if lane is None:
                time.sleep(0.01)
                continue
            before = self._clock()
            if not lane.vetted:
                self._vet(lane)
            else:
                self._step(lane)
            now = self._clock()
            self._spent[lane.name] += now - before
            if now > slice_ends.setdefault(lane.name, now + SLICE_S) and self._pool.crowded:
                del slice_ends[lane.name]
                self._pool.make_room(lane)

    def _over(self) -> bool:
        if self.interrupted or all(lane.finished for lane in self.lanes):
            return True
        return self.options.budget_s is not None and self.elapsed_s >= self.options.budget_s

    def _next_lane(self) -> Lane | None:
        """Of the lanes with something to do, the one that had the least time."""
        able = [lane for lane in self.lanes if not lane.finished and lane.reference.state is State.READY]
        able = [lane for lane in able if lane.behind() or (not lane.vetted and self._oracle_settled(lane))]
        return min(able, key=lambda lane: self._spent[lane.name], default=None)

    @staticmethod
    def _oracle_settled(lane: Lane) -> bool:
        return lane.oracle is None or lane.oracle.state not in (State.IDLE, State.PREPARING)

    def _prepared(self, session: Session) -> None:
        lane = next(lane for lane in self.lanes if session in lane.sessions)
        if session is lane.reference and session.state is not State.READY:
            lane.failed = f"the reference {session.backend} cannot be prepared: {session.reason}"
        if session is lane.reference and session.failure is not None and session.failure.kind == "internal":
            lane.harness_errors.append(session.reason)
        self._journal.write(
            "prepared",
            seed=lane.name,
            backend=session.backend,
            state=str(session.state),
            reason=session.reason,
            seconds=session.prepare_s,
        )
        if session.state is State.DEAD and session is not lane.reference and session is not lane.oracle:
            target = next(t for t in lane.targets if t.session is session)
            reference = Answer(leaves={})
            found = examine(
                lane.bench(target),
                lane.example,
                reference,
                Answer(death=session.death),
                rng_seed=0,
                vacuity=None,
                screen=None,
            )
            self._finding(lane, target, Recipe(0), lane.example, found, 0)

    def _vet(self, lane: Lane) -> None:
        lane.vet()
        test = lane.self_test
        self._journal.write(
            "vetted",
            seed=lane.name,
            ok=lane.vetted,
            reason=lane.failed,
            caught=test.caught if test else [],
            missed=test.missed if test else [],
        )

    def _step(self, lane: Lane) -> None:
        """Run one input of `lane` on all targets whose turn it is."""
        behind = lane.behind()
        self._turn += 1
        # Those who are late catch up on every other turn, so that they do not keep the others waiting.
        index = behind[0].cursor if self._turn % 2 else behind[-1].cursor
        targets = [target for target in behind if target.cursor == index]
        fresh = index == len(lane.recipes)
        sample = lane.sample(index)
        check = self.executions % CHECK_ONE_IN == 0
        rng_seed = lane.rng_seed(index)
        lane.reference.begin(sample, rng_seed=rng_seed, check=check)
        for target in targets:
            assert target.session is not None
            target.session.begin(sample, rng_seed=rng_seed, check=check)
        reference = lane.reference.finish()
        answers = [target.session.finish() for target in targets if target.session is not None]
        if fresh:
            self._new_input(lane, index, sample, reference)
        if reference.death is not None:
            self._reference_died(lane, reference)
        for target, answer in zip(targets, answers, strict=True):
            target.cursor = index + 1
            self._examine(lane, target, index, sample, reference, answer)

    def _new_input(self, lane: Lane, index: int, sample: Mapping[str, Tensor], reference: Answer) -> None:
        content = content_hash(sample)
        lane.record(index, content)
        new = lane.learn(index, reference)
        self.inputs += 1
        recipe = lane.recipes[index]
        self._journal.write(
            "input", seed=lane.name, index=index, recipe=recipe.to_json(), content=content, new=sorted(new)
        )
        if new and not self.options.private:
            corpus.keep(self.options.out / "corpus", lane.seed, recipe, sample, new, None)

    def _reference_died(self, lane: Lane, reference: Answer) -> None:
        lane.reference_deaths += 1
        if lane.reference_deaths >= 4 * MOST_DEATHS:
            lane.failed = f"its reference died {lane.reference_deaths} times; the last time: {reference.error}"

    def _examine(
        self,
        lane: Lane,
        target: Target,
        index: int,
        sample: Mapping[str, Tensor],
        reference: Answer,
        answer: Answer,
    ) -> None:
        self.executions += 1
        sampled = self.executions % JUDGE_ONE_IN == 0
        found = examine(
            lane.bench(target),
            sample,
            reference,
            answer,
            rng_seed=lane.rng_seed(index),
            vacuity=lane.vacuity,
            screen=lane.screen,
            always_judge=sampled,
        )
        if self.first_comparison_s is None and found.verdict.compared:
            self.first_comparison_s = self.elapsed_s
        verdict = found.verdict
        lane.tally(target, verdict.outcome, judged=verdict.judged)
        lane.harness_errors += [note for note in verdict.notes if note.startswith("harness error")]
        self._journal.write(
            "run",
            seed=lane.name,
            target=target.spec,
            index=index,
            outcome=str(verdict.outcome),
            compared=verdict.compared,
            notes=verdict.notes,
        )
        if verdict.outcome is Outcome.MISMATCH:
            self._finding(lane, target, lane.recipes[index], sample, found, index)
        if answer.death is not None:
            target.deaths += 1
            if target.deaths >= MOST_DEATHS:
                target.abandoned = f"died {target.deaths} times; the last time: {answer.error}"

    def _finding(
        self,
        lane: Lane,
        target: Target,
        recipe: Recipe,
        sample: Mapping[str, Tensor],
        found: Examined,
        index: int,
    ) -> None:
        diagnosis, signature = _diagnosed(lane.seed, target.spec, found, sample)
        difference = primary(found.verdict)
        assert difference is not None
        accept = accepted_by(lane.seed, target.spec, diagnosis, difference)
        if accept is not None:
            self.ledger.accepted[accept.why] = self.ledger.accepted.get(accept.why, 0) + 1
            return
        if self.ledger.seen(signature):
            return
        standing = Standing.KNOWN if signature.id in self.ledger.known else Standing.PENDING
        finding = Finding(
            signature,
            str(diagnosis.label),
            self.executions,
            {"tensors": "fail", "activations": "not-run", "task": "not-run"},
            str(found.verdict.blame),
            difference.message,
            standing,
        )
        self.ledger.findings[signature.id] = finding
        self._journal.write("finding", **finding.to_json(), recipe=recipe.to_json(), index=index)
        if standing is Standing.PENDING:
            self._stage(lane, target, recipe, sample, found, diagnosis, signature, index)

    def _stage(
        self,
        lane: Lane,
        target: Target,
        recipe: Recipe,
        sample: Mapping[str, Tensor],
        found: Examined,
        diagnosis: Diagnosis,
        signature: Signature,
        index: int,
    ) -> None:
        """Write the finding as it is, reduce its recipe, write it again, and have it confirmed."""
        about = {"run": self._journal.folder.name, "execution": self.executions, "date": time.strftime("%Y-%m-%d")}
        original = dict(sample)

        def crash_of(recipe: Recipe, sample: Mapping[str, Tensor], found: Examined, diagnosis: Diagnosis) -> Crash:
            return make_crash(
                lane.seed,
                target.spec,
                found.verdict,
                diagnosis,
                sample,
                recipe=recipe,
                original=original,
                rng_seed=lane.rng_seed(index),
                environment=environment(),
                found=about,
            )

        staged = self._write_finding(lane, crash_of(recipe, sample, found, diagnosis))
        if found.target.death is None and found.reference.death is None:
            smaller = self._shrink(lane, target, recipe, signature, lane.rng_seed(index))
            if smaller is not None:
                staged = self._write_finding(lane, crash_of(*smaller))
        self._confirmer.add(staged)

    def _write_finding(self, lane: Lane, crash: Crash) -> Any:
        onnx = lane.seed.path(lane.seed.model.path or "").read_bytes() if lane.seed.model.source == "onnx" else None
        folder = self._journal.folder / "findings"
        return write_crash(folder, crash, onnx=onnx, private=self.options.private)

    def _shrink(
        self, lane: Lane, target: Target, recipe: Recipe, signature: Signature, rng_seed: int
    ) -> tuple[Recipe, Mapping[str, Tensor], Examined, Diagnosis] | None:
        """The recipe without what the finding does not need, with what is seen on it; None where nothing goes."""
        best: list[tuple[Recipe, Mapping[str, Tensor], Examined, Diagnosis]] = []
        ends = self._clock() + SHRINK_S

        def still_fails(candidate: Recipe) -> bool:
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
            diagnosis, seen = _diagnosed(lane.seed, target.spec, found, sample)
            if seen != signature:
                return False
            best[:] = [(candidate, sample, found, diagnosis)]
            return True

        shrink_recipe(recipe, still_fails)
        return best[0] if best else None

    def _confirmations(self) -> None:
        while (confirmed := self._confirmer.poll()) is not None:
            self._confirmed(confirmed)

    def _confirmed(self, confirmed: Confirmed) -> None:
        finding = self.ledger.findings[confirmed.id]
        if confirmed.stored:
            finding.standing = Standing.STORED
        else:
            finding.standing = Standing.UNCONFIRMED
            replayed = confirmed.replayed
            finding.detail = confirmed.error or f"{replayed.state}: {replayed.detail}" if replayed else confirmed.error
        self._journal.write("confirmed", id=finding.signature.id, standing=str(finding.standing), detail=finding.detail)

    def _await_confirmations(self) -> None:
        """Give what is still unconfirmed the time that is set aside for it; interrupted, none."""
        ends = self._clock() + (0.0 if self.interrupted else self.options.confirm_s)
        for lane in self.lanes:
            lane.close()
        while self._confirmer.pending and self._clock() < ends and not self.interrupted:
            self._confirmations()
            self._watch(self)
            time.sleep(0.05)
        self._confirmations()
        for finding in self.ledger.findings.values():
            if finding.standing is Standing.PENDING:
                finding.detail = f"not tried in fresh processes; kept under {self._journal.folder}/findings"

    def _restore(self) -> None:
        """Take up the latest run where its journal ends. Raises XbfuzzError where it is another campaign's."""
        lanes = {lane.name: lane for lane in self.lanes}
        for event in self._journal.events():
            if event["event"] == "start" and event["rng_seed"] != self.options.rng_seed:
                raise XbfuzzError(f"that run had --rng-seed {event['rng_seed']}; give the same to resume it")
            lane = lanes.get(event.get("seed", ""))
            if lane is None:
                continue
            if event["event"] == "input":
                lane.restore_input(event["index"], Recipe.from_json(event["recipe"]), event["content"], event["new"])
                self.inputs += 1
            elif event["event"] == "run":
                self.executions += 1
                lane.restore_run(event["target"], event["index"], event["outcome"])


def _diagnosed(seed: Seed, target: str, found: Examined, sample: Mapping[str, Tensor]) -> tuple[Diagnosis, Signature]:
    truth = found.oracle.truth if found.oracle is not None else None
    diagnosis = provisional(found.verdict, found.reference.leaves, found.target.leaves, truth, sample, target)
    return diagnosis, signature_of(seed.name, target, found.verdict, diagnosis.label)
