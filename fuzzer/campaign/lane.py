"""A lane: one seed's life in a campaign. Its reference, oracle and targets, its stream of inputs, and who has run what.

Each target has a cursor into the stream. A target that is ready late starts from the first input and catches up: all
of them see the same inputs in the same order, however long each took to compile.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fuzzer.backends.protocol import ORACLE
from fuzzer.backends.registry import parse
from fuzzer.backends.session import Answer, Session, State, Where
from fuzzer.campaign.batch import small
from fuzzer.campaign.blocks import Blocks
from fuzzer.campaign.plan import Planned, run_seed
from fuzzer.campaign.stream import Learnt, Search, Stream, session_guide
from fuzzer.errors import XbfuzzError
from fuzzer.inputs import base_sample, oversized
from fuzzer.mutate.havoc import apply_recipe
from fuzzer.mutate.recipe import Recipe, Step
from fuzzer.trees import Leaves
from fuzzer.verify.corruptions import SelfTest, self_test
from fuzzer.verify.examine import Bench, ask_oracle, verdict_of
from fuzzer.verify.judge import OracleAnswer
from fuzzer.verify.screen import FloorScreen
from fuzzer.verify.unanswered import OracleDown
from fuzzer.verify.vacuity import Vacuity, informative_leaves
from fuzzer.verify.verdict import Difference, Kind, Verdict

#: Inputs of a block; where they are small and independent, up to so many.
BLOCK = 8
MOST_BLOCK = 32
#: Base inputs on which the reference must not answer the same.
VETTING_INPUTS = 4
#: Deaths of one target after which it is no longer run.
MOST_DEATHS = 5
#: Deaths of the reference after which its seed is given up: more, because a death of the reference tells something.
MOST_REFERENCE_DEATHS = 4 * MOST_DEATHS
#: The backend that runs an ONNX file as it is written.
AS_WRITTEN = "onnxruntime:cpu?opt=none"
#: Why something was not run where nothing is wrong with it.
NO_TARGET = "none of its targets can run here, or they are the reference itself"
ENDED_EARLY = "the campaign ended before it was prepared"


@dataclass
class Flight:
    """Inputs from `first` to before `end` that the reference and some targets run, in the order of `groups`.

    The inputs of a group run in one forward. `told`: once it has landed, the answers to each input by side, those of
    the reference under its own key; what is not there is not known.
    """

    first: int
    end: int
    groups: list[list[int]]
    samples: dict[int, dict[str, Tensor]]
    targets: list[Target]
    told: dict[int, dict[str, Answer]] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Whether it is one input, so that a death is this input's."""
        return len(self.samples) == 1


@dataclass
class Target:
    """One backend of a lane, and the tally of its verdicts."""

    spec: str
    session: Session | None
    unavailable: str = ""
    cursor: int = 0
    deaths: int = 0
    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    abandoned: str = ""
    pace_s: float | None = None  # how long its last forward took; None before the first

    @property
    def runs(self) -> bool:
        return self.session is not None and self.session.state is State.READY and not self.abandoned

    @property
    def slow(self) -> bool:
        """Whether preparing it takes longest of all, as it generates and compiles code."""
        return self.spec.startswith("inductor")

    @property
    def over(self) -> bool:
        """Whether nothing more can come of it."""
        dead = self.session is None or self.session.state in (State.REFUSED, State.DEAD)
        return dead or bool(self.abandoned)

    def died(self, how: str) -> None:
        """Count a death; after `MOST_DEATHS` the target is abandoned."""
        self.deaths += 1
        if self.deaths >= MOST_DEATHS:
            self.abandoned = f"died {self.deaths} times; the last time: {how}"

    @property
    def status(self) -> tuple[str, str]:
        """`ok`, `unavailable`, `unsupported`, `crashes`, `abandoned` or `not-prepared`, with the reason."""
        if self.session is None:
            return "unavailable", self.unavailable
        if self.abandoned:
            return "abandoned", self.abandoned
        if self.session.state is State.REFUSED:
            return "unsupported", self.session.reason
        if self.session.state is State.DEAD:
            return "crashes", self.session.reason
        if self.session.prepare_s == 0.0:
            return "not-prepared", ENDED_EARLY
        return "ok", ""


