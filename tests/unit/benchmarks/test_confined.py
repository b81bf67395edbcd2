"""Verdicts of `benchmarks.speed.cores` and `benchmarks.speed.first_request`."""

import os

import pytest
from click.testing import CliRunner

from benchmarks.speed import cores, first_request
from benchmarks.speed.cores import Row, by_affinity, fault_of
from benchmarks.speed.first_request import FirstCall, median_start, summary, text_of
from benchmarks.timing import Speed


def row(configured: str, threads: int, ratio: float) -> Row:
    return Row("quota of 1", configured, threads, Speed(100.0, 0.1), ratio)


@pytest.mark.parametrize(
    ("threads", "ratio", "fault"),
    [
        (1, 1.0, None),
        (1, 0.9, None),
        (1, 0.89, "quota of 1: 0.89 times as fast as with one configured thread"),
        (2, 1.0, "quota of 1: 2 threads were chosen"),
    ],
)
def test_a_confined_server_must_choose_one_thread_at_full_speed(threads: int, ratio: float, fault: str | None) -> None:
    assert fault_of([row("1", 1, 1.0), row("2", 2, 0.5), row("automatic", threads, ratio)]) == fault


def test_affinity_is_restored_on_exit() -> None:
    before = os.sched_getaffinity(0)
    with by_affinity() as confine:
        assert os.sched_getaffinity(0) == before
        with confine():
            assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_unsupported_limits_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    def refused() -> None:
        raise PermissionError("no control groups here")

    monkeypatch.setattr(cores, "CONFINEMENTS", {"quota of 1": refused})
    result = CliRunner().invoke(cores.main, [str(tmp_path)])
    assert result.exit_code == 1
    assert "quota of 1 is left out: no control groups here\n" in result.stderr
    assert "nothing could be measured" in result.stderr


def test_first_calls_report_median_and_maximum() -> None:
    firsts = [FirstCall(0.012, 0.010, 0.013), FirstCall(0.030, 0.010, 0.011), FirstCall(0.011, 0.010, 0.012)]
    assert median_start(firsts) == firsts[0]
    assert summary(4, firsts) == (
        "   4 words:    12.0 ms, then    10.0 ms: 1.20 times; worst of 3 starts 3.00; after a rest 12.0 ms"
    )


def test_a_text_has_the_requested_word_count() -> None:
    assert text_of(3, ["a kite", "a boat"]) == "a kite a"


@pytest.mark.parametrize(("seconds", "status"), [(0.0129, 0), (0.0131, 1)])
def test_a_slow_first_call_exits_with_status_1(
    seconds: float, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    class Caller:
        def __enter__(self) -> "Caller":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def seconds(self, text: str) -> float:
            return seconds

    monkeypatch.setattr(first_request, "new_server_caller", lambda bundle: Caller())
    monkeypatch.setattr(
        first_request, "measure_first_call", lambda bundle, text, calls: FirstCall(seconds, 0.010, 0.010)
    )
    result = CliRunner().invoke(first_request.main, [str(tmp_path), "--words", "4", "--starts", "1"])
    assert result.exit_code == status
    assert ("first calls of 4 words take more than 1.3 times as long" in result.output) is bool(status)
