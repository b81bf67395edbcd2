import math
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import Any

import pytest

from dragoman.service.engine.engine import Engine, Load
from dragoman.service.engine.observer import Cause, Run
from dragoman.service.engine.runner import Memory, MemoryRefusedError
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Finish, QueueFullError, Sequence, StoppedError
from tests.support.fake_runner import END, START, FakeRunner, log_prob_of, said

FOREVER = 10**9
"""More tokens than any test waits for."""

LIMITS = BatchLimits(rows=4, tokens=10 * FOREVER, encode_tokens=1000, queue_sequences=10, queue_tokens=10 * FOREVER)
PATIENCE = 30


@dataclass
class Notes:
    """An observer that remembers."""

    encodings: list[tuple[int, int, int]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    endings: list[Finish | None] = field(default_factory=list)
    failures: list[tuple[Run, Cause]] = field(default_factory=list)
    wasted_tokens: int = 0
    fault: Exception | None = None

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        self.encodings.append((rows, tokens, padding))

    def stepped(self, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.batches.append(rows)

    def failed(self, run: Run, cause: Cause) -> None:
        self.failures.append((run, cause))

    def wasted(self, tokens: int) -> None:
        self.wasted_tokens += tokens

    def finished(self, sequence: Sequence) -> None:
        if self.fault is not None:
            raise self.fault
        self.endings.append(sequence.finish)


class Waiting:
    """Sequences, and a way to wait until all have ended."""

    def __init__(self, *sources: Row[int], max_output: int = 20, deadline: float | None = None) -> None:
        self._left = threading.Semaphore(0)
        self.sequences = [Sequence(tuple(source), (START,), max_output, self._done, deadline) for source in sources]

    def _done(self, sequence: Sequence) -> None:
        self._left.release()

    def all(self) -> list[Sequence]:
        for _ in self.sequences:
            assert self._left.acquire(timeout=PATIENCE), "a sequence was never finished"
        assert not self._left.acquire(blocking=False), "a sequence was finished twice"
        return self.sequences


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner(rows=4, poison=(99,), endless=(98,), broken=(97,))


@pytest.fixture
def engine(runner: FakeRunner, notes: Notes) -> Iterator[Engine]:
    engine = Engine([runner], LIMITS, (END,), notes)
    engine.start()
    yield engine
    runner.gate.set()
    engine.stop()


def test_every_sequence_gets_its_own_output(engine: Engine, notes: Notes) -> None:
    sources = [(*range(10, 10 + length), END) for length in (1, 9, 3, 7, 2, 5, 4, 8)]
    waiting = Waiting(*sources)
    engine.submit(waiting.sequences)
    for sequence in waiting.all():
        assert sequence.tokens == said(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
        assert sequence.finish is Finish.END
    assert sorted(notes.endings, key=str) == [Finish.END] * 8
    assert sum(notes.batches) == sum(map(len, sources)), "no row is stepped that has nothing to say"
    assert max(notes.batches) == LIMITS.rows
    assert sum(rows for rows, _, _ in notes.encodings) == 8
    assert sum(tokens for _, tokens, _ in notes.encodings) == sum(map(len, sources))


def test_sources_of_like_length_are_encoded_together(engine: Engine, runner: FakeRunner, notes: Notes) -> None:
    runner.gate.clear()
    first = Waiting((10, END))
    engine.submit(first.sequences)
    assert runner.stepping.wait(PATIENCE)
    sources = [(*range(10, 10 + length), END) for length in (3, 80, 5)]
    waiting = Waiting(*sources, max_output=120)
    vectors = Waiting(*sources, max_output=0)
    engine.submit([*waiting.sequences, *vectors.sequences])
    runner.gate.set()
    assert [sequence.tokens for sequence in waiting.all()] == [said(source) for source in sources]
    assert [len(sequence.states) for sequence in vectors.all()] == [len(source) for source in sources]
    assert [(rows, padding) for rows, _, padding in notes.encodings[1:]] == [(2, 6), (1, 7), (2, 6), (1, 7)]


def test_a_short_text_does_not_wait_for_a_long_one(engine: Engine, runner: FakeRunner) -> None:
    long = Waiting((98, END), max_output=FOREVER)
    engine.submit(long.sequences)
    assert runner.stepping.wait(PATIENCE)
    short = Waiting((10, END))
    engine.submit(short.sequences)
    (sequence,) = short.all()
    assert sequence.tokens == [10, END]
    assert long.sequences[0].finish is None
    long.sequences[0].cancel()
    assert long.all()[0].finish is Finish.CANCELLED


def test_times_come_in_order(engine: Engine) -> None:
    waiting = Waiting((10, 11, END))
    engine.submit(waiting.sequences)
    times = waiting.all()[0].times
    order = [times.submitted, times.admitted, times.encoded, times.first_token, times.finished]
    assert order == sorted(order)
    assert times.submitted > 0


def test_states_of_an_embedding_are_those_of_its_tokens(engine: Engine) -> None:
    waiting = Waiting((10, END), (11, 12, 13, END), max_output=0)
    engine.submit(waiting.sequences)
    short, long = waiting.all()
    assert short.states.tolist() == [[10, 0, 1], [END, 1, 1]]
    assert long.states[:, 0].tolist() == [11, 12, 13, END]
    assert short.tokens == []


def test_a_row_of_nan_fails_alone_and_leaves_nothing_behind(engine: Engine) -> None:
    # The runner itself checks that the spoiled slot was cleared before it is used again.
    waiting = Waiting((99, END), (10, END), (99, 11, END), (12, 13, END), (14, END), (15, END))
    engine.submit(waiting.sequences)
    finishes = [sequence.finish for sequence in waiting.all()]
    assert finishes == [Finish.FAILED, Finish.END, Finish.FAILED, Finish.END, Finish.END, Finish.END]
    assert str(waiting.sequences[0].error) == f"the model's log-probability is {math.nan}"
    again = Waiting(*[(20 + row, END) for row in range(4)])
    engine.submit(again.sequences)
    assert [sequence.tokens[0] for sequence in again.all()] == [20, 21, 22, 23]


@pytest.mark.parametrize(("max_output", "run"), [(0, "embed"), (5, "insert")])
def test_an_encoding_that_raises_once_costs_nobody_anything(
    engine: Engine, runner: FakeRunner, notes: Notes, max_output: int, run: Run
) -> None:
    runner.fault = RuntimeError("a passing fault")
    waiting = Waiting((10, END), (11, 12, END), max_output=max_output)
    engine.submit(waiting.sequences)
    for sequence in waiting.all():
        assert sequence.finish is Finish.END
        assert sequence.tokens == (said(sequence.source) if max_output else [])
        assert max_output or sequence.states[:, 0].tolist() == list(sequence.source)
    assert notes.failures == [(run, "error")]
    assert [rows for rows, _, _ in notes.encodings] == [1, 1], "each was tried again alone"


@pytest.mark.parametrize("part", [(slice(-1),), (..., slice(2)), (..., [0, 1, 2, 2]), (..., 0), (None,)], ids=str)
def test_states_of_a_wrong_shape_are_a_run_that_failed(
    engine: Engine, runner: FakeRunner, notes: Notes, monkeypatch: pytest.MonkeyPatch, part: tuple[Any, ...]
) -> None:
    whole = runner.embed

    def embed(sources: Row[Row[int]]) -> list[Any]:
        return [states[part] if len(sources) > 1 or 97 in states[:, 0] else states for states in whole(sources)]

    monkeypatch.setattr(runner, "embed", embed)
    waiting = Waiting((10, END), (11, 97, END), (12, 13, END), max_output=0)
    engine.submit(waiting.sequences)
    well, wrong, too = waiting.all()
    assert [each.finish for each in (well, wrong, too)] == [Finish.END, Finish.FAILED, Finish.END]
    assert well.states.shape == (2, 3)
    assert too.states[:, 0].tolist() == [12, 13, END]
    assert str(wrong.error).startswith("the runner gave states of the shape ")
    assert notes.failures == [("embed", "error")] * 2, "together, and once more alone"


def test_a_step_that_raises_once_costs_nobody_anything(engine: Engine, runner: FakeRunner, notes: Notes) -> None:
    runner.gate.clear()
    waiting = Waiting((10, END), (11, 12, 13, END), (14, 15, END))
    engine.submit(waiting.sequences)
    assert runner.stepping.wait(PATIENCE)
    runner.fault = RuntimeError("a passing fault")
    runner.gate.set()
    for sequence in waiting.all():
        assert sequence.tokens == said(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
    assert notes.failures == [("step", "error")]
    assert runner.batches[:5] == [3, 1, 1, 1, 2], "the second step was made row by row"


@pytest.mark.parametrize(
    ("max_output", "source", "run"),
    [(0, (97, END), "embed"), (5, (97, END), "insert"), (5, (10, 97, END), "step")],
    ids=["embedding", "encoding", "step"],
)
def test_a_sequence_that_the_runner_cannot_run_fails_alone(
    engine: Engine, notes: Notes, max_output: int, source: tuple[int, ...], run: Run
) -> None:
    waiting = Waiting((10, END), source, (11, 12, 13, END), (14, 15, END), max_output=max_output)
    engine.submit(waiting.sequences)
    finishes = [sequence.finish for sequence in waiting.all()]
    assert finishes == [Finish.END, Finish.FAILED, Finish.END, Finish.END]
    assert str(waiting.sequences[1].error) == "broken"
    for sequence in (waiting.sequences[row] for row in (0, 2, 3)):
        assert sequence.tokens == (said(sequence.source) if max_output else [])
    assert notes.failures == [(run, "error")] * 2, "together, and once more alone"
    well = Waiting((12, END))
    engine.submit(well.sequences)
    assert well.all()[0].tokens == [12, END]


@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_a_batch_that_is_refused_memory_is_made_smaller_and_nothing_is_lost(
    engine: Engine, runner: FakeRunner, notes: Notes, most_rows: int
) -> None:
    runner.gate.clear()
    waiting = Waiting(*[(*range(10, 10 + length), END) for length in (3, 9, 5, 7, 4, 6)])
    engine.submit(waiting.sequences)
    assert runner.stepping.wait(PATIENCE)
    runner.most_rows = most_rows
    runner.gate.set()
    for sequence in waiting.all():
        assert sequence.finish is Finish.END
        assert sequence.tokens == said(sequence.source)
        assert sequence.log_prob == sum(map(log_prob_of, sequence.source))
        times = sequence.times
        order = [times.submitted, times.admitted, times.encoded, times.first_token, times.finished]
        assert order == sorted(order)
    assert ("step", "memory") in notes.failures
    assert sum(notes.batches) == sum(len(sequence.tokens) for sequence in waiting.sequences) + notes.wasted_tokens
    assert notes.wasted_tokens > 0
    assert max(runner.batches[1:]) <= most_rows


@pytest.mark.parametrize("max_output", [0, 5], ids=["embedding", "decoding"])
def test_an_encoding_that_is_refused_memory_is_made_in_parts(
    engine: Engine, runner: FakeRunner, notes: Notes, max_output: int
) -> None:
    runner.most_rows = 1
    waiting = Waiting((10, END), (11, 12, END), (13, END), max_output=max_output)
    engine.submit(waiting.sequences)
    for sequence in waiting.all():
        assert sequence.finish is Finish.END
        assert sequence.tokens == (said(sequence.source) if max_output else [])
        assert max_output or sequence.states[:, 0].tolist() == list(sequence.source)
    assert all(cause == "memory" for _, cause in notes.failures)
    assert [rows for rows, _, _ in notes.encodings] == [1, 1, 1]


@pytest.mark.parametrize("max_output", [0, 5], ids=["embedding", "decoding"])
def test_a_sequence_that_is_refused_memory_alone_fails(engine: Engine, runner: FakeRunner, max_output: int) -> None:
    runner.most_rows = 0
    waiting = Waiting((10, END), (11, END), max_output=max_output)
    engine.submit(waiting.sequences)
    for sequence in waiting.all():
        assert sequence.finish is Finish.FAILED
        assert isinstance(sequence.error, MemoryRefusedError)
    runner.most_rows = 4
    well = Waiting((12, END))
    engine.submit(well.sequences)
    assert well.all()[0].tokens == [12, END]


def test_load_says_what_waits_and_what_runs(engine: Engine, runner: FakeRunner) -> None:
    runner.gate.clear()
    waiting = Waiting(*[(10, END)] * 6, max_output=5)
    engine.submit(waiting.sequences)
    assert runner.stepping.wait(PATIENCE)
    assert engine.load() == Load(waiting_sequences=2, waiting_tokens=14, active_rows=4)
    runner.gate.set()
    waiting.all()
    assert engine.load() == Load(0, 0, 0)


def test_a_full_queue_refuses_at_once(engine: Engine, runner: FakeRunner) -> None:
    runner.gate.clear()
    first = Waiting((10, END))
    engine.submit(first.sequences)
    assert runner.stepping.wait(PATIENCE)
    queued = Waiting(*[(10, END)] * 10)
    engine.submit(queued.sequences)
    with pytest.raises(QueueFullError):
        engine.submit(Waiting((10, END)).sequences)
    runner.gate.set()
    first.all()
    queued.all()


def test_the_late_are_dropped_with_what_they_had(engine: Engine, runner: FakeRunner) -> None:
    late = Waiting((98, END), max_output=FOREVER, deadline=engine.clock() + 0.05)
    engine.submit(late.sequences)
    (sequence,) = late.all()
    assert sequence.finish is Finish.DEADLINE
    assert set(sequence.tokens) <= {98}


def test_an_idle_engine_lets_its_runner_rest(engine: Engine, runner: FakeRunner) -> None:
    waiting = Waiting((10, END))
    engine.submit(waiting.sequences)
    waiting.all()
    runner.rested.clear()
    assert runner.rested.wait(PATIENCE)


def test_stopping_leaves_no_caller_waiting(engine: Engine, runner: FakeRunner) -> None:
    running = Waiting(*[(98, END)] * 6, max_output=FOREVER)
    engine.submit(running.sequences)
    assert runner.stepping.wait(PATIENCE)
    engine.stop()
    for sequence in running.all():
        assert sequence.finish is Finish.FAILED
        assert isinstance(sequence.error, StoppedError)
    with pytest.raises(StoppedError):
        engine.submit(Waiting((10, END)).sequences)


def test_one_that_never_started_can_be_stopped(runner: FakeRunner, notes: Notes) -> None:
    Engine([runner], LIMITS, (END,), notes).stop()


# --- several lanes


@pytest.fixture
def pair() -> tuple[FakeRunner, FakeRunner]:
    return FakeRunner(rows=4, endless=(98,)), FakeRunner(rows=4, endless=(98,))


@pytest.fixture
def lanes(pair: tuple[FakeRunner, FakeRunner], notes: Notes) -> Iterator[Engine]:
    engine = Engine(pair, LIMITS, (END,), notes)
    engine.start()
    yield engine
    for runner in pair:
        runner.gate.set()
    engine.stop()


def test_lanes_share_the_work_and_every_sequence_gets_its_own_output(
    lanes: Engine, pair: tuple[FakeRunner, FakeRunner], notes: Notes
) -> None:
    for runner in pair:
        runner.gate.clear()
    sources = [(*range(10, 10 + length), END) for length in (1, 9, 3, 7, 2, 5, 4, 8)]
    waiting = Waiting(*sources)
    lanes.submit(waiting.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE), "no lane is idle where there is work for two"
    assert lanes.load() == Load(0, 0, 8)
    for runner in pair:
        runner.gate.set()
    for sequence in waiting.all():
        assert sequence.tokens == said(sequence.source)
    assert sum(notes.batches) == sum(map(len, sources))
    assert [runner.batches[0] for runner in pair] == [4, 4]
    assert lanes.load() == Load(0, 0, 0)


def test_a_lane_that_hangs_leaves_its_work_to_no_one_and_all_other_work_to_the_rest(
    lanes: Engine, pair: tuple[FakeRunner, FakeRunner]
) -> None:
    for runner in pair:
        runner.gate.clear()
    stuck = Waiting(*[(10 + row, END) for row in range(4)])
    lanes.submit(stuck.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE)
    pair[1].gate.set()
    for round_ in range(5):
        waiting = Waiting(*[(20 + round_, END)] * 3)
        lanes.submit(waiting.sequences)
        assert all(sequence.tokens == [20 + round_, END] for sequence in waiting.all())
    assert lanes.busy_seconds() > 0
    assert any(sequence.finish is None for sequence in stuck.sequences)
    pair[0].gate.set()
    stuck.all()


def test_memory_is_that_of_all_lanes_but_they_share_their_weights(lanes: Engine) -> None:
    assert lanes.memory() == Memory(
        weights=1000,
        cache_reserved=400,
        cache_resident=200,
        cache_used=100,
        buffers=60,
        working=20,
        source_positions=16,
        output_positions=24,
    )


def test_stopping_stops_every_lane(lanes: Engine, pair: tuple[FakeRunner, FakeRunner]) -> None:
    waiting = Waiting(*[(98, END)] * 6, max_output=FOREVER)
    lanes.submit(waiting.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE)
    lanes.stop()
    assert {str(sequence.error) for sequence in waiting.all()} == {"the engine has stopped"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lane_that_dies_ends_them_all(pair: tuple[FakeRunner, FakeRunner], notes: Notes) -> None:
    broken_move(pair[1], notes, RuntimeError("broken"))
    ended = threading.Semaphore(0)
    engine = Engine(pair, LIMITS, (END,), notes)
    waiting = Waiting(*[(10, END), (98, END)] * 4, max_output=FOREVER)
    engine.submit(waiting.sequences)
    engine.start(lambda: ended.release())
    waiting.all()
    for _ in pair:
        assert ended.acquire(timeout=PATIENCE)
    with pytest.raises(StoppedError):
        engine.submit(Waiting((10, END)).sequences)
    engine.stop()


# --- what ends it


def broken_move(runner: FakeRunner, notes: Notes, fault: Exception) -> None:
    def raising(source: int, target: int) -> None:
        raise fault

    runner.move_row = raising  # type: ignore[method-assign]


def broken_observer(runner: FakeRunner, notes: Notes, fault: Exception) -> None:
    notes.fault = fault


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("spoil", [broken_move, broken_observer])
def test_whatever_ends_the_thread_no_caller_is_left_waiting_and_its_owner_is_told(
    runner: FakeRunner, notes: Notes, spoil: Callable[[FakeRunner, Notes, Exception], None]
) -> None:
    ended = threading.Event()
    engine = Engine([runner], LIMITS, (END,), notes)
    spoil(runner, notes, RuntimeError("broken"))
    waiting = Waiting((10, END), (11, 12, 13, END), (14, END), (15, END), (16, END), (17, END))
    vectors = Waiting((10, END), (*range(10, 50), END), max_output=0)
    engine.submit([*vectors.sequences, *waiting.sequences])
    engine.start(ended.set)
    waiting.all()
    vectors.all()
    assert ended.wait(PATIENCE)
    with pytest.raises(StoppedError):
        engine.submit(Waiting((10, END)).sequences)
    engine.stop()


def test_rows_with_other_prompts_share_a_batch(notes: Notes) -> None:
    runner = FakeRunner(rows=4, prompt_tokens=2)
    engine = Engine([runner], LIMITS, (END,), notes)
    waiting = Waiting((5, 6, END), (7, END), (8, 9, 10, END), (11, END), (12, 13, END))
    for tag, sequence in enumerate(waiting.sequences, start=40):
        sequence.prompt = (START, tag)
    engine.start()
    engine.submit(waiting.sequences)
    found = waiting.all()
    engine.stop()
    assert [sequence.tokens for sequence in found] == [
        [tag, *sequence.source] for tag, sequence in enumerate(found, start=40)
    ]
    assert max(notes.batches) == 4
    for sequence in found:
        assert sequence.log_prob == sum(map(log_prob_of, sequence.tokens)), "what the prompt overruled is not scored"
