"""Warm-up: the shapes that are run before the first call."""

from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.service.engine.cache import ladder
from dragoman.service.engine.runner import MemoryRefusedError, RowInput
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.step import Step
from dragoman.service.loading.warmup import warm_up
from tests.support.fake_runner import END, FakeRunner
from tests.support.harness import MAX_SOURCE_TOKENS, encoder_manifest, manifest

LIMITS = BatchLimits(rows=6, tokens=10_000, encode_tokens=50, queue_sequences=1, queue_tokens=1)
SOURCES = [(*range(10, 20), END)]
SECONDS = 1000.0
"""Time limit that is never reached."""


class Recording(FakeRunner):
    """Records its calls, and computes nothing."""

    def __init__(self, most_rows: int = 100) -> None:
        super().__init__()
        self.most = most_rows
        self.embedded: list[int] = []
        self.inserted: list[tuple[int, range]] = []
        self.stepped: set[tuple[int, int]] = set()
        self.dirty: set[int] = set()

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        self.embedded += map(len, sources)
        return []

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        rows = range(first_row, first_row + len(sources))
        self.inserted.append((len(sources[0]), rows))
        self.dirty.update(rows)

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        if len(rows) > self.most:
            raise MemoryRefusedError("no memory")
        assert self.dirty.issuperset(range(len(rows))), "rows are encoded before they are stepped"
        self.stepped.add((rows[0].position, len(rows)))
        return []

    def clear_row(self, row: int) -> None:
        self.dirty.discard(row)


def test_every_capacity_runs_with_every_batch_size() -> None:
    runner = Recording()
    what = manifest(max_output_tokens=48)
    assert warm_up(runner, SOURCES, what, LIMITS, SECONDS)
    assert runner.stepped == {(capacity - 1, rows) for capacity in ladder(48) for rows in (1, 2, 4, 6)}
    assert {width for width, _ in runner.inserted} == set(ladder(MAX_SOURCE_TOKENS))
    assert runner.rests == 1
    assert not runner.dirty


def test_batches_stay_within_the_limits_of_calls() -> None:
    runner = Recording()
    tight = BatchLimits(rows=6, tokens=100, encode_tokens=50, queue_sequences=1, queue_tokens=1)
    assert warm_up(runner, SOURCES, manifest(max_output_tokens=48), tight, SECONDS)
    assert all(width * len(rows) <= 50 for width, rows in runner.inserted)
    assert max(rows for position, rows in runner.stepped if position == 47) == 100 // (24 + 48)
    assert max(rows for position, rows in runner.stepped if position == 15) == 100 // (16 + 16)


def test_sources_are_encoded_in_the_batches_of_calls() -> None:
    runner = Recording()
    assert warm_up(runner, SOURCES, manifest(), LIMITS, SECONDS)
    assert runner.inserted[:3] == [(16, range(3)), (16, range(3, 6)), (24, range(2))]


def test_positions_stay_below_a_limit_under_the_capacity() -> None:
    runner = Recording()
    assert warm_up(runner, SOURCES, manifest(max_output_tokens=30), LIMITS, SECONDS)
    assert max(position for position, _ in runner.stepped) == 29


def test_an_embedding_model_runs_no_step() -> None:
    runner = Recording()
    assert warm_up(runner, SOURCES, encoder_manifest(), LIMITS, SECONDS)
    assert runner.embedded == list(ladder(MAX_SOURCE_TOKENS))
    assert not runner.stepped
    assert runner.rests == 1


def test_warm_up_ends_on_time_and_begins_with_small_shapes() -> None:
    runner = Recording()
    seconds = iter(range(100))
    assert not warm_up(runner, SOURCES, manifest(), LIMITS, 5, clock=lambda: float(next(seconds)))
    assert {position for position, _ in runner.stepped} == {15}
    assert not runner.dirty
    assert runner.rests == 1


@pytest.mark.parametrize("sources", [[], [()]])
def test_without_sources_nothing_runs(sources: list[tuple[int, ...]]) -> None:
    runner = Recording()
    assert warm_up(runner, sources, manifest(), LIMITS, SECONDS)
    assert not runner.stepped


def test_refused_memory_ends_warm_up_in_order() -> None:
    runner = Recording(most_rows=4)
    assert not warm_up(runner, SOURCES, manifest(), LIMITS, SECONDS)
    assert not runner.dirty
    assert runner.rests == 1
