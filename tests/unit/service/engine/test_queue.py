"""Expired sequences leave the queue, wherever they are and whenever they expire."""

import random

import pytest

from dragoman.service.engine.queue import MIN_STALE_DEADLINES, Queue
from dragoman.service.engine.sequence import Finish, Sequence


class Counting(Sequence):
    """A sequence that counts the checks of its expiry."""

    checks = 0

    def expired_reason(self, now: float) -> Finish | None:
        self.checks += 1
        return super().expired_reason(now)


def sequence(deadline: float | None = None) -> Counting:
    return Counting((10, 11, 2), (1,), 5, lambda _: None, deadline)


def queue_of(*sequences: Sequence) -> Queue:
    queue = Queue(10_000, 10**6)
    queue.submit(sequences, 0.0)
    return queue


def test_sequences_that_stay_are_not_checked() -> None:
    alive = [sequence(deadline=100.0 + number) for number in range(500)] + [sequence() for _ in range(500)]
    late, cancelled = sequence(deadline=5.0), sequence()
    queue = queue_of(*alive, late, cancelled)
    cancelled.cancel()
    assert set(queue.drop_expired(5.0)) == {late, cancelled}
    assert (late.finish, cancelled.finish) == (Finish.DEADLINE, Finish.CANCELLED)
    assert sum(each.checks for each in alive) == 0
    assert (len(queue), queue.tokens) == (1000, 8000)


def test_a_sequence_cancelled_before_submission_is_dropped() -> None:
    text = sequence()
    text.cancel()
    assert queue_of(text).drop_expired(0.0) == [text]


def test_a_sequence_cancelled_twice_is_dropped_once() -> None:
    text = sequence(deadline=1.0)
    queue = queue_of(text)
    text.cancel()
    text.cancel()
    assert queue.drop_expired(2.0) == [text]
    assert queue.drop_expired(2.0) == []
    assert text.finish is Finish.DEADLINE


def test_a_running_sequence_is_not_dropped_by_the_queue() -> None:
    text = sequence(deadline=1.0)
    queue = queue_of(text)
    assert queue.take() is text
    text.cancel()
    assert queue.drop_expired(2.0) == []
    assert text.finish is None


@pytest.mark.parametrize("reason", [Finish.DEADLINE, Finish.CANCELLED])
def test_a_sequence_put_back_is_first_and_can_expire(reason: Finish) -> None:
    text, other = sequence(deadline=5.0), sequence()
    queue = queue_of(text, other)
    queue.put_back([queue.take()])
    assert queue.head is text
    if reason is Finish.CANCELLED:
        text.cancel()
    assert queue.drop_expired(5.0 if reason is Finish.DEADLINE else 0.0) == [text]
    assert text.finish is reason
    assert queue.head is other


def test_a_sequence_cancelled_in_a_row_is_dropped_if_put_back() -> None:
    text = sequence()
    queue = queue_of(text)
    queue.take()
    text.cancel()
    assert queue.drop_expired(0.0) == []
    queue.put_back([text])
    assert queue.drop_expired(0.0) == [text]


def test_deadlines_of_gone_sequences_are_cleaned_up() -> None:
    texts = [sequence(deadline=1000.0) for _ in range(10 * MIN_STALE_DEADLINES)]
    queue = queue_of(*texts)
    while len(queue):
        queue.take()
    queue.drop_expired(1.0)
    assert len(queue._deadlines) <= MIN_STALE_DEADLINES


@pytest.mark.parametrize("seed", range(5))
def test_drops_are_those_of_a_full_scan(seed: int) -> None:
    rng = random.Random(seed)
    queue, waiting = Queue(10_000, 10**6), list[Sequence]()
    for now in range(300):
        added = [sequence(rng.choice((None, now + rng.randint(0, 20)))) for _ in range(rng.randint(0, 3))]
        queue.submit(added, now)
        waiting += added
        if waiting and rng.random() < 0.3:
            rng.choice(waiting).cancel()
        expired = {each for each in waiting if each.expired_reason(now)}
        assert set(queue.drop_expired(now)) == expired
        waiting = [each for each in waiting if each not in expired]
        if waiting and rng.random() < 0.5:
            taken = [queue.take() for _ in range(rng.randint(1, len(waiting)))]
            assert taken == waiting[: len(taken)]
            del waiting[: len(taken)]
            if rng.random() < 0.5:
                queue.put_back(taken)
                waiting[:0] = taken
        assert (len(queue), queue.tokens) == (len(waiting), 8 * len(waiting))
