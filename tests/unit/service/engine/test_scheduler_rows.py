"""Rows of the running batch: ends, failures, moves, prompts and forced tokens."""

import math

import pytest

from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import Move, Scheduler
from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.engine.step import Step
from tests.unit.service.engine.schedules import END, NO_SHARE, OTHER_END, ROOMY, START, WORD, running, sequence, steps


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_any_end_token_ends_an_output_and_belongs_to_it(end: int) -> None:
    text = sequence()
    scheduler = running(text)
    assert scheduler.update(steps(WORD), 1.0).gone == ()
    assert scheduler.update(steps(end), 2.0).gone == (text,)
    assert text.tokens == [WORD, end]
    assert text.finish is Finish.END
    assert text.log_prob == -1.0
    assert (text.times.first_token, text.times.finished) == (1.0, 2.0)
    assert scheduler.idle


def test_an_output_stops_at_its_own_limit() -> None:
    short, long = sequence(max_output=3), sequence(max_output=5)
    scheduler = running(short, long)
    for _ in range(3):
        scheduler.update(steps(WORD, WORD), 0.0)
    assert (short.finish, long.finish) == (Finish.LENGTH, None)
    assert short.tokens == [WORD] * 3
    scheduler.update(steps(WORD), 0.0)
    scheduler.update(steps(END), 0.0)
    assert (long.finish, long.tokens) == (Finish.END, [WORD] * 4 + [END])


def test_the_last_row_replaces_one_that_left() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    removal = scheduler.update(steps(WORD, END, WORD, WORD), 0.0)
    assert removal.gone == (b,)
    assert removal.moves == (Move(3, 1),)
    assert list(scheduler.rows) == [a, d, c]


def test_a_gap_is_filled_by_a_row_that_stays() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    removal = scheduler.update(steps(END, WORD, END, END), 0.0)
    assert removal.gone == (a, c, d)
    assert removal.moves == (Move(1, 0),)
    assert list(scheduler.rows) == [b]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_non_finite_score_fails_and_is_cleared(value: float) -> None:
    spoiled, sound = sequence(), sequence()
    scheduler = running(spoiled, sound)
    removal = scheduler.update([Step(WORD, value), Step(WORD, -0.5)], 0.0)
    assert removal.gone == (spoiled,)
    assert spoiled.finish is Finish.FAILED
    assert isinstance(spoiled.error, ArithmeticError)
    assert spoiled.tokens == []
    assert removal.moves == (Move(1, 0),)
    assert removal.clear == (1,), "after the move the freed row holds the spoiled cells"
    assert sound.finish is None


def test_rows_without_failure_are_not_cleared() -> None:
    scheduler = running(sequence(), sequence())
    assert scheduler.update(steps(END, END), 0.0).clear == ()


def test_a_row_with_an_error_fails_alone_and_is_cleared() -> None:
    broken, sound = sequence(), sequence()
    scheduler = running(broken, sound)
    error = RuntimeError("broken")
    removal = scheduler.update([error, *steps(WORD)], 0.0)
    assert (removal.gone, removal.moves, removal.clear) == ((broken,), (Move(1, 0),), (1,))
    assert (broken.finish, broken.error, broken.tokens) == (Finish.FAILED, error, [])
    assert sound.tokens == [WORD]


def test_only_rows_with_an_error_fail() -> None:
    old, broken, new = sequence(), sequence(), sequence()
    scheduler = running(old, broken, new)
    error = RuntimeError("broken")
    removal = scheduler.fail_rows({1: error}, 0.0)
    assert removal.gone == (broken,)
    assert (broken.finish, broken.error) == (Finish.FAILED, error)
    assert list(scheduler.rows) == [old, new]


def prompted(*prompt: int, max_output: int = 5) -> Sequence:
    return Sequence((10, 11, END), prompt, max_output, lambda _: None)


def test_choices_within_the_prompt_are_ignored() -> None:
    text = prompted(START, 40, 41)
    scheduler = running(text)
    fed = []
    for step in (END, END, WORD, END):
        fed.append((text.next_fed, text.position))
        scheduler.update(steps(step), 1.0)
    assert fed == [(START, 0), (40, 1), (41, 2), (WORD, 3)]
    assert text.tokens == [WORD, END]
    assert (text.log_prob, text.chosen) == (-1.0, 2)
    assert text.finish is Finish.END


def test_the_first_token_is_the_first_after_the_prompt() -> None:
    text = prompted(START, 40)
    scheduler = running(text)
    scheduler.update(steps(WORD), 1.0)
    assert text.times.first_token == 0.0
    scheduler.update(steps(WORD), 2.0)
    assert text.times.first_token == 2.0


def test_a_failure_within_the_prompt_fails_the_row() -> None:
    text, other = prompted(START, 40), prompted(START, 40)
    scheduler = running(text, other)
    scheduler.update([Step(WORD, math.nan), Step(WORD, -0.5)], 1.0)
    assert text.finish is Finish.FAILED
    assert list(scheduler.rows) == [other]


def test_a_prompt_adds_to_the_cost() -> None:
    assert prompted(START, 40, max_output=5).cost == 3 + 1 + 5


def test_a_restarted_sequence_begins_its_prompt_again() -> None:
    text = prompted(START, 40)
    scheduler = running(text)
    for _ in range(3):
        scheduler.update(steps(WORD), 1.0)
    text.restart()
    assert (text.next_fed, text.position, text.tokens, text.chosen, text.log_prob) == (START, 0, [], 0, 0.0)


def test_a_forced_end_token_at_the_limit_is_not_scored() -> None:
    queue = Queue(10, 1000)
    scheduler = Scheduler(ROOMY, (END, OTHER_END), queue, forced_end_id=END)
    cut_short, ended = sequence(max_output=3), sequence(max_output=3)
    queue.submit([cut_short, ended], 0.0)
    scheduler.admit(0.0, NO_SHARE)
    for tokens in ((WORD, WORD), (WORD, WORD), (WORD, OTHER_END)):
        scheduler.update(steps(*tokens), 1.0)
    assert (cut_short.tokens, cut_short.finish) == ([WORD, WORD, END], Finish.LENGTH)
    assert (cut_short.log_prob, cut_short.chosen) == (-1.0, 2)
    assert (ended.tokens, ended.finish) == ([WORD, WORD, OTHER_END], Finish.END)
    assert (ended.log_prob, ended.chosen) == (-1.5, 3)
