"""Engines of several lanes."""

import threading

import pytest

from dragoman.service.engine.engine import Engine, Load
from dragoman.service.engine.runner import Memory
from dragoman.service.engine.sequence import StoppedError
from tests.support.fake_runner import END, FakeRunner, output_of
from tests.unit.service.engine.engines import FOREVER, LIMITS, PATIENCE, Notes, Texts, break_moves


def test_lanes_share_the_work(lanes: Engine, pair: tuple[FakeRunner, FakeRunner], notes: Notes) -> None:
    for runner in pair:
        runner.gate.clear()
    sources = [(*range(10, 10 + length), END) for length in (1, 9, 3, 7, 2, 5, 4, 8)]
    texts = Texts(*sources)
    lanes.submit(texts.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE), "no lane is idle while there is work for two"
    assert lanes.load() == Load(0, 0, 8)
    for runner in pair:
        runner.gate.set()
    for sequence in texts.wait():
        assert sequence.tokens == output_of(sequence.source)
    assert sum(notes.batches) == sum(map(len, sources))
    assert [runner.batches[0] for runner in pair] == [4, 4]
    assert lanes.load() == Load(0, 0, 0)


def test_a_hung_lane_keeps_only_its_own_work(lanes: Engine, pair: tuple[FakeRunner, FakeRunner]) -> None:
    for runner in pair:
        runner.gate.clear()
    stuck = Texts(*[(10 + row, END) for row in range(4)])
    lanes.submit(stuck.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE)
    pair[1].gate.set()
    for round_ in range(5):
        texts = Texts(*[(20 + round_, END)] * 3)
        lanes.submit(texts.sequences)
        assert all(sequence.tokens == [20 + round_, END] for sequence in texts.wait())
    assert lanes.busy_seconds() > 0
    assert any(sequence.finish is None for sequence in stuck.sequences)
    pair[0].gate.set()
    stuck.wait()


def test_memory_is_summed_over_lanes_except_shared_parts(lanes: Engine) -> None:
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
    texts = Texts(*[(98, END)] * 6, max_output=FOREVER)
    lanes.submit(texts.sequences)
    for runner in pair:
        assert runner.stepping.wait(PATIENCE)
    lanes.stop()
    assert {str(sequence.error) for sequence in texts.wait()} == {"the engine has stopped"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lane_that_dies_ends_all_lanes(pair: tuple[FakeRunner, FakeRunner], notes: Notes) -> None:
    break_moves(pair[1], notes, RuntimeError("broken"))
    ended = threading.Semaphore(0)
    engine = Engine(pair, LIMITS, (END,), notes)
    texts = Texts(*[(10, END), (98, END)] * 4, max_output=FOREVER)
    engine.submit(texts.sequences)
    engine.start(lambda: ended.release())
    texts.wait()
    for _ in pair:
        assert ended.acquire(timeout=PATIENCE)
    with pytest.raises(StoppedError):
        engine.submit(Texts((10, END)).sequences)
    engine.stop()
