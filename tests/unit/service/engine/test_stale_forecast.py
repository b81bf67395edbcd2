"""After an idle time no forecast refuses a sequence, however the backlog before it ended."""

from collections.abc import Callable

import pytest

from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Finish, Sequence, StoppedError
from dragoman.service.engine.step import Step

WORD, END = 50, 2
ROWS = 4
OUTPUT_TOKENS = 10
STEP_SECONDS = 0.05
IDLE_SECONDS = 30.0
DEADLINE_SECONDS = 60.0


class Lanes:
    """Lanes over one queue, driven by hand: every sequence ends after OUTPUT_TOKENS steps."""

    def __init__(self, lanes: int = 1) -> None:
        limits = BatchLimits(rows=ROWS, tokens=1000, encode_tokens=1000, queue_sequences=1000, queue_tokens=100_000)
        self.queue = Queue(limits.queue_sequences, limits.queue_tokens)
        self.schedulers = [Scheduler(limits, (END,), self.queue) for _ in range(lanes)]
        self.submitted: list[Sequence] = []
        self.now = 0.0

    @property
    def idle(self) -> bool:
        return all(scheduler.idle for scheduler in self.schedulers)

    @property
    def waiting(self) -> list[Sequence]:
        rows = {sequence for scheduler in self.schedulers for sequence in scheduler.rows}
        return [sequence for sequence in self.submitted if sequence.finish is None and sequence not in rows]

    def submit(self, count: int, seconds: float | None = DEADLINE_SECONDS) -> None:
        """Submit sequences one by one."""
        for _ in range(count):
            deadline = None if seconds is None else self.now + seconds
            sequence = Sequence((10, 11, END), (1,), OUTPUT_TOKENS, lambda _: None, deadline)
            self.queue.submit([sequence], self.now)
            self.submitted.append(sequence)

    def cancel(self) -> None:
        """Cancel all that have not ended."""
        for sequence in self.submitted:
            if sequence.finish is None:
                sequence.cancel()

    def turn(self, seconds: float = STEP_SECONDS) -> None:
        """Let each lane make one step, which takes so many seconds."""
        for scheduler in self.schedulers:
            scheduler.drop_expired(self.now)
            scheduler.admit(self.now, ROWS)
        self.now += seconds
        for scheduler in self.schedulers:
            scheduler.update([Step(WORD, -0.5)] * len(scheduler.rows), self.now)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def until_idle(self) -> None:
        while not self.idle:
            self.turn()

    def build_backlog(self) -> None:
        """Leave 20 sequences waiting, with a measured pace."""
        self.submit(20 + 3 * ROWS * len(self.schedulers))
        self.turns(3 * OUTPUT_TOKENS)
        assert len(self.queue) == 20

    def burst(self) -> None:
        """Submit 100 sequences over ten seconds at most, all of which can be answered in time."""
        for _ in range(25):
            self.submit(4)
            self.turn()
        self.until_idle()
        assert {sequence.finish for sequence in self.submitted[-100:]} == {Finish.LENGTH}


def by_admission(lanes: Lanes) -> None:
    pass


def by_cancellation(lanes: Lanes) -> None:
    lanes.cancel()


def by_cancellation_of_the_waiting(lanes: Lanes) -> None:
    for sequence in lanes.waiting:
        sequence.cancel()


def by_deadline(lanes: Lanes) -> None:
    lanes.now += DEADLINE_SECONDS


def by_refusal_at_the_head(lanes: Lanes) -> None:
    unpromised = lanes.waiting
    lanes.submit(20)
    for sequence in unpromised:
        sequence.cancel()
    lanes.queue.drop_expired(lanes.now)
    # No head has the time for its run; the last starts nevertheless.
    lanes.now = (lanes.queue.head.deadline or 0.0) - 2 * STEP_SECONDS
    refused = [gone for scheduler in lanes.schedulers for gone in scheduler.admit(lanes.now, ROWS).gone]
    assert len(refused) == 19


