"""For any order of events, each text ends once, with the same answer as alone."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.service.engine.fair_scheduler import FairScheduler
from dragoman.service.engine.lane import Lane, LaneGroup
from dragoman.service.engine.offline import Silent
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Finish, QueueFullError, Sequence
from dragoman.service.errors import DeadlineUnreachableError
from tests.support.fake_runner import END, START, FakeRunner, log_prob_of

POISON, BROKEN = 7, 8
"""Tokens on which FakeRunner fails."""

MAX_TURNS = 2000


@dataclass(frozen=True)
class Text:
    """A text to submit: length of its source, longest output, and a token on which the runner fails."""

    length: int
    max_output: int
    fault: int | None


@dataclass(frozen=True)
class Submit:
    texts: tuple[Text, ...]
    seconds: float | None


@dataclass(frozen=True)
class Cancel:
    which: int


@dataclass(frozen=True)
class Turn:
    seconds: float


@dataclass(frozen=True)
class Fault:
    """The next run raises, once."""


@dataclass(frozen=True)
class Memory:
    """From now on memory suffices for so many rows."""

    rows: int


Event = Submit | Cancel | Turn | Fault | Memory

texts = st.builds(
    Text,
    length=st.integers(1, 12),
    max_output=st.sampled_from((0, 1, 3, 12, 40)),
    fault=st.sampled_from((None, None, None, None, POISON, BROKEN)),
)
submits = st.builds(
    Submit,
    texts=st.lists(texts, min_size=1, max_size=4).map(tuple),
    seconds=st.sampled_from((None, None, 0.001, 0.5, 5.0)),
)
calm = st.one_of(
    submits,
    st.builds(Cancel, st.integers(0, 40)),
    st.builds(Turn, st.sampled_from((0.001, 0.1, 2.0))),
    st.builds(Turn, st.sampled_from((0.001, 0.1))),
    st.just(Fault()),
)
events = st.one_of(calm, st.builds(Memory, st.integers(0, 4)))
limits = st.builds(
    BatchLimits,
    rows=st.integers(1, 6),
    tokens=st.sampled_from((10, 60, 10_000)),
    encode_tokens=st.sampled_from((5, 30, 1000)),
    queue_sequences=st.sampled_from((3, 100)),
    queue_tokens=st.sampled_from((50, 10_000)),
    admission_steps=st.integers(0, 3),
)


@dataclass
class Driven:
    """A lane without its thread, driven by hand."""

    limits: BatchLimits
    now: float = 0.0
    taken: list[Sequence] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.limits.rows, poison=(POISON,), broken=(BROKEN,))
        self.runner.most_rows = 100
        self.queue = Queue(self.limits.queue_sequences, self.limits.queue_tokens)
        self.scheduler = Scheduler(self.limits, (END,), self.queue)
        lane_group = LaneGroup(self.queue)
        lane_group.schedulers = [self.scheduler]
        clock = self.clock
        self._lane = Lane(
            lane_group, self.scheduler, self.runner, Silent(), clock, FairScheduler(1, clock).share().ticket()
        )

    def clock(self) -> float:
        return self.now

    def do(self, event: Event) -> None:
        match event:
            case Submit(texts, seconds):
                self._submit(texts, None if seconds is None else self.now + seconds)
            case Cancel(which) if self.taken:
                self.taken[which % len(self.taken)].cancel()
            case Fault():
                self.runner.fault = RuntimeError("a passing fault")
            case Memory(rows):
                self.runner.most_rows = rows
            case Turn(seconds):
                self.turn(seconds)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        self._lane._iterate()
        running = set(self.scheduler.rows)
        assert len(running) == len(self.scheduler.rows) <= self.limits.rows
        waiting = [each for each in self.taken if each.finish is None and each not in running]
        assert len(self.queue) == len(waiting)
        assert self.queue.tokens == sum(each.cost for each in waiting)
        assert all(each.finish is None for each in running)

    def until_all_have_ended(self) -> None:
        self.runner.most_rows = 100
        turns = 0
        while not self.scheduler.idle:
            self.turn(0.01)
            turns += 1
            assert turns < MAX_TURNS, "sequences do not end"

    def _submit(self, texts: tuple[Text, ...], deadline: float | None) -> None:
        sequences: list[Sequence] = []
        for text in texts:
            number = len(self.taken) + len(sequences) + 1
            # No two texts share a token, so that an answer to the wrong text is seen.
            words = [1000 * number + place for place in range(text.length)]
            if text.fault is not None:
                words[0] = text.fault
            sequences.append(Sequence((*words, END), (START,), text.max_output, self._done, deadline))
        try:
            self.queue.submit(sequences, self.now)
        except (QueueFullError, DeadlineUnreachableError):
            return
        self.taken += sequences

    def _done(self, sequence: Sequence) -> None:
        assert sequence.finish is not None
        self.ended[id(sequence)] += 1


def check(sequence: Sequence, memory_was_refused: bool) -> None:
    """Check that the sequence ended in an allowed way, with the same answer as alone."""
    faulty = sequence.source[0] in (POISON, BROKEN)
    if sequence.max_output == 0:
        allowed = {Finish.END, Finish.CANCELLED, Finish.DEADLINE}
        if sequence.finish is Finish.END:
            assert [int(state[0]) for state in sequence.states[1:]] == list(sequence.source[1:])
    else:
        allowed = {Finish.END, Finish.LENGTH, Finish.CANCELLED, Finish.DEADLINE}
        assert sequence.tokens == list(sequence.source[: len(sequence.tokens)])
        assert sequence.log_prob == sum(map(log_prob_of, sequence.tokens))
    if sequence.finish is Finish.END and sequence.max_output:
        assert sequence.tokens == list(sequence.source)
    if sequence.finish is Finish.LENGTH:
        assert len(sequence.tokens) == sequence.max_output < len(sequence.source)
    if faulty and not (sequence.max_output == 0 and sequence.source[0] == POISON):
        allowed = {Finish.FAILED, Finish.CANCELLED, Finish.DEADLINE}
    if memory_was_refused:
        allowed.add(Finish.FAILED)
    assert sequence.finish in allowed


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(limits, st.lists(events, max_size=50))
def test_each_text_ends_once_with_the_answer_it_has_alone(bounds: BatchLimits, happening: list[Event]) -> None:
    driven = Driven(bounds)
    for event in happening:
        driven.do(event)
    driven.until_all_have_ended()
    refused = any(isinstance(event, Memory) for event in happening)
    for sequence in driven.taken:
        assert driven.ended[id(sequence)] == 1
        check(sequence, refused)
    assert (len(driven.queue), driven.queue.tokens, len(driven.scheduler.rows)) == (0, 0, 0)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(limits, st.lists(calm, max_size=50))
def test_no_text_is_overtaken_while_memory_suffices(bounds: BatchLimits, happening: list[Event]) -> None:
    driven = Driven(bounds)
    for event in happening:
        driven.do(event)
    driven.until_all_have_ended()
    admitted = [each.times.admitted for each in driven.taken if each.times.admitted]
    assert admitted == sorted(admitted)


def test_a_text_refused_at_the_head_is_delivered_once() -> None:
    driven = Driven(BatchLimits(rows=1, tokens=100, encode_tokens=100, queue_sequences=9, queue_tokens=1000))
    text = Text(length=2, max_output=3, fault=None)
    driven.do(Submit((text,) * 6, None))
    for _ in range(9):
        driven.turn(1.0)
    for seconds in (60.0, None):
        driven.do(Submit((text,), seconds))
    *_, late, patient = driven.taken
    while driven.queue.head is not late or driven.scheduler.rows:
        driven.turn(1.0)
    # The lane was held up, and a text takes 3 seconds.
    driven.turn((late.deadline or 0) - 1.5 - driven.now)
    assert (late.finish, driven.ended[id(late)]) == (Finish.DEADLINE, 1)
    assert isinstance(late.error, DeadlineUnreachableError)
    driven.until_all_have_ended()
    assert (patient.finish, driven.ended[id(patient)]) == (Finish.END, 1)
