"""Admission: order, bounds, and grouping of the sequences taken from the queue."""

from dataclasses import replace

import pytest

from dragoman.service.engine.sequence import Finish, QueueFullError
from tests.unit.service.engine.schedules import END, ROOMY, WORD, Scheduled, limits, running, sequence, steps


def test_sequences_run_in_order_of_arrival() -> None:
    scheduler = Scheduled(limits(rows=2))
    first, second, third = sequence(), sequence(), sequence()
    scheduler.queue.submit([first], 1.0)
    scheduler.queue.submit([second, third], 2.0)
    admission = scheduler.admit(3.0)
    assert admission.insert == (first, second)
    assert admission.first_row == 0
    assert list(scheduler.rows) == [first, second]
    assert len(scheduler.queue) == 1
    assert (first.times.submitted, second.times.submitted, third.times.submitted) == (1.0, 2.0, 2.0)
    assert (first.times.admitted, third.times.admitted) == (3.0, 0.0)


def test_a_request_that_does_not_fit_is_refused_as_a_whole() -> None:
    scheduler = Scheduled(limits(queue_sequences=3))
    scheduler.queue.submit([sequence(), sequence()], 0.0)
    with pytest.raises(QueueFullError, match="the queue holds 2 of 3 sequences"):
        scheduler.queue.submit([sequence(), sequence()], 0.0)
    assert len(scheduler.queue) == 2
    scheduler.queue.submit([sequence()], 0.0)
    assert len(scheduler.queue) == 3


def test_the_queue_is_bounded_in_source_and_output_tokens() -> None:
    scheduler = Scheduled(limits(queue_tokens=20))
    scheduler.queue.submit([sequence(source=3, max_output=9)], 0.0)
    with pytest.raises(QueueFullError, match="the queue holds 12 of 20 tokens"):
        scheduler.queue.submit([sequence(source=4, max_output=5)], 0.0)
    scheduler.queue.submit([sequence(source=4, max_output=4)], 0.0)
    assert scheduler.queue.tokens == 20


def test_an_empty_queue_takes_a_request_of_any_size() -> None:
    scheduler = Scheduled(limits(queue_sequences=2, queue_tokens=10))
    scheduler.queue.submit([sequence() for _ in range(5)], 0.0)
    assert len(scheduler.queue) == 5


def test_a_sequence_waits_until_its_worst_case_fits() -> None:
    big, small = sequence(source=5, max_output=5), sequence(source=5, max_output=1)
    scheduler = Scheduled(limits(tokens=15))
    scheduler.queue.submit([big, big_too := sequence(source=5, max_output=5), small], 0.0)
    assert scheduler.admit(0.0).insert == (big,)
    assert scheduler.admit(0.0).insert == ()
    scheduler.update(steps(END), 0.0)
    assert scheduler.admit(0.0).insert == (big_too,), "a smaller sequence does not overtake the head"


def test_a_sequence_larger_than_the_limit_runs_alone() -> None:
    huge, small = sequence(source=50, max_output=50), sequence()
    scheduler = Scheduled(limits(tokens=20))
    scheduler.queue.submit([huge, small], 0.0)
    assert scheduler.admit(0.0).insert == (huge,)
    assert scheduler.admit(0.0).insert == ()


def test_encoding_is_bounded_in_tokens_but_never_stops() -> None:
    short, long, next_, huge = sequence(source=2), sequence(source=17), sequence(source=2), sequence(source=100)
    scheduler = Scheduled(limits(encode_tokens=20))
    scheduler.queue.submit([short, long, next_, huge], 0.0)
    assert scheduler.admit(0.0).insert == (short, long), "19 tokens; a third source would make 21"
    assert scheduler.admit(0.0).insert == (next_,)
    assert scheduler.admit(0.0).insert == (huge,)


