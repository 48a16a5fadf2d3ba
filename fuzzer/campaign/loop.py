"""The campaign: take a lane, run its next input on the reference and on every target that is ready, judge, repeat.

The loop knows every step of the path; no step knows the loop. Preparations go on in worker processes, and confirmations
in a thread, while it turns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.campaign import batch, corpus
from fuzzer.campaign.confirm import Confirmer
from fuzzer.campaign.findings import Ledger
from fuzzer.campaign.intake import Intake, restore
from fuzzer.campaign.journal import Journal, stamp
from fuzzer.campaign.lane import BLOCK, Lane, Target
from fuzzer.campaign.plan import Options, make_plan
from fuzzer.campaign.pool import Pool, most_workers
from fuzzer.campaign.stream import Learnt, Search
from fuzzer.campaign.summary import Summary, summarize
from fuzzer.crashes.store import list_crashes
from fuzzer.errors import XbfuzzError
from fuzzer.files import to_json
from fuzzer.mutate.recipe import Recipe
from fuzzer.seeds import Seed
from fuzzer.seeds.load import seed_to_json
from fuzzer.tensors import content_hash
from fuzzer.verify.compare import compare
from fuzzer.verify.examine import Examined, examine, large_gaps
from fuzzer.verify.verdict import Outcome, Verdict

#: One execution in so many is judged although the screen passed it, so that what the screen misses is known.
JUDGE_ONE_IN = 50
#: One run in so many hashes the parameters as well.
CHECK_ONE_IN = 64
#: With more lanes than fit into memory, each has this many seconds before it makes room.
SLICE_S = 20.0


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
        search = Search.named(options.search)
        self.lanes = [
            Lane(planned, where, options.rng_seed, self._kept(planned.seed), search) for planned in self.plan.seeds
        ]
        self.ledger = Ledger.with_known(path.name for path in list_crashes(options.crashes))
        self.executions = self.inputs = 0
        self.first_comparison_s: float | None = None
        self.interrupted = False
        self._spent: dict[str, float] = {lane.name: 0.0 for lane in self.lanes}
        self._turn = 0

    def _kept(self, seed: Seed) -> list[Recipe]:
        return corpus.read(self.options.corpus, seed) if self.options.corpus else []

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    @property
    def confirming(self) -> int:
        """How many findings wait for their confirmation."""
        return self._confirmer.pending

    @property
    def run_name(self) -> str:
        """The run's folder, relative to `out`."""
        return f"runs/{self._journal.folder.name}"

    def stop(self) -> None:
        """End after the execution in hand, with everything saved."""
        self.interrupted = True

    def run(self) -> Summary:
        """Fuzz until the budget is spent. Raises XbfuzzError where nothing can be written."""
        # Inputs are small: a second thread costs more than it gives, on a busy machine many times as much.
        torch.set_num_threads(1)
        with Journal(self.options.out, stamp(), resume=self.options.resume) as journal:
            self._journal = journal
            if self.options.resume:
                self._restore()
            journal.write(
                "start", rng_seed=self.options.rng_seed, search=self.options.search, seeds=self._seed_hashes()
            )
            self._pool = Pool(self.lanes, self.options.max_workers or most_workers())
            self._confirmer = Confirmer(
                self.options.crashes,
                self._where,
                private=self.options.private,
                reduce_s=self.options.reduce_s,
                diagnose_s=self.options.diagnose_s,
            )
            self._intake = Intake(self.options, journal, self.ledger, self._confirmer, self._clock)
            try:
                self._intake.again()
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
            self._intake.poll()
            lane = self._next_lane()
            self._watch(self)
            if lane is None:
                time.sleep(0.01)
                continue
            before = self._clock()
            if not lane.vetted:
                self._vet(lane)
            elif lane.seed.independent is not None:
                self._screen(lane)
            else:
                self._step(lane)
            now = self._clock()
            self._spent[lane.name] += now - before
            if now > slice_ends.setdefault(lane.name, now + SLICE_S) and self._pool.crowded:
                del slice_ends[lane.name]
                self._pool.rest(lane)

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
        return lane.oracle.state not in (State.IDLE, State.PREPARING)

    def _prepared(self, session: Session) -> None:
        lane = next(lane for lane in self.lanes if session in lane.sessions)
        if session is lane.reference and session.state is State.REFUSED and lane.compare_with_itself():
            pass  # the new reference is prepared next
        elif session is lane.reference and session.state is not State.READY:
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
            self._intake.take(lane, target, Recipe(0), lane.example, found, 0, self.executions)

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
        fresh = index == lane.recorded
        sample = lane.sample(index)
        if lane.reference.state is not State.READY:  # it died of the question where a decision turns
            return
        self._run(lane, targets, index, sample, fresh=fresh)

    def _run(
        self, lane: Lane, targets: Sequence[Target], index: int, sample: Mapping[str, Tensor], *, fresh: bool
    ) -> None:
        """Run one input alone. Where the reference has no process at the moment, nothing happens."""
        if lane.reference.state is not State.READY:
            return
        check = self.executions % CHECK_ONE_IN == 0
        rng_seed = lane.rng_seed(index)
        lane.reference.begin(sample, rng_seed=rng_seed, check=check, inside=lane.stream.watched(index))
        for target in targets:
            assert target.session is not None
            target.session.begin(sample, rng_seed=rng_seed, check=check)
        lane.prepare_ahead(index + 1)
        reference = lane.reference.finish()
        answers = [target.session.finish() for target in targets if target.session is not None]
        if fresh:
            self._new_input(lane, index, sample, reference)
        for target, answer in zip(targets, answers, strict=True):
            target.cursor = index + 1
            self._examine(lane, target, index, sample, reference, answer)

    def _screen(self, lane: Lane) -> None:
        """Run the inputs of one block in batches on all targets whose turn it is, and the hits alone.

        A target that stands inside a block, because it died there, gets to the block's end first.
        """
        behind = lane.behind()
        self._turn += 1
        first = (behind[0] if self._turn % 2 else behind[-1]).cursor
        inside = [target.cursor for target in behind if target.cursor % BLOCK]
        first, last = (inside[0], inside[0] + 1) if inside else (first, first + BLOCK)
        targets = [target for target in behind if target.cursor == first]
        samples = [lane.sample(index) for index in range(first, min(last, lane.limit or last))]
        together: dict[int, tuple[Answer, dict[str, Answer]]] = {}
        if first not in lane.deadly and len(samples) == BLOCK:
            for group in batch.groups(lane.seed, samples):
                if len(group) > 1 and lane.reference.state is State.READY and all(t.runs for t in targets):
                    together |= self._batched(lane, targets, samples, group, first)
        for offset, sample in enumerate(samples):
            self._one_of_many(lane, targets, first + offset, sample, together.get(offset))

    def _batched(
        self,
        lane: Lane,
        targets: Sequence[Target],
        samples: Sequence[Mapping[str, Tensor]],
        group: Sequence[int],
        first: int,
    ) -> dict[int, tuple[Answer, dict[str, Answer]]]:
        """By input: the reference's answer, and those of the targets that could be told apart."""
        sizes = [batch.length(samples[i]) for i in group]
        whole = batch.joined([samples[i] for i in group])
        sessions = [lane.reference, *(target.session for target in targets if target.session is not None)]
        for session in sessions:
            session.begin(whole, rng_seed=lane.rng_seed(first))
        answers = [session.finish() for session in sessions]
        if any(answer.death is not None for answer in answers):
            lane.deadly.add(first)  # one of its inputs kills: the next time they run alone
        reference, *parts = [batch.split(answer, sizes) for answer in answers]
        if reference is None:
            return {}
        return {
            i: (reference[k], {t.spec: part[k] for t, part in zip(targets, parts, strict=True) if part is not None})
            for k, i in enumerate(group)
        }

    def _one_of_many(
        self,
        lane: Lane,
        targets: Sequence[Target],
        index: int,
        sample: Mapping[str, Tensor],
        together: tuple[Answer, dict[str, Answer]] | None,
    ) -> None:
        """What the batch said of one input stands where the sides agree; else the input runs alone."""
        fresh = index == lane.recorded
        if together is not None and fresh:
            self._new_input(lane, index, sample, together[0])
            fresh = False
        for target in targets:
            answer = None if together is None else together[1].get(target.spec)
            found = (
                None if together is None or answer is None else self._passed(lane, target, sample, together[0], answer)
            )
            if found is not None and target.cursor == index:
                target.cursor = index + 1
                self._enter(lane, target, index, sample, found)
        alone = [target for target in targets if target.cursor == index and target.runs]
        if alone or fresh:
            self._run(lane, alone, index, sample, fresh=fresh)

    def _passed(
        self, lane: Lane, target: Target, sample: Mapping[str, Tensor], reference: Answer, answer: Answer
    ) -> Examined | None:
        """The verdict on answers from a batch where it is no mismatch and cheap to have; None where alone decides."""
        assert reference.leaves is not None
        assert answer.leaves is not None
        seed = lane.seed
        if (self.executions + 1) % JUDGE_ONE_IN == 0:
            return None
        seen = compare(
            reference.leaves, answer.leaves, tolerance=seed.tolerance, signed_zero=seed.signed_zero, screen=lane.screen
        )
        if seen.differences or large_gaps(Verdict(Outcome.PASS, stats=seen.stats), reference.leaves):
            return None
        found = examine(
            lane.bench(target), sample, reference, answer, rng_seed=0, vacuity=lane.vacuity, screen=lane.screen
        )
        return None if found.verdict.outcome is Outcome.MISMATCH else found

    def _new_input(self, lane: Lane, index: int, sample: Mapping[str, Tensor], reference: Answer) -> None:
        content = content_hash(sample)
        lane.record(index, content)
        learnt = lane.learn(index, reference)
        self.inputs += 1
        recipe = lane.recipes[index]
        self._journal.write(
            "input",
            seed=lane.name,
            index=index,
            recipe=recipe.to_json(),
            content=content,
            **learnt.to_json(),
            died=reference.error if reference.death is not None else "",
        )
        if reference.death is not None:
            lane.reference_died(reference.error)
        if learnt.new and lane.stream.search.learns and not self.options.private:
            names = lane.stream.named(learnt)
            corpus.keep(self.options.out / "corpus", lane.seed, recipe, sample, names, None)

    def _examine(
        self,
        lane: Lane,
        target: Target,
        index: int,
        sample: Mapping[str, Tensor],
        reference: Answer,
        answer: Answer,
    ) -> None:
        sampled = (self.executions + 1) % JUDGE_ONE_IN == 0
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
        self._enter(lane, target, index, sample, found)

    def _enter(self, lane: Lane, target: Target, index: int, sample: Mapping[str, Tensor], found: Examined) -> None:
        """Count an execution, take its finding in, and write both down."""
        self.executions += 1
        answer = found.target
        if self.first_comparison_s is None and found.verdict.compared:
            self.first_comparison_s = self.elapsed_s
        verdict = found.verdict
        died = answer.error if answer.death is not None else ""
        taken: dict[str, str] = {}
        if verdict.outcome is Outcome.MISMATCH:
            taken = self._intake.take(lane, target, lane.recipes[index], sample, found, index, self.executions)
        lane.tally(target, str(verdict.outcome), verdict.notes, judged=verdict.judged)
        if died:
            target.died(died)
        # Last, so that a campaign that is killed before this line runs the input again and finds what it found.
        self._journal.write(
            "run",
            seed=lane.name,
            target=target.spec,
            index=index,
            outcome=str(verdict.outcome),
            compared=verdict.compared,
            judged=verdict.judged,
            died=died,
            notes=verdict.notes,
            **taken,
        )

    def _await_confirmations(self) -> None:
        """Give what is still unconfirmed the time that is set aside for it; interrupted, none."""
        ends = self._clock() + self.options.confirm_s
        for lane in self.lanes:
            lane.close()
        while self._confirmer.pending and self._clock() < ends and not self.interrupted:
            self._intake.poll()
            self._watch(self)
            time.sleep(0.05)
        self._intake.poll()
        self._intake.give_up()

    def _restore(self) -> None:
        """Take up the latest run where its journal ends. Raises XbfuzzError where it is another campaign's."""
        try:
            self._take_up()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise XbfuzzError(
                f"{self.run_name} cannot be resumed, its journal lacks what is needed ({what})"
            ) from error

    def _take_up(self) -> None:
        lanes = {lane.name: lane for lane in self.lanes}
        for event in self._journal.events():
            if event["event"] == "start":
                self._check_same(event)
            restore(self.ledger, event)
            lane = lanes.get(event.get("seed", ""))
            if lane is not None and event["event"] == "input":
                recipe = Recipe.from_json(event["recipe"])
                lane.restore_input(event["index"], recipe, event["content"], Learnt.from_json(event), event["died"])
                self.inputs += 1
            elif lane is not None and event["event"] == "run":
                self.executions += 1
                lane.restore_run(
                    event["target"],
                    event["index"],
                    event["outcome"],
                    event["died"],
                    event["notes"],
                    judged=event["judged"],
                )

    def _check_same(self, start: Mapping[str, Any]) -> None:
        if start["rng_seed"] != self.options.rng_seed:
            raise XbfuzzError(f"that run had --rng-seed {start['rng_seed']}; give the same to resume it")
        if start.get("search", "full") != self.options.search:
            raise XbfuzzError(f"that run had --search {start['search']}; give the same to resume it")
        changed = [name for name, text in self._seed_hashes().items() if start["seeds"].get(name, text) != text]
        if changed:
            raise XbfuzzError(f"{', '.join(changed)} changed since that run; start a new one without --resume")

    def _seed_hashes(self) -> dict[str, str]:
        """What tells whether a run that is resumed had the same seeds."""
        return {
            lane.name: hashlib.sha256(to_json(seed_to_json(lane.seed)).encode()).hexdigest()[:16] for lane in self.lanes
        }
