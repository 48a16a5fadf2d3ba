"""The campaign: take a lane, run its next input on the reference and on every target that is ready, judge, repeat.

The loop knows every step of the path; no step knows the loop. Preparations go on in worker processes, and confirmations
in a thread, while it turns.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.campaign import corpus
from fuzzer.campaign.confirm import Confirmer
from fuzzer.campaign.findings import Ledger
from fuzzer.campaign.flights import Flights
from fuzzer.campaign.intake import Intake
from fuzzer.campaign.journal import Journal, stamp
from fuzzer.campaign.lane import Lane, Target
from fuzzer.campaign.plan import Options, make_plan
from fuzzer.campaign.pool import Pool, most_workers
from fuzzer.campaign.resume import start_of, take_up
from fuzzer.campaign.stream import Search
from fuzzer.campaign.summary import Summary, summarize
from fuzzer.crashes.store import list_crashes
from fuzzer.mutate.recipe import Recipe
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
        self._flights = Flights(self._new_input, self._enter, lambda: self._sampled, self._checked)
        self._spent: dict[str, float] = {lane.name: 0.0 for lane in self.lanes}
        self._slice_ends: dict[str, float] = {}
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
            start = start_of(self.options, self.lanes)
            if self.options.resume:
                self.inputs, self.executions = take_up(journal, self.run_name, start, self.lanes, self.ledger)
            journal.write("start", **start)
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
        while not self._over():
            for session in self._pool.pump():
                self._prepared(session)
            self._intake.poll()
            for flying in self.lanes:
                if flying.in_flight is not None:
                    with self._timed(flying):
                        self._flights.take(flying, more=self._goes_on(flying))
            lane = self._next_lane()
            self._watch(self)
            if lane is None:
                self._wait()
                continue
            with self._timed(lane):
                if lane.vetted:
                    self._turn += 1
                    # Those who are late catch up on every other turn, so that they do not keep the others waiting.
                    self._flights.advance(lane, latest=self._turn % 2 == 0, more=self._goes_on(lane))
                else:
                    self._vet(lane)
            if self._slice_is_over(lane) and lane.in_flight is None and self._pool.crowded:
                del self._slice_ends[lane.name]
                self._pool.rest(lane)

    @contextlib.contextmanager
    def _timed(self, lane: Lane) -> Iterator[None]:
        before = self._clock()
        yield
        now = self._clock()
        self._spent[lane.name] += now - before
        self._slice_ends.setdefault(lane.name, now + SLICE_S)

    def _slice_is_over(self, lane: Lane) -> bool:
        return self._clock() > self._slice_ends.get(lane.name, math.inf)

    def _goes_on(self, lane: Lane) -> bool:
        """Whether the next inputs of `lane` may run while these are judged: it is its turn, and stays so."""
        if self._slice_is_over(lane) and self._pool.crowded:
            return False
        rival = self._next_lane()
        return rival is None or self._spent[lane.name] <= self._spent[rival.name]

    def _wait(self) -> None:
        """Until there may be something to do."""
        flying = next((lane for lane in self.lanes if lane.in_flight is not None), None)
        if flying is None:
            time.sleep(0.01)
        else:
            self._flights.wait(flying, 0.01)

    def _over(self) -> bool:
        if self.interrupted or all(lane.finished for lane in self.lanes):
            return True
        return self.options.budget_s is not None and self.elapsed_s >= self.options.budget_s

    def _next_lane(self) -> Lane | None:
        """Of the lanes with something to do, the one that had the least time."""
        able = [lane for lane in self.lanes if not lane.finished and lane.in_flight is None]
        able = [lane for lane in able if lane.reference.state is State.READY]
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

    @property
    def _sampled(self) -> bool:
        """Whether the next execution is judged whatever the screen says."""
        return (self.executions + 1) % JUDGE_ONE_IN == 0

    def _checked(self, executions: int) -> bool:
        """Whether parameters are to be hashed after the last of the next so many."""
        return self.executions % CHECK_ONE_IN == 0 or self.executions % CHECK_ONE_IN + executions > CHECK_ONE_IN

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
