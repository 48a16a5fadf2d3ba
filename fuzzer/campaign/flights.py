"""Flights: inputs of a lane on their way through its workers, and what becomes of their answers.

Workers are asked for several inputs in one message, and for the next ones before these are judged: so campaign and
workers run at the same time. Where a seed calls its samples independent, those of a block go through in few forwards,
and what the screen does not pass runs again alone. Otherwise each input has a forward of its own, and its answer
counts. A worker leaves word of the one that it runs, so that a death is that one's; the others then run alone. Of a
batch it is not known, so all of its inputs do.

What is learnt of an input comes from the reference's answer to the batch wherever there is one, so that the stream does
not depend on when a target died, nor on where in the block a campaign was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fuzzer import tensors
from fuzzer.backends.session import Answer, Forward, Session, State
from fuzzer.campaign import batch
from fuzzer.campaign.lane import Flight, Lane, Target
from fuzzer.verify.examine import Examined, examine, passed
from fuzzer.verify.verdict import Outcome

Sample = Mapping[str, Tensor]

#: So many seconds a lane waits for an answer; then the others go on.
PATIENCE_S = 0.5
#: A block whose inputs have a forward each is handed over at once where a forward takes less than this: the answers are
#: there soon, and a model that hangs is noticed as soon as with one.
QUICK_S = 0.0125
#: The reference's key in `Flight.told`.
REFERENCE = ""


@dataclass(frozen=True)
class Flights:
    """What a campaign does with an input, as far as its way is concerned.

    `learn` takes in the reference's answer to a new one, `enter` counts an execution with its verdict, `sampled` says
    whether the next execution is to be judged whatever the screen says, `check` whether parameters are to be hashed
    after the last of so many executions.
    """

    learn: Callable[[Lane, int, Sample, Answer], None]
    enter: Callable[[Lane, Target, int, Sample, Examined], None]
    sampled: Callable[[], bool]
    check: Callable[[int], bool]

    def advance(self, lane: Lane, *, latest: bool, more: bool) -> None:
        """Run inputs of `lane`, or, where some have run already, judge them; with `more`, let the next ones run then.

        Of the targets that stand at different inputs, those furthest behind, or with `latest` furthest ahead, go on.
        """
        flight, lane.landed = lane.landed, None
        if flight is None or any(target.cursor != flight.first for target in flight.targets):
            if not self._begin(lane, latest=latest):
                return
            self._prepare_ahead(lane)
            flight = self._land(lane, PATIENCE_S)
        if flight is not None:
            self._judge(lane, flight, more=more)

    def wait(self, lane: Lane, seconds: float) -> None:
        """Wait so long for one of the answers that are due."""
        if lane.in_flight is not None:
            next((one for one in _sides(lane, lane.in_flight).values() if not one.answered(seconds)), None)

    def take(self, lane: Lane, *, more: bool) -> None:
        """Judge the inputs in flight, where their answers are there."""
        flight = self._land(lane, 0.0)
        if flight is not None:
            self._judge(lane, flight, more=more)

    def _begin(self, lane: Lane, *, latest: bool) -> bool:
        """Hand inputs over; False where nothing can run now.

        A target of batches that stands inside a block, because it died there, gets to the block's end first.
        """
        behind = lane.behind()
        if not behind:
            return False
        joins = lane.seed.independent is not None
        inside = [target.cursor for target in behind if joins and target.cursor != lane.blocks.start(target.cursor)]
        first = inside[0] if inside else behind[-1 if latest else 0].cursor
        targets = [target for target in behind if target.cursor == first]
        start, end = lane.blocks.start(first), lane.blocks.end(first)
        if not joins:
            last = end if lane.limit is None else min(end, lane.limit)
            return self._send(lane, first, last if self._quick(lane, start, targets) else first + 1, targets)
        if lane.limit is None or end <= lane.limit:
            if first == start and start not in lane.deadly:
                return self._send(lane, start, end, targets)
            if first == lane.recorded and start not in lane.together:
                # Taken up inside a block: the answers to its batches are what is learnt from.
                return self._send(lane, start, end, [])
        return self._send(lane, first, first + 1, targets)

    @staticmethod
    def _quick(lane: Lane, start: int, targets: Sequence[Target]) -> bool:
        paces = [lane.pace_s, *(target.pace_s for target in targets)]
        return start not in lane.deadly and all(pace is not None and pace < QUICK_S for pace in paces)

    def _send(self, lane: Lane, first: int, end: int, targets: Sequence[Target]) -> bool:
        """Hand over the inputs from `first` to before `end`; False where the reference has no process for them."""
        samples = {}
        for index in range(first, end):
            if lane.reference.state is not State.READY:
                return False
            samples[index] = lane.sample(index)
        if lane.reference.state is not State.READY:  # it died of the question where a decision turns
            return False
        groups = [[index] for index in samples]
        start = lane.blocks.start(first)
        if lane.seed.independent is not None and end > first + 1:
            room = {"small": 0} if start in lane.narrow else {}
            groups = [[first + i for i in group] for group in batch.groups(lane.seed, list(samples.values()), **room)]
        flight = Flight(first, end, groups, samples, [target for target in targets if target.runs])
        check = self.check(len(samples) * len(flight.targets))
        forwards = []
        for group in groups:
            one = len(group) == 1
            sample = samples[group[0]] if one else batch.joined([samples[index] for index in group])
            forwards.append(Forward(tensors.encode(sample), lane.rng_seed(group[0] if one else start)))
        forwards[-1] = Forward(forwards[-1].payload, forwards[-1].rng_seed, check)
        watched = [len(group) == 1 and lane.stream.watched(group[0]) for group in groups]
        told = [Forward(f.payload, f.rng_seed, f.check, inside) for f, inside in zip(forwards, watched, strict=True)]
        if flight.alone:
            flight.told[first] = lane.fatal.pop(first, {})
        for key, session in _sides(lane, flight).items():
            session.begin_all(told if key == REFERENCE else forwards)
        lane.in_flight = flight
        return True

    def _land(self, lane: Lane, seconds: float | None) -> Flight | None:
        """The flight in the air with its answers, where all come within `seconds` each; None: however long it takes."""
        flight = lane.in_flight
        if flight is None:
            return None
        sides = _sides(lane, flight)
        if seconds is not None and not all(session.answered(seconds) for session in sides.values()):
            return None
        lane.in_flight = None
        start = lane.blocks.start(flight.first)
        for key, answers in [(key, session.finish_all(len(flight.groups))) for key, session in sides.items()]:
            if None in answers:
                self._died(lane, flight, key, answers)
                continue
            for group, answer in zip(flight.groups, answers, strict=True):
                assert answer is not None
                if len(group) == 1:
                    flight.told.setdefault(group[0], {})[key] = answer
                    continue
                sizes = [batch.length(flight.samples[index]) for index in group]
                parts = batch.split(answer, sizes)
                for index, part in zip(group, parts or [], strict=False):
                    flight.told.setdefault(index, {})[key] = part
                if parts is None and key == REFERENCE and answer.failure is not None and _wide(lane, sum(sizes)):
                    lane.narrow.add(start)
            self._pace(lane, flight, key, max(answer.seconds for answer in answers if answer is not None))
        if lane.seed.independent is not None and not flight.alone:
            lane.together[start] = {i: told[REFERENCE] for i, told in flight.told.items() if REFERENCE in told}
            for old in sorted(lane.together)[:-3]:
                del lane.together[old]
        return flight

    @staticmethod
    def _died(lane: Lane, flight: Flight, key: str, answers: Sequence[Answer | None]) -> None:
        """A worker died of one of several inputs: from now on they run alone, but for the one, where it is known."""
        lane.deadly.add(lane.blocks.start(flight.first))
        for group, answer in zip(flight.groups, answers, strict=True):
            if answer is not None and len(group) == 1:
                lane.fatal.setdefault(group[0], {})[key] = answer

    @staticmethod
    def _pace(lane: Lane, flight: Flight, key: str, seconds: float) -> None:
        if key == REFERENCE:
            lane.pace_s = seconds
        for target in flight.targets:
            if target.spec == key:
                target.pace_s = seconds

    def _judge(self, lane: Lane, flight: Flight, *, more: bool) -> None:
        """Learn from a flight's answers and enter what the screen passes; what it does not is judged, or runs alone."""
        start = lane.blocks.start(flight.first)
        if (
            start in lane.narrow
            and not flight.alone
            and start not in lane.deadly
            and any(
                _wide(lane, sum(batch.length(flight.samples[index]) for index in group))
                for group in flight.groups
                if len(group) > 1
            )
        ):
            lane.together.pop(start, None)
            return  # it goes off again, in smaller groups
        if not flight.targets and not flight.alone:
            return  # its answers are in `together`
        if more:
            self._next(lane, flight)
        joined = {index for group in flight.groups if len(group) > 1 for index in group}
        for index, sample in flight.samples.items():
            told = flight.told.get(index, {})
            reference = told.get(REFERENCE)
            fresh = index == lane.recorded
            learnt = lane.together.get(start, {}).get(index, reference)
            if fresh and learnt is not None:
                self.learn(lane, index, sample, learnt)
                fresh = False
            for target in flight.targets:
                if reference is None or target.spec not in told or target.cursor != index:
                    continue
                found = self._verdict(lane, target, index, sample, reference, told[target.spec], index in joined)
                if found is not None:
                    if found.verdict.outcome is Outcome.MISMATCH:  # its recipe is reduced on these workers
                        self._settle(lane)
                    target.cursor = index + 1
                    self.enter(lane, target, index, sample, found)
            alone = [target for target in flight.targets if target.cursor == index and target.runs]
            if flight.alone or not (alone or fresh):
                continue
            self._settle(lane)
            if not self._send(lane, index, index + 1, alone):
                return
            again = self._land(lane, PATIENCE_S)
            if again is None:  # what comes after it runs again, once its answers are there
                return
            self._judge(lane, again, more=False)
        self._prepare_ahead(lane)

    def _verdict(
        self, lane: Lane, target: Target, index: int, sample: Sample, reference: Answer, answer: Answer, joined: bool
    ) -> Examined | None:
        """None where an answer came from a batch and only the input alone decides."""
        sampled = self.sampled()
        found = passed(lane.seed, reference, answer, vacuity=lane.vacuity, screen=lane.screen) if not sampled else None
        if found is not None or joined:
            return found
        return examine(
            lane.bench(target, free=lambda: self._settle(lane)),
            sample,
            reference,
            answer,
            rng_seed=lane.rng_seed(index),
            vacuity=lane.vacuity,
            screen=lane.screen,
            always_judge=sampled,
        )

    def _next(self, lane: Lane, flight: Flight) -> None:
        """Hand over the block after this one, so that it runs while this one is judged, where all goes well."""
        first = flight.end
        start, end = lane.blocks.start(first), lane.blocks.end(first)
        idle = lane.in_flight is None and lane.landed is None and lane.reference.state is State.READY
        together = bool(flight.targets) and all(target.runs for target in flight.targets)
        late = any(target not in flight.targets for target in lane.behind())
        over = lane.limit is not None and first >= lane.limit
        known = lane.recorded >= max(flight.first, lane.stream.needs(first))
        if late or over or first != start or start in lane.deadly or not (idle and together and known):
            return
        whole = lane.limit is None or end <= lane.limit
        if whole if lane.seed.independent is not None else self._quick(lane, start, flight.targets):
            self._send(lane, first, end if whole else lane.limit or end, flight.targets)

    @staticmethod
    def _prepare_ahead(lane: Lane) -> None:
        """Make the inputs that come after those in the air."""
        if lane.in_flight is not None:
            end = lane.in_flight.end
            lane.prepare_ahead(end, lane.blocks.end(end) - end)

    def _settle(self, lane: Lane) -> None:
        """Wait for what is in the air, because workers are needed for something else."""
        flight = self._land(lane, None)
        if flight is not None:
            lane.landed = flight


def _wide(lane: Lane, size: int) -> bool:
    """Whether so many samples together are more than the seed itself allows."""
    assert lane.seed.independent is not None
    return size > lane.seed.dims[lane.seed.independent].most


def _sides(lane: Lane, flight: Flight) -> dict[str, Session]:
    """Who runs a flight, by the keys of `told`: not those of whom it is known already that they die of it."""
    told = flight.told.get(flight.first, {}) if flight.alone else {}
    sides = {REFERENCE: lane.reference}
    sides |= {target.spec: target.session for target in flight.targets if target.session is not None}
    return {key: session for key, session in sides.items() if key not in told}
