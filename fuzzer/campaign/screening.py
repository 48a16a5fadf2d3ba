"""Run the inputs of a block in batches where a seed calls its samples independent, and the hits alone.

What is learnt of an input comes from the reference's answer to the batch wherever there is one, so that the stream does
not depend on when a target died, nor on where in the block a campaign was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fuzzer.backends.session import Answer, State
from fuzzer.campaign import batch
from fuzzer.campaign.lane import BLOCK, Lane, Target
from fuzzer.verify.compare import compare
from fuzzer.verify.examine import Examined, examine, large_gaps
from fuzzer.verify.verdict import Outcome, Verdict

Sample = Mapping[str, Tensor]


class RunAlone(Protocol):
    def __call__(self, lane: Lane, targets: Sequence[Target], index: int, sample: Sample, *, fresh: bool) -> None: ...


@dataclass(frozen=True)
class Screening:
    """What a campaign does with an input, as far as a block needs it.

    `alone` runs it by itself and has it judged, `learn` takes in the reference's answer to a new one, `enter` counts an
    execution with its verdict, and `sampled` says whether the next execution is to be judged whatever the screen says.
    """

    alone: RunAlone
    learn: Callable[[Lane, int, Sample, Answer], None]
    enter: Callable[[Lane, Target, int, Sample, Examined], None]
    sampled: Callable[[], bool]

    def step(self, lane: Lane, first: int) -> None:
        """Run the block that begins at `first`, or that one input where `first` stands inside a block."""
        behind = lane.behind()
        targets = [target for target in behind if target.cursor == first]
        start = first - first % BLOCK
        end = start + BLOCK
        whole = lane.limit is None or end <= lane.limit
        last = min(end, lane.limit or end) if first == start else first + 1
        answers: dict[int, dict[str, Answer]] = {}
        samples: dict[int, Sample] = {}
        if whole and first == start and first not in lane.deadly:
            samples = {index: lane.sample(index) for index in range(start, end)}
            answers = self._batched(lane, targets, samples, start)
        elif whole and first == lane.recorded and start != lane.together[0]:
            # Taken up inside a block: the answers to its batches are what is learnt from.
            samples = {index: lane.sample(index) for index in range(start, end)}
            self._batched(lane, [], samples, start)
        known = lane.together[1] if lane.together[0] == start else {}
        for index in range(first, last):
            sample = samples.get(index) or lane.sample(index)
            self._one(lane, targets, index, sample, known.get(index), answers.get(index, {}))
            if lane.in_flight is not None:  # the rest of the block runs alone, once its answers are there
                return

    def _batched(
        self, lane: Lane, targets: Sequence[Target], samples: Mapping[int, Sample], start: int
    ) -> dict[int, dict[str, Answer]]:
        """The answers of `targets` by input, where they come apart; those of the reference go to `lane.together`."""
        found: dict[int, dict[str, Answer]] = {}
        lane.together = (start, {})
        for places in batch.groups(lane.seed, list(samples.values())):
            if len(places) < 2 or lane.reference.state is not State.READY:
                continue
            group = [start + place for place in places]
            sizes = [batch.length(samples[i]) for i in group]
            whole = batch.joined([samples[i] for i in group])
            running = [target for target in targets if target.runs]
            sessions = [lane.reference, *(target.session for target in running if target.session is not None)]
            for session in sessions:
                session.begin(whole, rng_seed=lane.rng_seed(start))
            lane.prepare_ahead(start + BLOCK, BLOCK)
            answers = [session.finish() for session in sessions]
            if any(answer.death is not None for answer in answers):
                lane.deadly.add(start)  # one of its inputs kills: the next time they run alone
            reference, *parts = [batch.split(answer, sizes) for answer in answers]
            if reference is None:
                continue
            for k, i in enumerate(group):
                lane.together[1][i] = reference[k]
                found[i] = {
                    target.spec: part[k] for target, part in zip(running, parts, strict=True) if part is not None
                }
        return found

    def _one(
        self,
        lane: Lane,
        targets: Sequence[Target],
        index: int,
        sample: Sample,
        reference: Answer | None,
        answers: Mapping[str, Answer],
    ) -> None:
        """What the batch said of one input stands where the sides agree; else the input runs alone."""
        fresh = index == lane.recorded
        if reference is not None and fresh:
            self.learn(lane, index, sample, reference)
            fresh = False
        for target in targets:
            answer = answers.get(target.spec)
            if reference is None or answer is None or target.cursor != index:
                continue
            found = self._passed(lane, target, sample, reference, answer)
            if found is not None:
                target.cursor = index + 1
                self.enter(lane, target, index, sample, found)
        alone = [target for target in targets if target.cursor == index and target.runs]
        if alone or fresh:
            self.alone(lane, alone, index, sample, fresh=fresh)

    def _passed(self, lane: Lane, target: Target, sample: Sample, reference: Answer, answer: Answer) -> Examined | None:
        """The verdict on answers from a batch where it is no mismatch and cheap to have; None where alone decides."""
        assert reference.leaves is not None
        assert answer.leaves is not None
        seed = lane.seed
        if self.sampled():
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