class Lane:
    """See the module's docstring. A lane is `vetted` once the self-test passed; only then are targets compared."""

    def __init__(
        self, planned: Planned, where: Where, rng_seed: int, corpus: list[Recipe], search: Search | None = None
    ) -> None:
        self.planned = planned
        self.seed = planned.seed
        self.name = planned.seed.name
        # A seed that cannot run may name inputs that are not here.
        self.example = {} if planned.seed.unavailable else base_sample(planned.seed, 0)
        self.reference = Session(self.seed, planned.reference, self.example, where)
        self.no_module = ""
        self._where = where
        self.oracle = Session(self.seed, ORACLE, self.example, where)
        self.targets = [
            Target(spec, None if reason or planned.unavailable else Session(self.seed, spec, self.example, where))
            for spec, reason in planned.targets.items()
        ]
        for target, reason in zip(self.targets, planned.targets.values(), strict=True):
            target.unavailable = reason or f"its reference cannot run: {planned.unavailable}"
        self.vetted = False
        self.failed = planned.unavailable or oversized(planned.seed) or ("" if planned.runnable else NO_TARGET)
        self.vacuity: Vacuity | None = None
        self.self_test: SelfTest | None = None
        self.screen = FloorScreen()
        self.blocks = Blocks(BLOCK, MOST_BLOCK if small(planned.seed) else BLOCK)
        self.stream = Stream(planned.seed, rng_seed, search or Search(), corpus, guide=self._guide, blocks=self.blocks)
        self.harness_errors: list[str] = []
        # Blocks, by their first input: those of which several inputs at once have killed a worker, and those of which
        # the reference does not take more than the dimension's `max` together.
        self.deadly: set[int] = set()
        # Answers to inputs of such blocks that are known: the deaths, by input and side.
        self.fatal: dict[int, dict[str, Answer]] = {}
        self.narrow: set[int] = set()
        # The reference's answers to the batches of the last blocks, by the block's first input, and by input.
        self.together: dict[int, dict[int, Answer]] = {}
        self.in_flight: Flight | None = None  # its answers are due
        self.landed: Flight | None = None  # its answers are there, and wait until those before are judged
        self.pace_s: float | None = None  # how long the reference's last forward took
        self._ahead: dict[int, dict[str, Tensor]] = {}
        self.reference_deaths = 0
        self.recorded = 0  # inputs that have run on the reference
        self._rng_seed = rng_seed
        self._chain = hashlib.sha256(self.name.encode())

    @property
    def sessions(self) -> list[Session]:
        """All sessions in the order in which they are worth starting."""
        return [self.reference, self.oracle, *(t.session for t in self.targets if t.session is not None)]

    @property
    def recipes(self) -> list[Recipe]:
        """The recipes of all inputs so far."""
        return self.stream.recipes

    @property
    def digest(self) -> str:
        """Of the sequence of inputs so far."""
        return self._chain.hexdigest()

    @property
    def limit(self) -> int | None:
        return self.planned.inputs

    @property
    def finished(self) -> bool:
        """Whether no target has anything left to run."""
        if self.failed:
            return True
        return all(target.over or self.done(target) for target in self.targets)

    def wanted(self) -> list[Session]:
        """Sessions that have no process and should have one, the most useful first."""
        if self.finished:
            return []
        targets = sorted((t for t in self.targets if not t.over and not self.done(t)), key=lambda t: (t.cursor, t.slow))
        found = [self.reference, self.oracle, *(t.session for t in targets if t.session is not None)]
        return [session for session in found if session.state is State.IDLE]

    @property
    def awaits_first(self) -> bool:
        """Whether nothing was compared yet, and a quick target is being prepared.

        Then nothing else is to be started: what starts beside it takes its time, and that of the self-test.
        """
        quick = [t.session for t in self.targets if t.session is not None and not t.slow]
        preparing = any(session.state is State.PREPARING for session in quick)
        return preparing and not self.failed and not any(target.executions for target in self.targets)

    def done(self, target: Target) -> bool:
        """Whether a target has run all inputs there will be."""
        return self.limit is not None and target.cursor >= self.limit

    def behind(self) -> list[Target]:
        """Ready targets that have an input to run, the one furthest behind first."""
        ready = [t for t in self.targets if t.runs and not self.done(t)]
        return sorted(ready, key=lambda target: target.cursor)

    def recipe(self, index: int) -> Recipe:
        """The recipe of the `index`-th input; at most one past those that are known."""
        return self.stream.recipe(index)

    def sample(self, index: int) -> dict[str, Tensor]:
        ahead = self._ahead.pop(index, None)
        return apply_recipe(self.seed, self.recipe(index)) if ahead is None else ahead

    def prepare_ahead(self, index: int, count: int = 1) -> None:
        """Make samples before their turn, while the workers are busy, where what they answer cannot change them."""
        if len(self._ahead) > 2 * MOST_BLOCK:  # those of targets that are late
            self._ahead.clear()
        for each in range(index, index + count if self.limit is None else min(index + count, self.limit)):
            new = each >= len(self.recipes)
            if new and not (self.stream.settled(each) and self.stream.needs(each) <= self.recorded):
                return
            if each not in self._ahead:
                self._ahead[each] = apply_recipe(self.seed, self.recipe(each))

    def _guide(self, recipe: Recipe, key: int) -> Step | None:
        return session_guide(self.reference, self.seed)(recipe, key)

    def rng_seed(self, index: int) -> int:
        return run_seed(self._rng_seed, index)

    def bench(self, target: Target, free: Callable[[], None] = lambda: None) -> Bench:
        """What a verdict on `target` needs; `free` makes it and the reference ready to run again."""
        assert target.session is not None
        return Bench(self.seed, self.reference, target.session, self.oracle, free)

    def record(self, index: int, content: str) -> None:
        """Add an input that is generated for the first time, with the hash of its content, to the digest."""
        self.recorded += 1
        self._chain.update(f"{index}:{self.recipes[index].id}:{content};".encode())

    def learn(self, index: int, answer: Answer) -> Learnt:
        """Take in the reference's answer to an input that is new."""
        return self.stream.taught(index, answer)

    def restore_input(self, index: int, recipe: Recipe, content: str, learnt: Learnt, died: str) -> None:
        """Take up an input from a journal. Raises XbfuzzError where the journal has a gap."""
        if index != len(self.recipes):
            raise XbfuzzError(f"the journal has input {index} of {self.name} where {len(self.recipes)} was due")
        self.stream.restore(recipe, learnt)
        self.record(index, content)
        if died:
            self.reference_died(died)

    def restore_run(self, spec: str, index: int, outcome: str, died: str, notes: list[str], *, judged: bool) -> None:
        """Take up one execution from a journal; those of targets that this campaign does not have are left out."""
        for target in self.targets:
            if target.spec == spec:
                target.cursor = index + 1
                self.tally(target, outcome, notes, judged=judged)
                if died:
                    target.died(died)

    def compare_with_itself(self) -> bool:
        """Take ONNX Runtime without optimisation as the reference of an ONNX file that PyTorch does not run.

        False, and nothing changes, where the seed's model is no such file or the reference is that one already.
        """
        if self.seed.model.source != "onnx" or parse(self.planned.reference).runtime == "onnxruntime":
            return False
        self.no_module = self.reference.reason
        self.seed = self.seed.model_copy(update={"reference": AS_WRITTEN}).at(self.seed.base)
        self.planned.seed, self.planned.reference = self.seed, AS_WRITTEN
        self.reference = Session(self.seed, AS_WRITTEN, self.example, self._where)
        self.targets = [target for target in self.targets if target.spec != AS_WRITTEN]
        for target in self.targets:
            if target.session is not None:
                target.session.seed = self.seed
        self.failed = "" if self.targets else NO_TARGET
        return True

    def vet(self) -> None:
        """Prove that comparing this seed's outputs would notice a fault; else `failed` says why not."""
        answers = []
        for draw in range(VETTING_INPUTS):
            answer = self.reference.run(base_sample(self.seed, draw), rng_seed=run_seed(self._rng_seed, draw))
            if answer.leaves is None:
                does = "dies" if answer.death is not None else "raises"
                self.failed = f"the reference {does} on base input {draw}, so that nothing is compared: {answer.error}"
                return
            answers.append(answer.leaves)
        self.vacuity = informative_leaves(answers, self.seed.tolerance)
        if self.vacuity.vacuous:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in self.vacuity.reasons.items())
            self.failed = f"vacuous: nothing in the output can tell a wrong answer ({reasons or 'no output'})"
            return
        outputs = answers[0]
        asked: dict[bool, OracleAnswer] = {}

        def ask(decide: bool) -> OracleAnswer:
            if decide not in asked:
                rng_seed = run_seed(self._rng_seed, 0)
                asked[decide] = ask_oracle(self.oracle, base_sample(self.seed, 0), rng_seed=rng_seed, decide=decide)
            return asked[decide]

        def undecided(decide: bool) -> OracleAnswer:
            if decide:
                raise OracleDown("the self-test asks about decisions only where it must")
            return ask(decide)

        def verdict(leaves: Leaves) -> Verdict:
            """Runs for decisions are three quarters of the oracle's work: only where the outcome hangs on one."""
            found, _ = verdict_of(self.seed, outputs, leaves, undecided, vacuity=self.vacuity)
            if any(_stands_anyway(difference) for difference in found.differences):
                return found
            return verdict_of(self.seed, outputs, leaves, ask, vacuity=self.vacuity)[0]

        self.self_test = self_test(
            outputs,
            verdict,
            torch.Generator().manual_seed(0),
            informative=self.vacuity.informative,
            tolerance=self.seed.tolerance,
            truth=lambda: ask(False).truth,
        )
        if not self.self_test.ok:
            missed = ", ".join(self.self_test.missed) or "nothing could be planted"
            self.failed = f"vacuous: the comparison would not notice: {missed}"
            return
        self.vetted = True

    def tally(self, target: Target, outcome: str, notes: list[str], *, judged: bool) -> None:
        """Count one execution; `notes` are its verdict's."""
        target.executions += 1
        target.outcomes[outcome] += 1
        target.judged += int(judged)
        self.harness_errors += [note for note in notes if note.startswith("harness error")]

    def reference_died(self, how: str) -> None:
        """Count a death of the reference on a new input; after too many the lane fails.

        Deaths when a late target runs an old input again do not count: their number is a matter of time.
        """
        self.reference_deaths += 1
        if self.reference_deaths >= MOST_REFERENCE_DEATHS:
            self.failed = f"its reference died {self.reference_deaths} times; the last time: {how}"

    def close(self) -> None:
        """End all processes. Inputs in flight are forgotten: they run again."""
        self.in_flight = self.landed = None
        for session in self.sessions:
            session.close()


def _stands_anyway(difference: Difference) -> bool:
    """Whether a difference that was judged without runs for decisions stands with them too.

    Those runs can make rounding only of values that looked like a near-tie; of the others they tell who is to blame.
    """
    return difference.kind is not Kind.TASK and not (difference.kind is Kind.VALUE and difference.near_tie)
