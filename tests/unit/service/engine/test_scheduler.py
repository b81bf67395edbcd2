import math
import random
import subprocess
import sys
from collections.abc import Sequence as Row
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.service.engine.queue import Queue
from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.scheduler import RELIEF_SECONDS, Admission, BatchLimits, Move, Removal, Scheduler
from dragoman.service.engine.sequence import Finish, QueueFullError, Sequence, StoppedError
from dragoman.service.engine.step import Step
from dragoman.service.errors import DeadlineUnreachableError

START = 1
END = 2
OTHER_END = 7
WORD = 50
ALL = 10**9
ROOMY = BatchLimits(rows=8, tokens=1000, encode_tokens=1000, queue_sequences=100, queue_tokens=10_000)


def limits(
    rows: int = 8, tokens: int = 1000, encode_tokens: int = 1000, queue_sequences: int = 100, queue_tokens: int = 10_000
) -> BatchLimits:
    return BatchLimits(rows, tokens, encode_tokens, queue_sequences, queue_tokens)


def sequence(source: int = 3, max_output: int = 5, deadline: float | None = None) -> Sequence:
    return Sequence(tuple(range(10, 10 + source)), (START,), max_output, lambda _: None, deadline)


class Scheduled(Scheduler):
    """A scheduler and its queue."""

    def __init__(self, limits: BatchLimits) -> None:
        self.queue = Queue(limits.queue_sequences, limits.queue_tokens)
        super().__init__(limits, (END, OTHER_END), self.queue)

    def admit(self, now: float, share: int = ALL) -> Admission:
        return super().admit(now, share)


def running(*sequences: Sequence, limits: BatchLimits = ROOMY) -> Scheduled:
    """A scheduler whose rows are `sequences`."""
    scheduler = Scheduled(limits)
    scheduler.queue.submit(sequences, 0.0)
    scheduler.admit(0.0)
    assert list(scheduler.rows) == list(sequences)
    return scheduler


def says(*tokens: int) -> list[Step]:
    return [Step(token, -0.5) for token in tokens]


def apply(removal: Removal, slots: list[Sequence | None]) -> None:
    """What a runner would do with its rows."""
    for move in removal.moves:
        slots[move.target] = slots[move.source]
    for row in removal.clear:
        slots[row] = None


# --- the queue


def test_sequences_run_in_the_order_of_arrival() -> None:
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


def test_a_request_that_does_not_fit_is_refused_whole() -> None:
    scheduler = Scheduled(limits(queue_sequences=3))
    scheduler.queue.submit([sequence(), sequence()], 0.0)
    with pytest.raises(QueueFullError, match="the queue holds 2 of 3 sequences"):
        scheduler.queue.submit([sequence(), sequence()], 0.0)
    assert len(scheduler.queue) == 2
    scheduler.queue.submit([sequence()], 0.0)
    assert len(scheduler.queue) == 3


def test_the_queue_is_bounded_in_tokens_of_source_and_longest_output() -> None:
    scheduler = Scheduled(limits(queue_tokens=20))
    scheduler.queue.submit([sequence(source=3, max_output=9)], 0.0)
    with pytest.raises(QueueFullError, match="the queue holds 12 of 20 tokens"):
        scheduler.queue.submit([sequence(source=4, max_output=5)], 0.0)
    scheduler.queue.submit([sequence(source=4, max_output=4)], 0.0)
    assert scheduler.queue.tokens == 20


def test_an_empty_queue_takes_a_request_that_is_larger_than_the_queue() -> None:
    scheduler = Scheduled(limits(queue_sequences=2, queue_tokens=10))
    scheduler.queue.submit([sequence() for _ in range(5)], 0.0)
    assert len(scheduler.queue) == 5


# --- admission


def test_a_sequence_waits_until_its_worst_case_fits_beside_the_running_ones() -> None:
    big, small = sequence(source=5, max_output=5), sequence(source=5, max_output=1)
    scheduler = Scheduled(limits(tokens=15))
    scheduler.queue.submit([big, big_too := sequence(source=5, max_output=5), small], 0.0)
    assert scheduler.admit(0.0).insert == (big,)
    assert scheduler.admit(0.0).insert == ()
    scheduler.update(says(END), 0.0)
    assert scheduler.admit(0.0).insert == (big_too,), "the one in front is not overtaken by a smaller one"


