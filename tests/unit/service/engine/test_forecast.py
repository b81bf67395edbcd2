import pytest

from dragoman.service.engine.forecast import (
    CORRECTION,
    DEVIATIONS,
    MAX_CORRECTION,
    MEMORY_SECONDS,
    SAFETY_FACTOR,
    Pace,
)
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Finish, Sequence, TooSlowError
from dragoman.service.engine.step import Step

WORD, END = 50, 2
COST = 8


def sequence(deadline: float | None = None, max_output: int = 5) -> Sequence:
    return Sequence((10, 11, 2), (1,), max_output, lambda _: None, deadline)


def wait(pace: Pace, tokens: int) -> float:
    """Without what is added for caution."""
    seconds = pace.forecast(tokens, 0)
    assert seconds is not None
    return seconds / SAFETY_FACTOR


def test_without_a_backlog_nothing_is_foretold() -> None:
    pace = Pace()
    for now in range(10):
        pace.drained(100, backlog=False, now=now)
        assert pace.forecast(1000, 10) is None


def test_the_wait_is_what_lies_before_at_the_pace_of_the_backlog() -> None:
    pace = Pace()
    for now in (1.0, 1.5, 2.0, 2.5):
        pace.drained(100, backlog=True, now=now)
    assert wait(pace, 1000) == pytest.approx(5.0)
    assert wait(pace, 0) == 0


def test_time_in_which_nobody_waited_is_not_counted() -> None:
    pace = Pace()
    pace.drained(100, backlog=True, now=1.0)
    pace.drained(100, backlog=False, now=1.5)
    pace.drained(100, backlog=True, now=1000.0)
    pace.drained(100, backlog=True, now=1000.5)
    assert wait(pace, 1000) == pytest.approx(5.0)


def test_a_pace_that_changes_is_believed_after_some_seconds() -> None:
    pace, now = Pace(), 0.0
    for seconds, steps in ((0.1, 300), (1.0, int(5 * MEMORY_SECONDS))):
        for _ in range(steps):
            now += seconds
            pace.drained(100, backlog=True, now=now)
    assert wait(pace, 1000) == pytest.approx(10, rel=0.1)


def test_what_a_row_takes_is_what_its_length_usually_takes_and_more_the_more_they_differ() -> None:
    even, uneven = Pace(), Pace()
    for pace in (even, uneven):
        pace.drained(1, backlog=True, now=0.0)
        pace.drained(1, backlog=True, now=1.0)
    for _ in range(500):
        even.decoded(10, 20.0)
        uneven.decoded(10, 10.0)
        uneven.decoded(10, 30.0)
    assert even.forecast(0, 3) == pytest.approx(3 * 2.0)
    assert uneven.forecast(0, 3) == pytest.approx(3 * (2.0 + DEVIATIONS * 1.0), rel=0.05)


class Busy:
    """One row, 8 tokens a sequence, and each takes 2 seconds: a pace of 4 tokens a second."""

    def __init__(self) -> None:
        self.queue = Queue(100, 10_000)
        self.scheduler = Scheduler(BatchLimits(1, 1000, 1000, 100, 10_000), (END,), self.queue)
        self.now = 0.0

    def turn(self) -> None:
        self.scheduler.drop_expired(self.now)
        self.scheduler.admit(self.now, 100)
        self.now += 2.0
        self.scheduler.update([Step(END, -0.5)], self.now)


@pytest.fixture
def busy() -> Busy:
    made = Busy()
    made.queue.submit([sequence() for _ in range(6)], 0.0)
    for _ in range(3):
        made.turn()
    return made


def test_who_would_be_late_is_refused_at_once_and_told_by_how_much(busy: Busy) -> None:
    # Three wait, 6 seconds, and its own run takes 2.
    needed = 6 * SAFETY_FACTOR + 2
    with pytest.raises(TooSlowError) as caught:
        busy.queue.submit([sequence(deadline=busy.now + needed - 0.5)], busy.now)
    assert caught.value.late_seconds == pytest.approx(0.5)
    busy.queue.submit([sequence(deadline=busy.now + needed + 0.1)], busy.now)
    assert len(busy.queue) == 4


def test_who_could_start_but_would_be_late_makes_way_for_who_waits(busy: Busy) -> None:
    first, second = (sequence(deadline=busy.now + 8 * SAFETY_FACTOR + 5) for _ in range(2))
    busy.queue.submit([first], busy.now)
    busy.queue.submit([second], busy.now)
    busy.queue.submit([patient := sequence()], busy.now)
    while busy.queue.head is not first:
        busy.turn()
    foretold = wait(busy.queue.pace, 1000)
    # Something held the engine up. Its run takes 2 seconds.
    busy.now = (first.deadline or 0) - 1.5
    admission = busy.scheduler.admit(busy.now, 100)
    assert (admission.gone, admission.insert) == ((first, second), (patient,))
    assert (first.finish, first.times.admitted) == (Finish.DEADLINE, 0)
    assert isinstance(first.error, TooSlowError)
    assert first.error.late_seconds == pytest.approx(0.5)
    assert busy.queue.tokens == 0
    assert wait(busy.queue.pace, 1000) > foretold, "it was promised to be in time"


def test_the_last_that_waits_is_never_too_late_to_start(busy: Busy) -> None:
    last = sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 3)
    busy.queue.submit([last], busy.now)
    while busy.queue.head is not last:
        busy.turn()
    busy.now = (last.deadline or 0) - 1.5
    assert last.promised
    assert busy.scheduler.admit(busy.now, 100).insert == (last,)


