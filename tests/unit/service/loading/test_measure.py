from collections.abc import Iterator

import pytest

from dragoman.bundle.rules import DecodingRules
from dragoman.service.engine.offline import Offline
from dragoman.service.loading.measure import Layout, Throughput, fastest, layouts, run_for
from tests.support.fake_runner import END, START, FakeRunner

SOURCES = [(5, END), (6, 7, END)]
PROMPTS = [(START,)] * 2


@pytest.fixture
def engine() -> Iterator[Offline]:
    with Offline([FakeRunner()], DecodingRules(START, (END,), 0), rows=2) as engine:
        yield engine


def test_as_many_copies_run_as_fit_into_the_time(engine: Offline) -> None:
    times = iter([0.0, 2.0, 10.0, 14.0])  # one copy takes 2 s, so 5 copies fit into 11 s; they take 4 s
    found = run_for(engine, SOURCES, PROMPTS, Layout(1, 1), 2, seconds=11, clock=lambda: next(times))
    assert found == Throughput(Layout(1, 1), 2, tokens_per_second=5 * 5 / 4, sentences_per_second=5 * 2 / 4)


def test_texts_run_at_least_once_in_too_short_a_time(engine: Offline) -> None:
    times = iter([0.0, 2.0, 10.0, 11.0])
    found = run_for(engine, SOURCES, PROMPTS, Layout(1, 1), 2, seconds=1, clock=lambda: next(times))
    assert found.sentences_per_second == 2


@pytest.mark.parametrize(
    ("cpus", "right"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (1, 2), (2, 1)]),
        (3, [(1, 1), (1, 3), (3, 1)]),
        (8, [(1, 1), (1, 8), (2, 4), (4, 2), (8, 1)]),
    ],
)
def test_every_layout_that_uses_all_processors_is_tried(cpus: int, right: list[tuple[int, int]]) -> None:
    assert [(layout.lanes, layout.threads) for layout in layouts(cpus)] == right


def test_the_fastest_has_most_tokens_at_the_largest_batch() -> None:
    one, two = Layout(1, 2), Layout(2, 1)
    runs = [Throughput(one, 1, 900, 1), Throughput(one, 32, 100, 9), Throughput(two, 32, 200, 1)]
    assert fastest(runs).layout.flags == "--lanes 2 --threads-per-lane 1"
