"""The batch becomes smaller if memory runs out, and grows again."""

from dragoman.service.engine.scheduler import RELIEF_SECONDS
from dragoman.service.engine.sequence import Finish, Sequence
from tests.unit.service.engine.schedules import END, ROOMY, WORD, Scheduled, apply, running, sequence, steps


def test_the_latest_half_returns_to_the_head_of_the_queue() -> None:
    scheduler = Scheduled(ROOMY)
    texts = [sequence() for _ in range(6)]
    for now, text in enumerate(texts):
        scheduler.queue.submit([text], now)
        scheduler.admit(now)
    leaver = texts.pop(1)
    scheduler.update(steps(WORD, END, WORD, WORD, WORD, WORD), 6.0)
    assert list(scheduler.rows)[1] is texts[-1], "the rows are no longer in order of arrival"
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
    scheduler.update(steps(END, END), 8.0)
    assert scheduler.admit(8.0).insert == (texts[2], texts[3]), "no more rows than had memory"
    assert scheduler.admit(8.0).insert == ()


def test_a_smaller_batch_keeps_the_runner_rows_in_step() -> None:
    a, b, c, d = sequence(), sequence(), sequence(), sequence()
    scheduler = running(a, b, c, d)
    scheduler.update(steps(END, WORD, WORD, WORD), 1.0)
    assert list(scheduler.rows) == [d, b, c]
    slots: list[Sequence | None] = [d, b, c, None]
    removal = scheduler.shrink(0, MemoryError(), 2.0)
    apply(removal, slots)
    assert slots[: len(scheduler.rows)] == list(scheduler.rows)
    assert set(removal.clear) == {1, 2}


def test_a_failed_encoding_returns_only_new_rows() -> None:
    old = [sequence() for _ in range(3)]
    scheduler = running(*old)
    new = [sequence() for _ in range(2)]
    scheduler.queue.submit(new, 1.0)
    scheduler.admit(1.0)
    scheduler.shrink(3, MemoryError(), 2.0)
    assert list(scheduler.rows) == [*old, new[0]]
    scheduler.shrink(3, MemoryError(), 2.0)
    assert list(scheduler.rows) == old
    assert scheduler.admit(3.0).insert == (), "not before a row has left"
    scheduler.update(steps(END, WORD, WORD), 4.0)
    assert scheduler.admit(4.0).insert == (new[0],)


def test_a_single_row_without_memory_fails() -> None:
    text = sequence()
    scheduler = running(text)
    error = MemoryError()
    assert scheduler.shrink(0, error, 1.0).gone == (text,)
    assert (text.finish, text.error) == (Finish.FAILED, error)


def test_the_batch_grows_again_after_a_while() -> None:
    scheduler = running(*[sequence() for _ in range(8)])
    for _ in range(2):
        scheduler.shrink(0, MemoryError(), 0.0)
    rows = []
    for now in (0.9, 1.0, 1.9, 2.0, 3.0):
        scheduler.admit(now * RELIEF_SECONDS)
        rows.append(len(scheduler.rows))
    assert rows == [2, 4, 4, 8, 8]
