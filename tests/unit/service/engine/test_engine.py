"""Sequences through a running engine of one lane."""

import pytest

from dragoman.service.engine.engine import Engine, Load
from dragoman.service.engine.sequence import Finish, QueueFullError, StoppedError
from tests.support.fake_runner import END, START, FakeRunner, log_prob_of, output_of
from tests.unit.service.engine.engines import FOREVER, LIMITS, PATIENCE, Notes, Texts


def test_every_sequence_gets_its_own_output(engine: Engine, notes: Notes) -> None:
    sources = [(*range(10, 10 + length), END) for length in (1, 9, 3, 7, 2, 5, 4, 8)]
    texts = Texts(*sources)
    engine.submit(texts.sequences)
    for sequence in texts.wait():
        assert sequence.tokens == output_of(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
        assert sequence.finish is Finish.END
    assert sorted(notes.endings, key=str) == [Finish.END] * 8
    assert sum(notes.batches) == sum(map(len, sources)), "no step runs a finished row"
    assert max(notes.batches) == LIMITS.rows
    assert sum(rows for rows, _, _ in notes.encodings) == 8
    assert sum(tokens for _, tokens, _ in notes.encodings) == sum(map(len, sources))


def test_sources_of_like_length_are_encoded_together(engine: Engine, runner: FakeRunner, notes: Notes) -> None:
    runner.gate.clear()
    first = Texts((10, END))
    engine.submit(first.sequences)
    assert runner.stepping.wait(PATIENCE)
    sources = [(*range(10, 10 + length), END) for length in (3, 80, 5)]
    texts = Texts(*sources, max_output=120)
    vectors = Texts(*sources, max_output=0)
    engine.submit([*texts.sequences, *vectors.sequences])
    runner.gate.set()
    assert [sequence.tokens for sequence in texts.wait()] == [output_of(source) for source in sources]
    assert [len(sequence.states) for sequence in vectors.wait()] == [len(source) for source in sources]
    assert [(rows, padding) for rows, _, padding in notes.encodings[1:]] == [(2, 6), (1, 7), (2, 6), (1, 7)]


def test_a_short_text_does_not_wait_for_a_long_one(engine: Engine, runner: FakeRunner) -> None:
    long = Texts((98, END), max_output=FOREVER)
    engine.submit(long.sequences)
    assert runner.stepping.wait(PATIENCE)
    short = Texts((10, END))
    engine.submit(short.sequences)
    (sequence,) = short.wait()
    assert sequence.tokens == [10, END]
    assert long.sequences[0].finish is None
    long.sequences[0].cancel()
    assert long.wait()[0].finish is Finish.CANCELLED


def test_times_are_in_order(engine: Engine) -> None:
    texts = Texts((10, 11, END))
    engine.submit(texts.sequences)
    times = texts.wait()[0].times
    order = [times.submitted, times.admitted, times.encoded, times.first_token, times.finished]
    assert order == sorted(order)
    assert times.submitted > 0


def test_an_embedding_gets_the_states_of_its_tokens(engine: Engine) -> None:
    texts = Texts((10, END), (11, 12, 13, END), max_output=0)
    engine.submit(texts.sequences)
    short, long = texts.wait()
    assert short.states.tolist() == [[10, 0, 1], [END, 1, 1]]
    assert long.states[:, 0].tolist() == [11, 12, 13, END]
    assert short.tokens == []


def test_load_counts_waiting_and_running_sequences(engine: Engine, runner: FakeRunner) -> None:
    runner.gate.clear()
    texts = Texts(*[(10, END)] * 6, max_output=5)
    engine.submit(texts.sequences)
    assert runner.stepping.wait(PATIENCE)
    assert engine.load() == Load(waiting_sequences=2, waiting_tokens=14, active_rows=4)
    runner.gate.set()
    texts.wait()
    assert engine.load() == Load(0, 0, 0)


def test_a_full_queue_refuses_at_once(engine: Engine, runner: FakeRunner) -> None:
    runner.gate.clear()
    first = Texts((10, END))
    engine.submit(first.sequences)
    assert runner.stepping.wait(PATIENCE)
    queued = Texts(*[(10, END)] * 10)
    engine.submit(queued.sequences)
    with pytest.raises(QueueFullError):
        engine.submit(Texts((10, END)).sequences)
    runner.gate.set()
    first.wait()
    queued.wait()


def test_a_late_sequence_is_dropped_with_its_output_so_far(engine: Engine, runner: FakeRunner) -> None:
    late = Texts((98, END), max_output=FOREVER, deadline=engine.clock() + 0.05)
    engine.submit(late.sequences)
    (sequence,) = late.wait()
    assert sequence.finish is Finish.DEADLINE
    assert set(sequence.tokens) <= {98}


def test_an_idle_engine_rests_its_runner(engine: Engine, runner: FakeRunner) -> None:
    texts = Texts((10, END))
    engine.submit(texts.sequences)
    texts.wait()
    runner.rested.clear()
    assert runner.rested.wait(PATIENCE)


def test_stopping_leaves_no_caller_waiting(engine: Engine, runner: FakeRunner) -> None:
    running = Texts(*[(98, END)] * 6, max_output=FOREVER)
    engine.submit(running.sequences)
    assert runner.stepping.wait(PATIENCE)
    engine.stop()
    for sequence in running.wait():
        assert sequence.finish is Finish.FAILED
        assert isinstance(sequence.error, StoppedError)
    with pytest.raises(StoppedError):
        engine.submit(Texts((10, END)).sequences)


def test_an_engine_that_never_started_can_be_stopped(runner: FakeRunner, notes: Notes) -> None:
    Engine([runner], LIMITS, (END,), notes).stop()


def test_rows_with_different_prompts_share_a_batch(notes: Notes) -> None:
    runner = FakeRunner(rows=4, prompt_tokens=2)
    engine = Engine([runner], LIMITS, (END,), notes)
    texts = Texts((5, 6, END), (7, END), (8, 9, 10, END), (11, END), (12, 13, END))
    for tag, sequence in enumerate(texts.sequences, start=40):
        sequence.prompt = (START, tag)
    engine.start()
    engine.submit(texts.sequences)
    found = texts.wait()
    engine.stop()
    assert [sequence.tokens for sequence in found] == [
        [tag, *sequence.source] for tag, sequence in enumerate(found, start=40)
    ]
    assert max(notes.batches) == 4
    for sequence in found:
        assert sequence.log_prob == sum(map(log_prob_of, sequence.tokens)), "overruled choices are not scored"
