import pytest

from dragoman.service.engine.forecast import (
    CORRECTION,
    DEVIATIONS,
    EVIDENCE_SHARE,
    FRESH_SECONDS,
    MARGIN_SHARE,
    MAX_CORRECTION,
    MEMORY_SECONDS,
    MIN_MARGIN_SECONDS,
    SAFETY_FACTOR,
    Pace,
    margin_seconds,
)
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.engine.step import Step
from dragoman.service.errors import DeadlineUnreachableError

WORD, END = 50, 2
COST = 8


def sequence(deadline: float | None = None, max_output: int = 5) -> Sequence:
    return Sequence((10, 11, 2), (1,), max_output, lambda _: None, deadline)


def drain(pace: Pace, *times: float, tokens: int = 100, backlog: bool = True) -> None:
    """Record an admission at each of `times`; each finds `tokens` freed, and as many are occupied."""
    for now in times:
        pace.drained(tokens, tokens, backlog, now)


def wait(pace: Pace, tokens: int, now: float) -> float:
    """Seconds to drain `tokens`, without the safety factor."""
    seconds = pace.forecast(tokens, 0, now)
    assert seconds is not None
    return seconds / SAFETY_FACTOR


def test_without_a_backlog_there_is_no_forecast() -> None:
    pace = Pace()
    for now in range(10):
        drain(pace, now, backlog=False)
        assert pace.forecast(1000, 10, now) is None
        assert pace.tokens_per_second(now) is None


def test_the_wait_is_the_tokens_ahead_over_the_rate() -> None:
    pace = Pace()
    drain(pace, 1.0, 1.5, 2.0, 2.5)
    assert pace.tokens_per_second(2.5) == pytest.approx(200)
    assert wait(pace, 1000, 2.5) == pytest.approx(5.0)
    assert wait(pace, 0, 2.5) == 0


def test_time_without_a_backlog_is_not_counted() -> None:
    pace = Pace()
    drain(pace, 1.0)
    drain(pace, 1.5, backlog=False)
    drain(pace, 9.0, 9.5)
    assert wait(pace, 1000, 9.5) == pytest.approx(5.0)


def test_time_after_the_queue_became_empty_is_not_counted() -> None:
    pace = Pace()
    drain(pace, 1.0, 1.5)
    pace.emptied()
    drain(pace, 9.0, 9.5)
    assert wait(pace, 1000, 9.5) == pytest.approx(5.0)


@pytest.mark.parametrize("emptied", [True, False])
def test_a_rate_without_fresh_evidence_is_unknown(emptied: bool) -> None:
    pace = Pace()
    drain(pace, 1.0, 2.0)
    if emptied:
        pace.emptied()
    else:
        drain(pace, 2.0, tokens=0, backlog=False)
    assert pace.forecast(1000, 0, 2.0 + FRESH_SECONDS) is not None
    assert pace.forecast(1000, 0, 2.1 + FRESH_SECONDS) is None
    drain(pace, 1000.0)
    assert pace.forecast(1000, 0, 1000.0) is None
    drain(pace, 1000.1)
    assert wait(pace, 1000, 1000.1) == pytest.approx(1.0)


def test_rows_that_ended_before_the_first_measurement_count() -> None:
    pace = Pace()
    drain(pace, 0.0, tokens=0)
    pace.decoded(10, 50.0, 50.0)
    drain(pace, 50.0, 51.0)
    assert pace.forecast(0, 10, 51.0) == pytest.approx(50.0)


def test_a_rate_under_a_standing_backlog_stays_known() -> None:
    pace = Pace()
    drain(pace, 1.0, 2.0)
    assert wait(pace, 1000, 2.0 + 10 * FRESH_SECONDS) == pytest.approx(10.0)


def test_a_rate_is_unknown_until_a_share_of_the_rows_was_freed() -> None:
    pace, occupied = Pace(), 1000
    for now in range(4):
        pace.drained(100, occupied, True, now)
        assert (pace.forecast(1000, 0, now) is not None) is (100 * now >= EVIDENCE_SHARE * occupied)


def test_a_changed_rate_is_known_after_some_seconds() -> None:
    pace, now = Pace(), 0.0
    for seconds, steps in ((0.1, 300), (1.0, int(5 * MEMORY_SECONDS))):
        for _ in range(steps):
            now += seconds
            drain(pace, now)
    assert wait(pace, 1000, now) == pytest.approx(10, rel=0.1)


def test_a_run_takes_its_mean_and_more_the_more_runs_differ() -> None:
    even, uneven = Pace(), Pace()
    for pace in (even, uneven):
        drain(pace, 0.0, 1.0, tokens=1)
    for _ in range(500):
        even.decoded(10, 20.0, 1.0)
        uneven.decoded(10, 10.0, 1.0)
        uneven.decoded(10, 30.0, 1.0)
    assert even.forecast(0, 3, 1.0) == pytest.approx(3 * 2.0)
    assert uneven.forecast(0, 3, 1.0) == pytest.approx(3 * (2.0 + DEVIATIONS * 1.0), rel=0.05)