def test_a_sequence_larger_than_the_whole_budget_runs_alone() -> None:
    huge, small = sequence(source=50, max_output=50), sequence()
    scheduler = Scheduled(limits(tokens=20))
    scheduler.queue.submit([huge, small], 0.0)
    assert scheduler.admit(0.0).insert == (huge,)
    assert scheduler.admit(0.0).insert == ()


def test_encoding_is_bounded_in_tokens_and_never_stops_altogether() -> None:
    short, long, next_, huge = sequence(source=2), sequence(source=17), sequence(source=2), sequence(source=100)
    scheduler = Scheduled(limits(encode_tokens=20))
    scheduler.queue.submit([short, long, next_, huge], 0.0)
    assert scheduler.admit(0.0).insert == (short, long), "19 tokens, and a third would make 21"
    assert scheduler.admit(0.0).insert == (next_,)
    assert scheduler.admit(0.0).insert == (huge,)


def test_sources_that_come_one_by_one_are_encoded_together() -> None:
    scheduler = running(sequence(max_output=100), limits=replace(ROOMY, admission_steps=3))
    first, second, third = sequence(), sequence(), sequence()
    for early in (first, second):
        scheduler.queue.submit([early], 1.0)
        scheduler.update(says(WORD), 1.0)
        assert not scheduler.admit(1.0).insert
    scheduler.queue.submit([third], 1.0)
    scheduler.update(says(WORD), 1.0)
    assert scheduler.admit(1.0).insert == (first, second, third)


def test_one_that_comes_when_nobody_came_for_a_while_is_admitted_at_once() -> None:
    scheduler = running(sequence(max_output=100), limits=replace(ROOMY, admission_steps=3))
    for _ in range(3):
        scheduler.update(says(WORD), 1.0)
    scheduler.queue.submit([late := sequence()], 1.0)
    assert scheduler.admit(1.0).insert == (late,)


def test_nothing_is_waited_for_where_no_row_runs() -> None:
    scheduler = running(sequence(), limits=replace(ROOMY, admission_steps=3))
    scheduler.update(says(END), 1.0)
    scheduler.queue.submit([next_one := sequence()], 1.0)
    assert scheduler.admit(1.0).insert == (next_one,)


def test_a_queue_that_fills_the_encoder_by_itself_is_admitted_at_every_step() -> None:
    scheduler = Scheduled(replace(limits(encode_tokens=20), admission_steps=3))
    scheduler.queue.submit([sequence(source=10, max_output=100) for _ in range(5)], 0.0)
    admitted = []
    for _ in range(3):
        admitted.append(len(scheduler.admit(1.0).insert))
        scheduler.update(says(*[WORD] * len(scheduler.rows)), 1.0)
    assert admitted == [2, 2, 1]


def test_no_more_than_its_share_is_admitted_to_a_lane() -> None:
    scheduler = running(sequence(), sequence())
    vector, text, late = sequence(max_output=0), sequence(), sequence()
    scheduler.queue.submit([vector, text, late], 0.0)
    admission = scheduler.admit(0.0, share=4)
    assert (admission.embed, admission.insert) == ((vector,), (text,))
    assert scheduler.admit(0.0, share=3).insert == ()
    assert scheduler.queue.head is late


def test_what_is_admitted_is_ordered_by_length_but_nobody_is_overtaken() -> None:
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


# --- rows


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_any_end_token_ends_an_output_and_is_part_of_it(end: int) -> None:
    text = sequence()
    scheduler = running(text)
    assert scheduler.update(says(WORD), 1.0).gone == ()
    assert scheduler.update(says(end), 2.0).gone == (text,)
    assert text.tokens == [WORD, end]
    assert text.finish is Finish.END
    assert text.log_prob == -1.0
    assert (text.times.first_token, text.times.finished) == (1.0, 2.0)
    assert scheduler.idle


def test_an_output_stops_at_its_own_limit_whatever_its_neighbours_do() -> None:
    short, long = sequence(max_output=3), sequence(max_output=5)
    scheduler = running(short, long)
    for _ in range(3):
        scheduler.update(says(WORD, WORD), 0.0)
    assert (short.finish, long.finish) == (Finish.LENGTH, None)
    assert short.tokens == [WORD] * 3
    scheduler.update(says(WORD), 0.0)
    scheduler.update(says(END), 0.0)
    assert (long.finish, long.tokens) == (Finish.END, [WORD] * 4 + [END])


