"""Sequences leave on cancellation, at their deadline, and when the engine stops."""

from dragoman.service.engine.sequence import Finish, StoppedError
from tests.unit.service.engine.schedules import limits, running, sequence


def test_expired_and_cancelled_sequences_leave_queue_and_rows() -> None:
    row, row_late = sequence(), sequence(deadline=5.0)
    scheduler = running(row, row_late, limits=limits(rows=2))
    waiting, waiting_late, waiting_cancelled = sequence(), sequence(deadline=5.0), sequence()
    scheduler.queue.submit([waiting, waiting_late, waiting_cancelled], 0.0)
    waiting_cancelled.cancel()
    row.cancel()
    removal = scheduler.drop_expired(5.0)
    assert set(removal.gone) == {row, row_late, waiting_late, waiting_cancelled}
    assert [each.finish for each in (row, row_late, waiting_late, waiting_cancelled)] == [
        Finish.CANCELLED,
        Finish.DEADLINE,
        Finish.DEADLINE,
        Finish.CANCELLED,
    ]
    assert len(scheduler.queue) == 1
    assert scheduler.queue.tokens == waiting.cost
    assert list(scheduler.rows) == []


def test_a_sequence_stays_until_its_deadline() -> None:
    scheduler = running(sequence(deadline=5.0))
    assert scheduler.drop_expired(4.999).gone == ()


def test_a_cancellation_at_the_deadline_counts_as_the_deadline() -> None:
    text = sequence(deadline=5.0)
    scheduler = running(text)
    text.cancel()
    scheduler.drop_expired(5.0)
    assert text.finish is Finish.DEADLINE


def test_draining_fails_all_but_expired_sequences() -> None:
    row, waiting, cancelled = sequence(), sequence(), sequence()
    scheduler = running(row)
    vector, embedded = sequence(max_output=0), sequence(max_output=0)
    scheduler.queue.submit([vector, embedded], 0.0)
    scheduler.admit(0.0)
    scheduler.finish_embedded([embedded], 0.0)
    scheduler.queue.submit([waiting, cancelled], 0.0)
    cancelled.cancel()
    error = StoppedError("the engine has stopped")
    assert set(scheduler.drain(error, 1.0)) == {row, vector, waiting, cancelled}
    assert (row.error, vector.error, waiting.error, cancelled.error) == (error, error, error, None)
    assert (row.finish, waiting.finish, cancelled.finish) == (Finish.FAILED, Finish.FAILED, Finish.CANCELLED)
    assert scheduler.idle
    assert scheduler.queue.tokens == 0