def test_the_margin_is_a_share_of_the_time_left_with_a_floor() -> None:
    assert margin_seconds(60.0) == pytest.approx(60 * MARGIN_SHARE)
    assert margin_seconds(0.5) == margin_seconds(-1.0) == MIN_MARGIN_SECONDS


class Busy:
    """One row, 8 tokens a sequence, 2 seconds each: a rate of 4 tokens a second."""

    def __init__(self) -> None:
        self.queue = Queue(100, 10_000)
        self.scheduler = Scheduler(BatchLimits(1, 1000, 1000, 100, 10_000), (END,), self.queue)
        self.now = 0.0

    @property
    def wait(self) -> float:
        return wait(self.queue.pace, 1000, self.now)

    def turn(self) -> None:
        self.scheduler.drop_expired(self.now)
        self.scheduler.admit(self.now, 100)
        self.now += 2.0
        self.scheduler.update([Step(END, -0.5)], self.now)


@pytest.fixture
def busy() -> Busy:
    """Three sequences wait, and the rate is known."""
    made = Busy()
    made.queue.submit([sequence() for _ in range(7)], 0.0)
    for _ in range(4):
        made.turn()
    return made


NEEDED = 6 * SAFETY_FACTOR + 2
"""Forecast for a sequence behind three: 6 seconds of waiting, and its own run of 2."""


def test_a_late_sequence_is_refused_with_the_forecast(busy: Busy) -> None:
    with pytest.raises(DeadlineUnreachableError) as caught:
        busy.queue.submit([sequence(deadline=busy.now + NEEDED - 0.5)], busy.now)
    forecast = caught.value.forecast
    assert forecast.late_seconds == pytest.approx(0.5)
    assert forecast.tokens_waiting == 3 * COST
    assert forecast.tokens_per_second == pytest.approx(COST / 2)
    assert forecast.seconds == pytest.approx(NEEDED)
    assert forecast.seconds_left == pytest.approx(NEEDED - 0.5)
    assert forecast.margin_seconds == pytest.approx(MARGIN_SHARE * (NEEDED - 0.5))
    busy.queue.submit([sequence(deadline=busy.now + NEEDED + 0.1)], busy.now)
    assert len(busy.queue) == 4


def test_a_sequence_late_within_the_margin_is_admitted(busy: Busy) -> None:
    busy.queue.submit([sequence(deadline=busy.now + NEEDED - 0.4)], busy.now)
    assert len(busy.queue) == 4


def test_a_head_that_would_be_late_is_refused_for_those_behind(busy: Busy) -> None:
    first, second = (sequence(deadline=busy.now + 8 * SAFETY_FACTOR + 5) for _ in range(2))
    busy.queue.submit([first], busy.now)
    busy.queue.submit([second], busy.now)
    busy.queue.submit([patient := sequence()], busy.now)
    while busy.queue.head is not first:
        busy.turn()
    before = busy.wait
    # The engine was held up, and a run takes 2 seconds.
    busy.now = (first.deadline or 0) - 1.5
    admission = busy.scheduler.admit(busy.now, 100)
    assert (admission.gone, admission.insert) == ((first, second), (patient,))
    assert (first.finish, first.times.admitted) == (Finish.DEADLINE, 0)
    assert isinstance(first.error, DeadlineUnreachableError)
    assert first.error.forecast.late_seconds == pytest.approx(0.5)
    assert busy.queue.tokens == 0
    assert busy.wait > before, "a promise was broken"


def test_the_last_waiting_sequence_is_never_refused_at_the_head(busy: Busy) -> None:
    last = sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 3)
    busy.queue.submit([last], busy.now)
    while busy.queue.head is not last:
        busy.turn()
    busy.now = (last.deadline or 0) - 1.5
    assert last.promised
    assert busy.scheduler.admit(busy.now, 100).insert == (last,)


def test_heads_without_a_forecast_are_never_refused(busy: Busy) -> None:
    while busy.queue:
        busy.turn()
    call = [sequence(deadline=busy.now + 0.1) for _ in range(3)]
    busy.queue.submit(call, busy.now)
    assert busy.scheduler.admit(busy.now, 100).gone == ()
    assert busy.scheduler.rows == call[:1]


def test_a_head_that_has_the_time_or_needs_none_starts(busy: Busy) -> None:
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


def test_sequences_of_one_request_wait_for_each_other(busy: Busy) -> None:
    with pytest.raises(DeadlineUnreachableError):
        busy.queue.submit([sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 2.1) for _ in range(2)], busy.now)
    busy.queue.submit([sequence(deadline=busy.now + 8 * SAFETY_FACTOR + 2.1) for _ in range(2)], busy.now)