def test_the_last_row_takes_the_place_of_one_that_left() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    removal = scheduler.update(says(WORD, END, WORD, WORD), 0.0)
    assert removal.gone == (b,)
    assert removal.moves == (Move(3, 1),)
    assert list(scheduler.rows) == [a, d, c]


def test_a_row_that_stays_fills_the_gap_even_if_the_last_ones_leave_too() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    removal = scheduler.update(says(END, WORD, END, END), 0.0)
    assert removal.gone == (a, c, d)
    assert removal.moves == (Move(1, 0),)
    assert list(scheduler.rows) == [b]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_whose_log_probability_is_not_finite_fails_alone_and_is_cleared(value: float) -> None:
    spoiled, sound = sequence(), sequence()
    scheduler = running(spoiled, sound)
    removal = scheduler.update([Step(WORD, value), Step(WORD, -0.5)], 0.0)
    assert removal.gone == (spoiled,)
    assert spoiled.finish is Finish.FAILED
    assert isinstance(spoiled.error, ArithmeticError)
    assert spoiled.tokens == []
    assert removal.moves == (Move(1, 0),)
    assert removal.clear == (1,), "after the move, what is left of the spoiled row lies in the freed one"
    assert sound.finish is None


def test_rows_that_end_well_need_no_clearing() -> None:
    scheduler = running(sequence(), sequence())
    assert scheduler.update(says(END, END), 0.0).clear == ()


def test_a_row_with_an_error_in_place_of_a_token_fails_alone_and_is_cleared() -> None:
    broken, sound = sequence(), sequence()
    scheduler = running(broken, sound)
    error = RuntimeError("broken")
    removal = scheduler.update([error, *says(WORD)], 0.0)
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


@pytest.mark.parametrize("pattern", [(15,), (15, 16), (15, 15, 16), (15, 16, 17, 18)], ids=str)
def test_an_output_that_has_become_a_loop_is_stopped(pattern: tuple[int, ...]) -> None:
    guarded, sound = sequence(max_output=100), sequence(max_output=100)
    scheduler = running(guarded, sound, limits=replace(ROOMY, repetition=Repetition(4, 3)))
    said = [1, 3, 4, *pattern * 5]
    for place, token in enumerate(said):
        if guarded.finish is None:
            scheduler.update(says(token, 100 + place), float(place))
    assert guarded.finish is Finish.REPETITION
    assert guarded.tokens == [1, 3, 4, *pattern * 3], "the third time makes it a loop"
    assert sound.finish is None


@pytest.mark.parametrize(
    "said", [(5, 5, 6) * 2, (1, 2, 3, 4, 5) * 6, (5, 5, 6, 5, 5, 7, 5, 5, 8)], ids=["too few", "too long", "no pattern"]
)
def test_what_is_no_loop_goes_on(said: tuple[int, ...]) -> None:
    text = sequence(max_output=len(said) + 1)
    scheduler = running(text, limits=replace(ROOMY, repetition=Repetition(4, 3)))
    for token in said:
        scheduler.update(says(token + 10), 0.0)
    assert (text.finish, len(text.tokens)) == (None, len(said))


def test_an_end_and_a_limit_come_before_a_loop() -> None:
    ended, cut = sequence(max_output=9), sequence(max_output=2)
    scheduler = running(ended, cut, limits=replace(ROOMY, repetition=Repetition(4, 2)))
    scheduler.update(says(END, WORD), 0.0)
    scheduler.update(says(WORD), 0.0)
    assert (ended.finish, cut.finish) == (Finish.END, Finish.LENGTH)


@pytest.mark.parametrize("seed", range(10))
def test_a_loop_is_found_where_comparing_everything_finds_it(seed: int) -> None:
    rng = random.Random(seed)
    rule = Repetition(rng.randint(1, 5), rng.randint(2, 4))
    output: list[int] = []
    for _ in range(400):
        output.append(rng.choice((5, 5, 6)))
        loops = any(output[-size * rule.times :] == output[-size:] * rule.times for size in range(1, rule.tokens + 1))
        assert rule.ends(output) is loops


# --- memory that was refused


