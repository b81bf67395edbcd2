"""Memory of rows, shares of a budget, and admission under one."""

import pytest

from dragoman.service.engine.memory_budget import Costs, MemoryBudget, Side
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import BatchLimits, Scheduler
from dragoman.service.engine.sequence import Sequence
from dragoman.service.errors import StartupError
from dragoman.service.loading.memory_shares import FOR_CALLS, Claim, shares

RUNGS = (16, 24, 32, 48, 64)
HUGE = 10**9


def side(arrays: int = 1, slots: int = HUGE, page_bytes: int = 1) -> Side:
    return Side(RUNGS, 1, arrays, slots, page_bytes)


def test_a_row_counts_at_the_largest_capacity_before_a_shrink() -> None:
    """A cache shrinks only to a capacity of half or less."""
    held = [side().held_bytes(1, positions) for positions in (1, 16, 17, 25, 33, 64)]
    assert held == [2 * row for row in (24, 24, 32, 48, 64, 64)], "twice, during a change of capacity"


def test_only_one_array_exists_twice_during_a_change() -> None:
    assert side(arrays=1).held_bytes(1, 64) == 128
    assert side(arrays=4).held_bytes(1, 64) == 80


def test_pages_are_whole_but_bounded_by_the_cache() -> None:
    assert side(page_bytes=100).held_bytes(3, 64) == 2 * 200
    assert side(slots=4, page_bytes=200).held_bytes(3, 64) == 2 * 200
    assert side(slots=4, page_bytes=250).held_bytes(3, 64) == 2 * 250
    assert side(slots=4, page_bytes=1000).held_bytes(3, 64) == 2 * 3 * 64, "a small cache has no such page"
    assert side(arrays=2, slots=8, page_bytes=100).held_bytes(1, 64) == 1.5 * 200


def test_every_row_is_as_wide_as_the_longest() -> None:
    assert Costs(side(), side()).cache_bytes(3, source=64, output=16) == 2 * 3 * (64 + 24)


def test_working_memory_counts_towards_the_budget() -> None:
    working = [0]
    budget = MemoryBudget(200.0, Costs(side(), side()), lambda: working[0])
    assert budget.holds(2, 16, 16)
    working[0] = 10
    assert not budget.holds(2, 16, 16)


def scheduler_of(limit: float, *lengths: tuple[int, int]) -> Scheduler:
    """Make a scheduler with a budget and a queue of sequences with such lengths of source and output."""
    limits = BatchLimits(rows=8, tokens=HUGE, encode_tokens=HUGE, queue_sequences=HUGE, queue_tokens=HUGE)
    scheduler = Scheduler(limits, (2,), queue := Queue(HUGE, HUGE))
    scheduler.budget = MemoryBudget(limit, Costs(side(), side()), lambda: 0)
    queue.submit([Sequence((5,) * source, (1,), output, lambda _: None) for source, output in lengths], 0.0)
    return scheduler


def admitted(scheduler: Scheduler) -> list[tuple[int, int]]:
    return [(len(sequence.source), sequence.max_output) for sequence in scheduler.admit(0.0, 8).insert]


def test_as_many_rows_run_as_memory_holds() -> None:
    assert admitted(scheduler_of(2 * 3 * 48 + 1, *[(8, 8)] * 5)) == [(8, 8)] * 3


def test_a_long_text_waits_until_wide_rows_fit() -> None:
    scheduler = scheduler_of(400, (8, 8), (8, 8), (64, 64), (8, 8))
    assert admitted(scheduler) == [(8, 8), (8, 8)]
    assert admitted(scheduler) == [], "overtaken, it would starve"
    scheduler.fail_rows(dict.fromkeys(range(2), ValueError()), 0.0)
    assert admitted(scheduler) == [(64, 64)], "and then it runs alone"
    assert admitted(scheduler) == []


def test_a_text_beyond_the_budget_runs_alone() -> None:
    scheduler = scheduler_of(1, (64, 64), (8, 8))
    assert admitted(scheduler) == [(64, 64)]
    assert admitted(scheduler) == []


def test_the_remaining_budget_is_shared_by_weight() -> None:
    claims = [Claim("a", 3.0, fixed=100, least=10), Claim("b", 1.0, fixed=200, least=10)]
    assert shares(FOR_CALLS + 50 + 300 + 400, 50, claims) == {"a": 300, "b": 100}


def test_a_budget_that_is_too_small_names_the_minimum() -> None:
    """The smaller model gets one part of four, in which one of its texts must fit."""
    claims = [Claim("a", 3.0, fixed=100, least=10), Claim("b", 1.0, fixed=200, least=10)]
    needed = FOR_CALLS + 50 + 300 + 40
    assert shares(needed, 50, claims)["b"] == 10
    with pytest.raises(StartupError, match=f"memory_budget_bytes is {needed - 1}, must be at least {needed}:"):
        shares(needed - 1, 50, claims)