def test_no_deadline_or_an_empty_queue_means_no_refusal(busy: Busy) -> None:
    busy.queue.submit([sequence()], busy.now)
    while busy.queue:
        busy.turn()
    busy.queue.submit([sequence(deadline=busy.now + 0.1)], busy.now)


def test_an_embedding_needs_no_time_to_decode(busy: Busy) -> None:
    busy.queue.submit([sequence(deadline=busy.now + 6 * SAFETY_FACTOR + 0.1, max_output=0)], busy.now)


def test_the_forecast_can_be_checked_without_a_sequence(busy: Busy) -> None:
    with pytest.raises(DeadlineUnreachableError) as caught:
        busy.queue.check(3, busy.now + NEEDED - 0.5, busy.now)
    assert caught.value.forecast.late_seconds == pytest.approx(0.5)
    busy.queue.check(3, busy.now + NEEDED + 0.1, busy.now)
    busy.queue.check(2, busy.now + NEEDED - 0.5, busy.now)
    busy.queue.check(3, None, busy.now)
    assert len(busy.queue) == 3


def test_an_empty_queue_passes_every_check(busy: Busy) -> None:
    while busy.queue:
        busy.turn()
    busy.queue.check(1000, busy.now, busy.now)


def test_filling_free_rows_is_no_evidence_of_the_rate() -> None:
    queue = Queue(100, 10_000)
    scheduler = Scheduler(BatchLimits(4, 1000, 3, 100, 10_000), (END,), queue)
    queue.submit([sequence() for _ in range(12)], 0.0)
    for turn in range(4):
        scheduler.admit(0.001 * turn, 100)
    assert len(scheduler.rows) == 4
    for turn in range(1, 4):
        scheduler.update([Step(END, -0.5), *[Step(WORD, -0.5)] * 3], 2.0 * turn)
        scheduler.admit(2.0 * turn, 100)
    assert wait(queue.pace, COST, 6.0) == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("lanes", [1, 2])
def test_rows_freed_without_a_backlog_are_no_evidence_of_the_rate(lanes: int) -> None:
    queue = Queue(100, 10_000)
    schedulers = [Scheduler(BatchLimits(4, 1000, 1000, 100, 10_000), (END,), queue) for _ in range(lanes)]

    def admit(now: float) -> None:
        for scheduler in schedulers:
            scheduler.admit(now, 4)

    def end_rows(count: int, now: float) -> None:
        for scheduler in schedulers:
            scheduler.update([Step(END, -0.5)] * count + [Step(WORD, -0.5)] * (len(scheduler.rows) - count), now)

    queue.submit([sequence() for _ in range(4 * lanes)], 0.0)
    admit(0.0)
    end_rows(4, 1.0)
    queue.submit([sequence() for _ in range(12 * lanes)], 100.0)
    admit(100.0)
    for now in (110.0, 111.0, 112.0):
        end_rows(1, now)
        admit(now)
    assert wait(queue.pace, lanes * COST, 112.0) == pytest.approx(1.0, rel=0.3)


def test_run_times_under_a_backlog_replace_those_without() -> None:
    pace = Pace()
    for _ in range(100):
        pace.decoded(10, 1.0, 0.0)
    drain(pace, 0.0, 1.0, tokens=1)
    assert pace.forecast(0, 10, 1.0) == pytest.approx(1.0)
    for _ in range(3):
        pace.decoded(10, 5.0, 1.0)
    assert pace.forecast(0, 10, 1.0) == pytest.approx(5.0)


def test_the_forecast_grows_with_late_answers_and_shrinks_again() -> None:
    pace = Pace()
    drain(pace, 0.0, 1.0)
    at_first = wait(pace, 1000, 1.0)
    for _ in range(10):
        pace.promise(kept=False)
    assert wait(pace, 1000, 1.0) == pytest.approx(at_first * (1 + 10 * CORRECTION))
    for _ in range(1000):
        pace.promise(kept=False)
    assert wait(pace, 1000, 1.0) == pytest.approx(at_first * MAX_CORRECTION)
    for number in range(40_000):
        pace.promise(kept=number % 500 != 0)
    assert wait(pace, 1000, 1.0) < 1.2 * at_first, "one in five hundred is no fault"


def test_only_sequences_with_a_forecast_count_as_late(busy: Busy) -> None:
    before = busy.wait
    unforeseen = sequence(deadline=busy.now + 0.5)
    while busy.queue:
        busy.turn()
    busy.queue.submit([unforeseen], busy.now)
    busy.queue.drop_expired(busy.now + 100)
    assert busy.wait == pytest.approx(before, rel=0.2)
    assert not unforeseen.promised
    busy.queue.submit([sequence()], busy.now)
    busy.queue.submit([late := sequence(deadline=busy.now + 50)], busy.now)
    assert late.promised
    unmoved = busy.wait
    busy.queue.drop_expired(busy.now + 100)
    assert busy.wait == pytest.approx(unmoved * (1 + CORRECTION))