def test_the_half_that_came_last_goes_back_to_the_head_of_the_queue() -> None:
    scheduler = Scheduled(ROOMY)
    texts = [sequence() for _ in range(6)]
    for now, text in enumerate(texts):
        scheduler.queue.submit([text], now)
        scheduler.admit(now)
    leaver = texts.pop(1)
    scheduler.update(says(WORD, END, WORD, WORD, WORD, WORD), 6.0)
    assert list(scheduler.rows)[1] is texts[-1], "the rows are not in the order of arrival any more"
    late = sequence()
    scheduler.queue.submit([late], 6.5)
    removal = scheduler.shrink(0, MemoryError(), 7.0)
    assert (removal.gone, removal.wasted_tokens) == ((), 3)
    assert list(scheduler.rows) == texts[:2]
    assert scheduler.queue.tokens == sum(each.cost for each in (*texts[2:], late))
    assert leaver.finish is Finish.END
    for text in texts[2:]:
        assert (text.tokens, text.log_prob, text.finish) == ([], 0.0, None)
        assert (text.times.admitted, text.times.encoded, text.times.first_token) == (0.0, 0.0, 0.0)
    assert texts[2].times.submitted == 3.0
    scheduler.update(says(END, END), 8.0)
    assert scheduler.admit(8.0).insert == (texts[2], texts[3]), "no more than fitted"
    assert scheduler.admit(8.0).insert == ()


def test_what_the_runner_does_about_a_smaller_batch() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    scheduler.update(says(END, WORD, WORD, WORD), 1.0)
    assert list(scheduler.rows) == [d, b, c]
    slots: list[Sequence | None] = [d, b, c, None]
    removal = scheduler.shrink(0, MemoryError(), 2.0)
    apply(removal, slots)
    assert slots[: len(scheduler.rows)] == list(scheduler.rows)
    assert set(removal.clear) == {1, 2}


def test_of_a_refused_encoding_only_the_new_go_back() -> None:
    old = [sequence() for _ in range(3)]
    scheduler = running(*old)
    new = [sequence() for _ in range(2)]
    scheduler.queue.submit(new, 1.0)
    scheduler.admit(1.0)
    scheduler.shrink(3, MemoryError(), 2.0)
    assert list(scheduler.rows) == [*old, new[0]]
    scheduler.shrink(3, MemoryError(), 2.0)
    assert list(scheduler.rows) == old
    assert scheduler.admit(3.0).insert == (), "until one has left"
    scheduler.update(says(END, WORD, WORD), 4.0)
    assert scheduler.admit(4.0).insert == (new[0],)


def test_a_row_that_is_refused_memory_alone_fails() -> None:
    text = sequence()
    scheduler = running(text)
    error = MemoryError()
    assert scheduler.shrink(0, error, 1.0).gone == (text,)
    assert (text.finish, text.error) == (Finish.FAILED, error)


def test_the_batch_grows_again_when_memory_has_not_been_refused_for_a_while() -> None:
    scheduler = running(*[sequence() for _ in range(8)])
    for _ in range(2):
        scheduler.shrink(0, MemoryError(), 0.0)
    rows = []
    for now in (0.9, 1.0, 1.9, 2.0, 3.0):
        scheduler.admit(now * RELIEF_SECONDS)
        rows.append(len(scheduler.rows))
    assert rows == [2, 4, 4, 8, 8]


# --- those that nobody waits for


def test_the_late_and_the_cancelled_leave_queue_and_rows() -> None:
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


def test_a_deadline_is_kept_until_it_comes() -> None:
    scheduler = running(sequence(deadline=5.0))
    assert scheduler.drop_expired(4.999).gone == ()


def test_a_caller_that_goes_away_at_its_deadline_was_late() -> None:
    text = sequence(deadline=5.0)
    scheduler = running(text)
    text.cancel()
    scheduler.drop_expired(5.0)
    assert text.finish is Finish.DEADLINE


def test_draining_fails_everything_that_somebody_waits_for() -> None:
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


# --- all of it together


