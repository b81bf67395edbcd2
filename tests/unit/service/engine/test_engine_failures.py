"""Runs that raise, run out of memory, or end the engine's thread."""

import math
import threading
from collections.abc import Callable
from collections.abc import Sequence as Row
from typing import Any

import pytest

from dragoman.service.engine.engine import Engine
from dragoman.service.engine.observer import Run
from dragoman.service.engine.runner import MemoryRefusedError
from dragoman.service.engine.sequence import Finish, StoppedError
from tests.support.fake_runner import END, FakeRunner, log_prob_of, output_of
from tests.unit.service.engine.engines import LIMITS, PATIENCE, Notes, Texts, break_moves


def test_a_row_of_nan_fails_alone_and_leaves_no_trace(engine: Engine) -> None:
    # The runner itself checks that the spoiled slot was cleared before it is used again.
    texts = Texts((99, END), (10, END), (99, 11, END), (12, 13, END), (14, END), (15, END))
    engine.submit(texts.sequences)
    finishes = [sequence.finish for sequence in texts.wait()]
    assert finishes == [Finish.FAILED, Finish.END, Finish.FAILED, Finish.END, Finish.END, Finish.END]
    assert str(texts.sequences[0].error) == f"the model's log-probability is {math.nan}"
    again = Texts(*[(20 + row, END) for row in range(4)])
    engine.submit(again.sequences)
    assert [sequence.tokens[0] for sequence in again.wait()] == [20, 21, 22, 23]


@pytest.mark.parametrize(("max_output", "run"), [(0, "embed"), (5, "insert")])
def test_an_encoding_that_raises_once_fails_no_sequence(
    engine: Engine, runner: FakeRunner, notes: Notes, max_output: int, run: Run
) -> None:
    runner.fault = RuntimeError("a passing fault")
    texts = Texts((10, END), (11, 12, END), max_output=max_output)
    engine.submit(texts.sequences)
    for sequence in texts.wait():
        assert sequence.finish is Finish.END
        assert sequence.tokens == (output_of(sequence.source) if max_output else [])
        assert max_output or sequence.states[:, 0].tolist() == list(sequence.source)
    assert notes.failures == [(run, "error")]
    assert [rows for rows, _, _ in notes.encodings] == [1, 1], "each was retried alone"


@pytest.mark.parametrize("part", [(slice(-1),), (..., slice(2)), (..., [0, 1, 2, 2]), (..., 0), (None,)], ids=str)
def test_states_of_a_wrong_shape_fail_the_run(
    engine: Engine, runner: FakeRunner, notes: Notes, monkeypatch: pytest.MonkeyPatch, part: tuple[Any, ...]
) -> None:
    whole = runner.embed

    def embed(sources: Row[Row[int]]) -> list[Any]:
        return [states[part] if len(sources) > 1 or 97 in states[:, 0] else states for states in whole(sources)]

    monkeypatch.setattr(runner, "embed", embed)
    texts = Texts((10, END), (11, 97, END), (12, 13, END), max_output=0)
    engine.submit(texts.sequences)
    well, wrong, too = texts.wait()
    assert [each.finish for each in (well, wrong, too)] == [Finish.END, Finish.FAILED, Finish.END]
    assert well.states.shape == (2, 3)
    assert too.states[:, 0].tolist() == [12, 13, END]
    assert str(wrong.error).startswith("the runner gave states of the shape ")
    assert notes.failures == [("embed", "error")] * 2, "together, and once more alone"


