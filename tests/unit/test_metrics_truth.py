from dataclasses import replace

import pytest

from benchmarks.metrics import Scrape, Timed, bucket_of, histogram_quantile
from dragoman.service.engine.offline import Silent

GOOD = Scrape(
    seconds=0.01,
    size_bytes=30_000,
    more_series=0,
    quantiles=((0.5, 0.03, 0.04),),
    resident_bytes=104.0,
    kernel_bytes=100.0,
)


@pytest.mark.parametrize(("quantile", "expected"), [(0.25, 0.5), (0.5, 1.0), (0.75, 1.5), (0.9, 1.8), (1.0, 2.0)])
def test_a_quantile_is_read_off_the_buckets_as_prometheus_does(quantile: float, expected: float) -> None:
    buckets = [(1.0, 10.0), (2.0, 20.0), (4.0, 20.0), (float("inf"), 20.0)]
    assert histogram_quantile(quantile, buckets) == pytest.approx(expected)


def test_beyond_the_last_bound_a_quantile_is_that_bound() -> None:
    assert histogram_quantile(0.9, [(1.0, 1.0), (float("inf"), 10.0)]) == 1.0


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    assert bucket_of(0.005) == bucket_of(0.0049) == bucket_of(0.0051) - 1


def test_a_true_and_cheap_scrape_has_no_faults() -> None:
    assert GOOD.faults() == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seconds": 0.06}, "a scrape takes 60.0 ms"),
        ({"size_bytes": 200_001}, "a scrape has 200001 bytes"),
        ({"more_series": 1}, "callers made 1 series"),
        ({"quantiles": ((0.5, 0.03, 0.3),)}, "p50 is 0.0300 s by the clients"),
        ({"resident_bytes": 94.0}, "memory is 94 bytes"),
    ],
)
def test_what_is_beyond_its_bound_is_named(changes: dict[str, float], fault: str) -> None:
    (found,) = replace(GOOD, **changes).faults()  # type: ignore[arg-type]
    assert found.startswith(fault)


def test_the_time_of_an_observer_is_noted() -> None:
    timed = Timed(Silent())
    for _ in range(1000):
        timed.stepped(1, 0.5)
    assert timed.seconds > 0
