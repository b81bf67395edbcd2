import random
from collections import Counter

import pytest

from benchmarks.reliability.endurance import BOUNDS, Bound, Observation, Trend, trends_of
from benchmarks.reliability.mixture import SHARES, Counted, Kind, Tally, differences, plan
from benchmarks.server_process import sums_by

PAGE = """
grpc_server_handled_total{grpc_code="OK",grpc_method="Embed",grpc_service="s",grpc_type="unary"} 2.0
grpc_server_handled_total{grpc_code="OK",grpc_method="Translate",grpc_service="s",grpc_type="unary"} 3.0
grpc_server_handled_total{grpc_code="INTERNAL",grpc_method="Translate",grpc_service="s",grpc_type="unary"} 0.0
grpc_server_handled_total_more{grpc_code="OK"} 9.0
"""


def tally(waited: dict[str, int], left: dict[str, int]) -> Tally:
    found = Tally(waited=Counter(waited), left=Counter(left))
    found.sent[Kind.GOOD] = sum(waited.values()) + sum(left.values())
    return found


def counted(started: int, **handled: int) -> Counted:
    return Counted(started, Counter(handled))


def test_sums_by_adds_samples_by_label() -> None:
    assert sums_by(PAGE, "grpc_server_handled_total", "grpc_code") == {"OK": 5, "INTERNAL": 0}


def test_planned_kinds_have_their_shares() -> None:
    rng = random.Random(0)
    kinds = Counter(plan(rng, ["a", "b"], ["long"]).kind for _ in range(5000))
    assert {kind: pytest.approx(kinds[kind] / 5000, abs=0.03) for kind in SHARES} == SHARES


def test_counts_explained_by_a_race_are_no_difference() -> None:
    sent = tally({"OK": 70, "INVALID_ARGUMENT": 10}, {"CANCELLED": 10, "DEADLINE_EXCEEDED": 10})
    assert differences(sent, counted(95, OK=72, INVALID_ARGUMENT=10, CANCELLED=6, DEADLINE_EXCEEDED=7)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (counted(90, OK=79, INVALID_ARGUMENT=10), "90 calls began and 89 ended"),
        (counted(79, OK=69, INVALID_ARGUMENT=10), "1 calls that ended as OK were not counted as that"),
        (counted(101, OK=91, INVALID_ARGUMENT=10), "101 calls began, 100 were sent, of which 20 may not have arrived"),
        (counted(81, OK=70, INVALID_ARGUMENT=11), "1 more calls were counted as INVALID_ARGUMENT than ended so"),
        (counted(81, OK=70, INVALID_ARGUMENT=10, INTERNAL=1), "1 calls ended as INTERNAL"),
    ],
)
def test_differences_name_each_counting_error(found: Counted, words: str) -> None:
    sent = tally({"OK": 70, "INVALID_ARGUMENT": 10}, {"CANCELLED": 20})
    assert words in differences(sent, found)


def observation(seconds: float, resident: float, threads: float = 9.0) -> Observation:
    return Observation(seconds, latency_ms=50.0, resident_mib=resident, files=20.0, threads=threads)


def test_trends_exclude_the_warm_up() -> None:
    observations = [
        observation(0, 100),
        observation(10, 150),
        *(observation(seconds, 200) for seconds in range(20, 101, 10)),
    ]
    memory = next(trend for bound, trend in trends_of(observations).items() if bound.metric == "resident_mib")
    assert (memory.begin, memory.slope, memory.seconds) == (200, 0, 80)


def test_a_rise_beyond_its_bound_is_not_flat() -> None:
    observations = [observation(seconds, 200 + seconds / 5, 9 + seconds / 100) for seconds in range(0, 101, 10)]
    found = {bound.metric: trend.flat(bound) for bound, trend in trends_of(observations).items()}
    assert found == {"latency_ms": True, "resident_mib": False, "files": True, "threads": True}
    assert [bound.metric for bound in BOUNDS] == list(found)


@pytest.mark.parametrize(("rise", "flat"), [(-50.0, True), (9.9, True), (10.1, False)])
def test_a_trend_may_rise_by_a_share_of_its_start(rise: float, flat: bool) -> None:
    assert Trend(100.0, rise / 60, 60.0).flat(Bound("resident_mib", "MiB", share=0.1, tolerance=0.0)) is flat