def test_texts_of_one_call_that_found_nobody_waiting_are_never_too_late_to_start(busy: Busy) -> None:
    while busy.queue:
        busy.turn()
    call = [sequence(deadline=busy.now + 0.1) for _ in range(3)]
    busy.queue.submit(call, busy.now)
    assert busy.scheduler.admit(busy.now, 100).gone == ()
    assert busy.scheduler.rows == call[:1]


def test_who_still_has_the_time_or_needs_none_starts_though_others_wait(busy: Busy) -> None:
    soon, vector = (sequence(deadline=busy.now + 8 * SAFETY_FACTOR + 3, max_output=most) for most in (5, 0))
    for waiting in (soon, vector, sequence()):
        busy.queue.submit([waiting], busy.now)
    while busy.queue.head is not soon:
        busy.turn()
    for waiting, left in ((soon, 2.1), (vector, 0.1)):
        waiting.deadline = busy.now + left
        assert waiting.promised
    admission = busy.scheduler.admit(busy.now, 100)
    assert (admission.gone, admission.insert, admission.embed) == ((), (soon,), (vector,))


def test_the_texts_of_one_request_wait_for_each_other(busy: Busy) -> None:
    with pytest.raises(TooSlowError):
        busy.queue.submit([sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 2.1) for _ in range(2)], busy.now)
    busy.queue.submit([sequence(deadline=busy.now + 8 * SAFETY_FACTOR + 2.1) for _ in range(2)], busy.now)


def test_who_has_no_deadline_or_finds_nobody_waiting_is_never_refused(busy: Busy) -> None:
    busy.queue.submit([sequence()], busy.now)
    while busy.queue:
        busy.turn()
    busy.queue.submit([sequence(deadline=busy.now + 0.1)], busy.now)


def test_an_embedding_needs_no_time_to_decode(busy: Busy) -> None:
    busy.queue.submit([sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 0.1, max_output=0)], busy.now)


def test_it_can_be_asked_before_there_is_a_sequence(busy: Busy) -> None:
    needed = 6 * SAFETY_FACTOR + 2
    assert busy.queue.late_by(3, busy.now + needed - 0.5, busy.now) == pytest.approx(0.5)
    assert busy.queue.late_by(3, busy.now + needed + 0.1, busy.now) < 0
    assert busy.queue.late_by(2, busy.now + needed - 0.5, busy.now) < 0
    assert busy.queue.late_by(3, None, busy.now) == 0
    assert len(busy.queue) == 3


def test_where_nobody_waits_nobody_is_late_before_there_is_a_sequence(busy: Busy) -> None:
    while busy.queue:
        busy.turn()
    assert busy.queue.late_by(1000, busy.now, busy.now) == 0


def test_what_fills_free_rows_says_nothing_of_how_fast_they_become_free() -> None:
    queue = Queue(100, 10_000)
    scheduler = Scheduler(BatchLimits(4, 1000, 3, 100, 10_000), (END,), queue)
    queue.submit([sequence() for _ in range(12)], 0.0)
    for turn in range(4):
        scheduler.admit(0.001 * turn, 100)
    assert len(scheduler.rows) == 4
    for turn in range(1, 4):
        scheduler.update([Step(END, -0.5), *[Step(WORD, -0.5)] * 3], 2.0 * turn)
        scheduler.admit(2.0 * turn, 100)
    assert wait(queue.pace, COST) == pytest.approx(2.0, rel=0.01)


def test_how_fast_rows_are_where_nobody_waits_is_not_how_fast_they_are_at_load() -> None:
    pace = Pace()
    for _ in range(100):
        pace.decoded(10, 1.0)
    pace.drained(1, backlog=True, now=0.0)
    pace.drained(1, backlog=True, now=1.0)
    assert pace.forecast(0, 10) == pytest.approx(1.0)
    for _ in range(3):
        pace.decoded(10, 5.0)
    assert pace.forecast(0, 10) == pytest.approx(5.0)


def test_the_forecast_grows_while_more_are_late_than_may_be_and_shrinks_again() -> None:
    pace = Pace()
    pace.drained(100, backlog=True, now=0.0)
    pace.drained(100, backlog=True, now=1.0)
    at_first = wait(pace, 1000)
    for _ in range(10):
        pace.promise(kept=False)
    assert wait(pace, 1000) == pytest.approx(at_first * (1 + 10 * CORRECTION))
    for _ in range(1000):
        pace.promise(kept=False)
    assert wait(pace, 1000) == pytest.approx(at_first * MAX_CORRECTION)
    for number in range(40_000):
        pace.promise(kept=number % 500 != 0)
    assert wait(pace, 1000) < 1.2 * at_first, "one in five hundred is no fault"


def test_only_those_that_were_promised_to_come_in_time_are_late(busy: Busy) -> None:
    before = wait(busy.queue.pace, 1000)
    unforeseen = sequence(deadline=busy.now + 0.5)
    while busy.queue:
        busy.turn()
    busy.queue.submit([unforeseen], busy.now)
    busy.queue.drop_expired(busy.now + 100)
    assert wait(busy.queue.pace, 1000) == pytest.approx(before, rel=0.2)
    assert not unforeseen.promised
    busy.queue.submit([sequence()], busy.now)
    busy.queue.submit([late := sequence(deadline=busy.now + 50)], busy.now)
    assert late.promised
    unmoved = wait(busy.queue.pace, 1000)
    busy.queue.drop_expired(busy.now + 100)
    assert wait(busy.queue.pace, 1000) == pytest.approx(unmoved * (1 + CORRECTION))
