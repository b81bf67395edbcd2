import pytest

from benchmarks.timing import Speed, ratio, speed, take_turns


def test_speed_is_work_over_the_median_time() -> None:
    assert speed([2.0, 1.0, 4.0], work=100) == Speed(per_second=50.0, spread=1.5)


def test_a_single_time_has_no_spread() -> None:
    assert speed([0.5], work=32) == Speed(per_second=64.0, spread=0.0)


def test_speed_requires_at_least_one_time() -> None:
    with pytest.raises(ValueError, match="seconds must hold at least one time, is empty"):
        speed([], work=1)


def test_ratio_is_our_throughput_over_theirs() -> None:
    assert ratio(Speed(150.0, 0.1), Speed(100.0, 0.2)) == 1.5


def test_contenders_take_turns_forwards_and_backwards() -> None:
    ran: list[str] = []
    runs = {name: lambda name=name: ran.append(name) for name in ("a", "b", "c")}
    seconds = take_turns(runs, rounds=3, rest_seconds=0)
    assert "".join(ran) == "abccbaabc"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 3}
