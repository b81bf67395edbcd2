from collections.abc import Iterator

import pytest

from dragoman.model.config import DecodingRules
from dragoman.service.engine.offline import Offline
from dragoman.service.measure import Layout, Throughput, fastest, layouts, run_for
from tests.fake_runner import END, START, FakeRunner

SOURCES = [(5, END), (6, 7, END)]


@pytest.fixture
def engine() -> Iterator[Offline]:
    with Offline(FakeRunner(), DecodingRules(START, (END,), 0), rows=2) as engine:
        yield engine


def test_texts_run_as_often_as_fits_into_the_time(engine: Offline) -> None:
    times = iter([0.0, 2.0, 10.0, 14.0])  # once takes 2 s, so that 5 times fit into 11 s; these take 4
    found = run_for(engine, SOURCES, Layout(1), 2, seconds=11, clock=lambda: next(times))
    assert found == Throughput(Layout(1), 2, tokens_per_second=5 * 5 / 4, sentences_per_second=5 * 2 / 4)


def test_they_run_at_least_once_where_the_time_is_too_short(engine: Offline) -> None:
    times = iter([0.0, 2.0, 10.0, 11.0])
    assert run_for(engine, SOURCES, Layout(1), 2, seconds=1, clock=lambda: next(times)).sentences_per_second == 2


@pytest.mark.parametrize(
    ("cpus", "threads"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_threads_are_tried_in_powers_of_two_up_to_all_processors(cpus: int, threads: list[int]) -> None:
    assert [layout.threads for layout in layouts(cpus)] == threads


def test_the_fastest_is_the_one_with_most_tokens_in_the_largest_batch() -> None:
    runs = [Throughput(Layout(1), 1, 900, 1), Throughput(Layout(1), 32, 100, 9), Throughput(Layout(2), 32, 200, 1)]
    assert fastest(runs).layout.flags == "--threads 2"