def test_a_step_that_raises_once_fails_no_sequence(engine: Engine, runner: FakeRunner, notes: Notes) -> None:
    runner.gate.clear()
    texts = Texts((10, END), (11, 12, 13, END), (14, 15, END))
    engine.submit(texts.sequences)
    assert runner.stepping.wait(PATIENCE)
    runner.fault = RuntimeError("a passing fault")
    runner.gate.set()
    for sequence in texts.wait():
        assert sequence.tokens == output_of(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
    assert notes.failures == [("step", "error")]
    assert runner.batches[:5] == [3, 1, 1, 1, 2], "the second step was repeated row by row"


@pytest.mark.parametrize(
    ("max_output", "source", "run"),
    [(0, (97, END), "embed"), (5, (97, END), "insert"), (5, (10, 97, END), "step")],
    ids=["embedding", "encoding", "step"],
)
def test_a_sequence_that_always_raises_fails_alone(
    engine: Engine, notes: Notes, max_output: int, source: tuple[int, ...], run: Run
) -> None:
    texts = Texts((10, END), source, (11, 12, 13, END), (14, 15, END), max_output=max_output)
    engine.submit(texts.sequences)
    finishes = [sequence.finish for sequence in texts.wait()]
    assert finishes == [Finish.END, Finish.FAILED, Finish.END, Finish.END]
    assert str(texts.sequences[1].error) == "broken"
    for sequence in (texts.sequences[row] for row in (0, 2, 3)):
        assert sequence.tokens == (output_of(sequence.source) if max_output else [])
    assert notes.failures == [(run, "error")] * 2, "together, and once more alone"
    well = Texts((12, END))
    engine.submit(well.sequences)
    assert well.wait()[0].tokens == [12, END]


@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_a_batch_without_memory_shrinks_and_loses_nothing(
    engine: Engine, runner: FakeRunner, notes: Notes, most_rows: int
) -> None:
    runner.gate.clear()
    texts = Texts(*[(*range(10, 10 + length), END) for length in (3, 9, 5, 7, 4, 6)])
    engine.submit(texts.sequences)
    assert runner.stepping.wait(PATIENCE)
    runner.most_rows = most_rows
    runner.gate.set()
    for sequence in texts.wait():
        assert sequence.finish is Finish.END
        assert sequence.tokens == output_of(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
        times = sequence.times
        order = [times.submitted, times.admitted, times.encoded, times.first_token, times.finished]
        assert order == sorted(order)
    assert ("step", "memory") in notes.failures
    assert sum(notes.batches) == sum(len(sequence.tokens) for sequence in texts.sequences) + notes.wasted_tokens
    assert notes.wasted_tokens > 0
    assert max(runner.batches[1:]) <= most_rows


@pytest.mark.parametrize("max_output", [0, 5], ids=["embedding", "decoding"])
def test_an_encoding_without_memory_is_split(engine: Engine, runner: FakeRunner, notes: Notes, max_output: int) -> None:
    runner.most_rows = 1
    texts = Texts((10, END), (11, 12, END), (13, END), max_output=max_output)
    engine.submit(texts.sequences)
    for sequence in texts.wait():
        assert sequence.finish is Finish.END
        assert sequence.tokens == (output_of(sequence.source) if max_output else [])
        assert max_output or sequence.states[:, 0].tolist() == list(sequence.source)
    assert all(cause == "memory" for _, cause in notes.failures)
    assert [rows for rows, _, _ in notes.encodings] == [1, 1, 1]


@pytest.mark.parametrize("max_output", [0, 5], ids=["embedding", "decoding"])
def test_a_single_sequence_without_memory_fails(engine: Engine, runner: FakeRunner, max_output: int) -> None:
    runner.most_rows = 0
    texts = Texts((10, END), (11, END), max_output=max_output)
    engine.submit(texts.sequences)
    for sequence in texts.wait():
        assert sequence.finish is Finish.FAILED
        assert isinstance(sequence.error, MemoryRefusedError)
    runner.most_rows = 4
    well = Texts((12, END))
    engine.submit(well.sequences)
    assert well.wait()[0].tokens == [12, END]


def break_observer(runner: FakeRunner, notes: Notes, fault: Exception) -> None:
    notes.fault = fault


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("break_", [break_moves, break_observer])
def test_an_engine_that_dies_fails_all_and_calls_ended(
    runner: FakeRunner, notes: Notes, break_: Callable[[FakeRunner, Notes, Exception], None]
) -> None:
    ended = threading.Event()
    engine = Engine([runner], LIMITS, (END,), notes)
    break_(runner, notes, RuntimeError("broken"))
    texts = Texts((10, END), (11, 12, 13, END), (14, END), (15, END), (16, END), (17, END))
    vectors = Texts((10, END), (*range(10, 50), END), max_output=0)
    engine.submit([*vectors.sequences, *texts.sequences])
    engine.start(ended.set)
    texts.wait()
    vectors.wait()
    assert ended.wait(PATIENCE)
    with pytest.raises(StoppedError):
        engine.submit(Texts((10, END)).sequences)
    engine.stop()