def test_sources_that_arrive_one_by_one_are_encoded_together() -> None:
    scheduler = running(sequence(max_output=100), limits=replace(ROOMY, admission_steps=3))
    first, second, third = sequence(), sequence(), sequence()
    for early in (first, second):
        scheduler.queue.submit([early], 1.0)
        scheduler.update(steps(WORD), 1.0)
        assert not scheduler.admit(1.0).insert
    scheduler.queue.submit([third], 1.0)
    scheduler.update(steps(WORD), 1.0)
    assert scheduler.admit(1.0).insert == (first, second, third)


def test_an_arrival_after_a_while_is_admitted_at_once() -> None:
    scheduler = running(sequence(max_output=100), limits=replace(ROOMY, admission_steps=3))
    for _ in range(3):
        scheduler.update(steps(WORD), 1.0)
    scheduler.queue.submit([late := sequence()], 1.0)
    assert scheduler.admit(1.0).insert == (late,)


def test_without_running_rows_admission_does_not_wait() -> None:
    scheduler = running(sequence(), limits=replace(ROOMY, admission_steps=3))
    scheduler.update(steps(END), 1.0)
    scheduler.queue.submit([next_one := sequence()], 1.0)
    assert scheduler.admit(1.0).insert == (next_one,)


def test_a_queue_that_fills_the_encoder_is_admitted_every_step() -> None:
    scheduler = Scheduled(replace(limits(encode_tokens=20), admission_steps=3))
    scheduler.queue.submit([sequence(source=10, max_output=100) for _ in range(5)], 0.0)
    admitted = []
    for _ in range(3):
        admitted.append(len(scheduler.admit(1.0).insert))
        scheduler.update(steps(*[WORD] * len(scheduler.rows)), 1.0)
    assert admitted == [2, 2, 1]


def test_a_lane_admits_at_most_its_share() -> None:
    scheduler = running(sequence(), sequence())
    vector, text, late = sequence(max_output=0), sequence(), sequence()
    scheduler.queue.submit([vector, text, late], 0.0)
    admission = scheduler.admit(0.0, share=4)
    assert (admission.embed, admission.insert) == ((vector,), (text,))
    assert scheduler.admit(0.0, share=3).insert == ()
    assert scheduler.queue.head is late


def test_an_admission_is_sorted_by_length_and_taken_in_order() -> None:
    texts = [sequence(source=tokens) for tokens in (80, 3, 64, 5, 65, 9)]
    vectors = [sequence(source=tokens, max_output=0) for tokens in (80, 3)]
    scheduler = Scheduled(limits(rows=5))
    scheduler.queue.submit([*vectors, *texts], 0.0)
    admission = scheduler.admit(0.0)
    assert [len(each.source) for each in admission.insert] == [3, 64, 5, 80, 65]
    assert [len(each.source) for each in admission.embed] == [3, 80]
    assert list(scheduler.rows) == list(admission.insert)
    assert scheduler.queue.head is texts[-1]


def test_new_rows_come_after_the_running_ones() -> None:
    scheduler = running(sequence(), sequence())
    late = sequence()
    scheduler.queue.submit([late], 0.0)
    admission = scheduler.admit(0.0)
    assert admission.first_row == 2
    assert list(scheduler.rows)[2] is late


def test_embeddings_take_no_row() -> None:
    scheduler = Scheduled(limits(rows=1))
    vector, text = sequence(max_output=0), sequence()
    scheduler.queue.submit([vector, text], 0.0)
    admission = scheduler.admit(0.0)
    assert admission.embed == (vector,)
    assert admission.insert == (text,)
    scheduler.finish_embedded(admission.embed, 4.0)
    assert vector.finish is Finish.END
    assert vector.times.finished == 4.0


def test_an_embedding_with_an_error_has_failed() -> None:
    scheduler = Scheduled(ROOMY)
    vector, spoiled = sequence(max_output=0), sequence(max_output=0)
    scheduler.queue.submit([vector, spoiled], 0.0)
    spoiled.error = RuntimeError()
    scheduler.finish_embedded(scheduler.admit(0.0).embed, 1.0)
    assert (vector.finish, spoiled.finish) == (Finish.END, Finish.FAILED)
