import os

import pytest

from benchmarks.server_process import pinned, sum_of
from benchmarks.speed.served import OneWord, Rate, closed_loop, rates_of
from benchmarks.timing import Speed
from tests.support.fake_runner import FakeRunner
from tests.support.harness import sentences, serving


@pytest.mark.parametrize("clients", [1, 5])
async def test_translations_keep_the_order_of_the_texts(clients: int) -> None:
    texts = [" ".join(text.split()[:5]) for text in sentences(23)]
    async with serving(FakeRunner()) as running:
        assert await closed_loop(running.address, texts, clients) == texts


def test_each_rate_is_compared_with_the_peer() -> None:
    speeds = {"ctranslate2": Speed(100.0, 0.1), "1": Speed(50.0, 0.2), "32": Speed(95.0, 0.3)}
    assert list(rates_of([1, 32], speeds)) == [
        Rate(1, 50.0, 0.2, 100.0, 0.1, ratio=0.5),
        Rate(32, 95.0, 0.3, 100.0, 0.1, ratio=0.95),
    ]


def test_the_bound_is_twice_the_idle_latency_plus_three_steps() -> None:
    word = OneWord("Hello", 32, idle_seconds=1.0, busy_seconds=4.0, step_seconds=0.5, more_steps=6.0)
    assert word.bound_seconds == 3.5


def test_a_metric_is_the_sum_of_its_own_samples() -> None:
    page = '# HELP rows x\nrows{model="a"} 3.0\nrows{model="b"} 1.5\nrows_total 9.0\nrows 1.0\n'
    assert sum_of(page, "rows") == 5.5
    assert sum_of(page, "lines") == 0


def test_pinning_is_undone_on_exit() -> None:
    before = os.sched_getaffinity(0)
    with pinned({min(before)}):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with pinned(None):
        assert os.sched_getaffinity(0) == before