def by_draining(lanes: Lanes) -> None:
    for scheduler in lanes.schedulers:
        scheduler.drain(StoppedError("the engine has stopped"), lanes.now)


def by_cancellation_in_a_hang(lanes: Lanes) -> None:
    lanes.turn(50.0)
    lanes.cancel()


def by_deadline_after_memory_was_refused(lanes: Lanes) -> None:
    for scheduler in lanes.schedulers:
        scheduler.shrink(0, MemoryError(), lanes.now)
    lanes.turn()
    lanes.now += DEADLINE_SECONDS


def by_cancellation_after_memory_was_refused(lanes: Lanes) -> None:
    lanes.turn()
    for sequence in lanes.waiting:
        sequence.cancel()
    for scheduler in lanes.schedulers:
        scheduler.drop_expired(lanes.now)
        scheduler.shrink(0, MemoryError(), lanes.now)
    lanes.turn()
    lanes.cancel()


WAYS = [
    by_admission,
    by_cancellation,
    by_cancellation_of_the_waiting,
    by_deadline,
    by_refusal_at_the_head,
    by_draining,
    by_cancellation_in_a_hang,
    by_deadline_after_memory_was_refused,
    by_cancellation_after_memory_was_refused,
]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("leave", WAYS)
def test_a_burst_after_an_idle_time_is_admitted(leave: Callable[[Lanes], None], lanes: int) -> None:
    engine = Lanes(lanes)
    engine.build_backlog()
    leave(engine)
    engine.until_idle()
    engine.now += IDLE_SECONDS
    engine.burst()


@pytest.mark.parametrize("leave", [way for way in WAYS if way is not by_refusal_at_the_head])
def test_an_idle_time_with_a_fresh_rate_is_not_counted(leave: Callable[[Lanes], None]) -> None:
    # Heads are refused after a stall, which counts: sequences waited.
    engine = Lanes()
    engine.build_backlog()
    leave(engine)
    engine.until_idle()
    engine.now += 8.0
    engine.burst()


def test_a_backlog_that_was_never_admitted_leaves_no_pace() -> None:
    engine = Lanes()
    engine.submit(100, seconds=STEP_SECONDS)
    engine.turns(2)
    assert engine.idle
    engine.now += IDLE_SECONDS
    engine.burst()


def test_late_answers_before_an_idle_time_are_forgotten() -> None:
    engine = Lanes()
    engine.build_backlog()
    for _ in range(100):
        engine.queue.pace.promise(kept=False)
    engine.until_idle()
    engine.now += IDLE_SECONDS
    fresh = Lanes()
    for each in (engine, fresh):
        each.submit(60)
        each.turns(3 * OUTPUT_TOKENS)
    assert engine.queue.pace.forecast(1000, 10, engine.now) == pytest.approx(
        fresh.queue.pace.forecast(1000, 10, fresh.now)
    )


@pytest.mark.parametrize("backlog", [0, 20])
def test_rows_held_up_before_an_idle_time_are_forgotten(backlog: int) -> None:
    engine = Lanes()
    for _ in range(20):
        engine.submit(ROWS + backlog, seconds=None)
        # The process was suspended.
        engine.turn(500.0)
        engine.until_idle()
    engine.now += IDLE_SECONDS
    engine.burst()


def test_a_pace_of_few_rows_refuses_nothing() -> None:
    # One short row of many says nothing about the others.
    limits = BatchLimits(rows=32, tokens=10_000, encode_tokens=10_000, queue_sequences=1000, queue_tokens=100_000)
    queue = Queue(limits.queue_sequences, limits.queue_tokens)
    scheduler = Scheduler(limits, (END,), queue)
    for now in range(3):
        queue.submit([Sequence((10, END), (1,), 50, lambda _: None) for _ in range(40)], 20.0 * now)
        scheduler.admit(20.0 * now, 100)
        scheduler.update([Step(END, -0.5), *[Step(WORD, -0.5)] * 31], 20.0 * now + 19)
    queue.submit([Sequence((10, END), (1,), 50, lambda _: None, 60.0 + DEADLINE_SECONDS)], 60.0)