@pytest.mark.parametrize("seed", range(20))
def test_rows_stay_where_the_runner_has_them(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = Scheduled(limits(rows=6, tokens=80, encode_tokens=20, queue_sequences=30))
    slots: list[Sequence | None] = [None] * 6
    submitted: list[Sequence] = []
    gone: list[Sequence] = []
    for now in range(300):
        if rng.random() < 0.4 and now < 250:
            batch = [sequence(rng.randint(1, 6), rng.randint(1, 8), now + rng.choice((3, 1000))) for _ in range(3)]
            with suppress(DeadlineUnreachableError):
                scheduler.queue.submit(batch, now)
                submitted += batch
        if submitted and rng.random() < 0.1:
            rng.choice(submitted).cancel()
        gone += step(scheduler, slots, rng, now)
        assert scheduler.queue.tokens == sum(
            each.cost for each in submitted if not each.times.admitted and not each.finish
        )
        assert slots[: len(scheduler.rows)] == list(scheduler.rows)
        assert sum(each.cost for each in scheduler.rows) <= 80
    assert sorted(map(id, gone)) == sorted(map(id, submitted)), "each leaves exactly once"
    assert scheduler.idle


def step(scheduler: Scheduled, slots: list[Sequence | None], rng: random.Random, now: int) -> Row[Sequence]:
    """One turn of an engine; those that left."""
    dead = scheduler.drop_expired(now)
    apply(dead, slots)
    admission = scheduler.admit(now + 0.5)
    slots[admission.first_row : admission.first_row + len(admission.insert)] = admission.insert
    tokens = [Step(rng.choice((WORD, WORD, END)), rng.choice((-1.0, -1.0, -1.0, math.nan))) for _ in scheduler.rows]
    removal = scheduler.update(tokens, now)
    apply(removal, slots)
    return (*dead.gone, *admission.gone, *removal.gone)


def test_none_of_this_needs_an_array_library() -> None:
    blocked = "import sys; sys.modules['numpy'] = sys.modules['onnxruntime'] = None; import pytest; "
    queue = str(Path(__file__).with_name("test_queue.py"))
    arguments = ["-q", "-p", "no:cacheprovider", __file__, queue, "-k", "not array_library"]
    run = subprocess.run(
        [sys.executable, "-c", f"{blocked} sys.exit(pytest.main({arguments}))"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


# --- prompts and forced tokens


def prompted(*prompt: int, max_output: int = 5) -> Sequence:
    return Sequence((10, 11, END), prompt, max_output, lambda _: None)


def test_what_is_chosen_before_the_prompt_has_ended_counts_for_nothing() -> None:
    asked = prompted(START, 40, 41)
    scheduler = running(asked)
    fed = []
    for step in (END, END, WORD, END):
        fed.append((asked.next_fed, asked.position))
        scheduler.update(says(step), 1.0)
    assert fed == [(START, 0), (40, 1), (41, 2), (WORD, 3)]
    assert asked.tokens == [WORD, END]
    assert (asked.log_prob, asked.chosen) == (-1.0, 2)
    assert asked.finish is Finish.END


def test_the_first_token_is_the_first_after_the_prompt() -> None:
    asked = prompted(START, 40)
    scheduler = running(asked)
    scheduler.update(says(WORD), 1.0)
    assert asked.times.first_token == 0.0
    scheduler.update(says(WORD), 2.0)
    assert asked.times.first_token == 2.0


def test_a_model_that_fails_within_the_prompt_fails_the_row() -> None:
    asked, other = prompted(START, 40), prompted(START, 40)
    scheduler = running(asked, other)
    scheduler.update([Step(WORD, math.nan), Step(WORD, -0.5)], 1.0)
    assert asked.finish is Finish.FAILED
    assert list(scheduler.rows) == [other]


def test_a_prompt_takes_room() -> None:
    assert prompted(START, 40, max_output=5).cost == 3 + 1 + 5


def test_a_sequence_that_goes_back_to_the_queue_begins_its_prompt_anew() -> None:
    asked = prompted(START, 40)
    scheduler = running(asked)
    for _ in range(3):
        scheduler.update(says(WORD), 1.0)
    asked.restart()
    assert (asked.next_fed, asked.position, asked.tokens, asked.chosen, asked.log_prob) == (START, 0, [], 0, 0.0)


def test_an_output_at_its_limit_ends_with_the_forced_token_which_is_not_scored() -> None:
    queue = Queue(10, 1000)
    scheduler = Scheduler(ROOMY, (END, OTHER_END), queue, forced_end_id=END)
    cut_short, ended = sequence(max_output=3), sequence(max_output=3)
    queue.submit([cut_short, ended], 0.0)
    scheduler.admit(0.0, ALL)
    for tokens in ((WORD, WORD), (WORD, WORD), (WORD, OTHER_END)):
        scheduler.update(says(*tokens), 1.0)
    assert (cut_short.tokens, cut_short.finish) == ([WORD, WORD, END], Finish.LENGTH)
    assert (cut_short.log_prob, cut_short.chosen) == (-1.0, 2)
    assert (ended.tokens, ended.finish) == ([WORD, WORD, OTHER_END], Finish.END)
    assert (ended.log_prob, ended.chosen) == (-1.5, 3)
