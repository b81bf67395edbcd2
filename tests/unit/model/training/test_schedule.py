import pytest

from dragoman.model.training.schedule import Schedule

SCHEDULE = Schedule(peak=1e-3, warmup_steps=100, floor=0.01)


def test_the_rate_rises_linearly_to_the_peak() -> None:
    rates = [SCHEDULE.rate(step, progress=0.0) for step in range(101)]
    assert rates[0] == pytest.approx(1e-5)
    assert rates[49] == pytest.approx(5e-4)
    assert rates[99] == rates[100] == pytest.approx(1e-3)


def test_the_rate_falls_by_half_a_cosine_to_the_floor() -> None:
    assert SCHEDULE.rate(1000, 0.5) == pytest.approx(1e-3 * (0.01 + 0.99 * 0.5))
    assert SCHEDULE.rate(1000, 1 / 3) == pytest.approx(1e-3 * (0.01 + 0.99 * 0.75))
    assert SCHEDULE.rate(1000, 1.0) == pytest.approx(1e-5)
    rates = [SCHEDULE.rate(1000, part / 100) for part in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_a_run_that_overshoots_its_end_stays_at_the_floor() -> None:
    assert SCHEDULE.rate(1000, 1.5) == SCHEDULE.rate(1000, 1.0)


def test_the_rate_is_never_zero() -> None:
    assert Schedule(peak=1e-3, warmup_steps=1000).rate(0, 1.0) > 0
