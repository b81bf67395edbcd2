"""Engines that share the processors: bounded runs at once, shares by weight, and no starvation."""

import threading
from collections.abc import Callable

from dragoman.service.engine.fair_scheduler import EngineShare, FairScheduler, RunTicket
from tests.support.harness import PATIENCE_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def start_run(ticket: RunTicket) -> tuple[threading.Event, threading.Event, threading.Thread]:
    """Start a run on a thread: it sets the first event when it begins, and ends once the second is set."""
    has, done = threading.Event(), threading.Event()

    def run() -> None:
        with ticket.held():
            has.set()
            done.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return has, done, thread


def active(share: EngineShare) -> RunTicket:
    ticket = share.ticket()
    ticket.activate()
    return ticket


def run_for(clock: Clock, ticket: RunTicket, seconds: float) -> None:
    """Make a run of so many seconds."""
    with ticket.held():
        clock.now += seconds


def test_no_more_runs_at_once_than_places() -> None:
    fair_scheduler = FairScheduler(2)
    tickets = [active(fair_scheduler.share()) for _ in range(3)]
    (has_a, done_a, a), (has_b, done_b, b) = start_run(tickets[0]), start_run(tickets[1])
    assert has_a.wait(PATIENCE_SECONDS)
    assert has_b.wait(PATIENCE_SECONDS)
    has_c, done_c, c = start_run(tickets[2])
    assert not has_c.wait(0.05)
    done_a.set()
    assert has_c.wait(PATIENCE_SECONDS)
    done_b.set()
    done_c.set()
    for thread in (a, b, c):
        thread.join(PATIENCE_SECONDS)


def simulated(weights: dict[str, float], seconds: dict[str, float], runs: int) -> dict[str, float]:
    """Seconds that each engine gets of one place, if all always want to run for `seconds` each time."""
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    tickets = {name: active(fair_scheduler.share(weight)) for name, weight in weights.items()}
    taken = dict.fromkeys(weights, 0.0)
    for _ in range(runs):
        # All are active, so the one that may begin is the one with the lowest charge.
        name = next(name for name, ticket in tickets.items() if fair_scheduler._may_begin(ticket))
        run_for(clock, tickets[name], seconds[name])
        taken[name] += seconds[name]
    return taken


def test_time_is_shared_by_weight_for_any_length_of_run() -> None:
    taken = simulated({"slow": 1, "quick": 1, "heavy": 2}, {"slow": 0.03, "quick": 0.005, "heavy": 0.01}, 2000)
    total = sum(taken.values())
    assert abs(taken["slow"] / total - 0.25) < 0.01
    assert abs(taken["quick"] / total - 0.25) < 0.01
    assert abs(taken["heavy"] / total - 0.5) < 0.01


def test_an_engine_that_returns_starts_level_and_runs_next() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    busy, rare = active(fair_scheduler.share()), fair_scheduler.share()
    for _ in range(100):
        run_for(clock, busy, 1)
    ticket = active(rare)
    assert not fair_scheduler._may_begin(busy), "the other engine has the lower charge"
    run_for(clock, ticket, 5)
    assert fair_scheduler._may_begin(busy), "idle time is no credit"


def test_an_idle_engine_holds_up_no_other() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    busy, other = active(fair_scheduler.share()), active(fair_scheduler.share())
    run_for(clock, busy, 1)
    assert not fair_scheduler._may_begin(busy)
    other.deactivate()
    assert fair_scheduler._may_begin(busy)


def test_a_hung_run_frees_its_place() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock, patience_seconds=30)
    hanging, other = active(fair_scheduler.share()), active(fair_scheduler.share())
    has, done, thread = start_run(hanging)
    assert has.wait(PATIENCE_SECONDS)
    has_other, done_other, second = start_run(other)
    assert not has_other.wait(0.05)
    clock.now += 31
    assert has_other.wait(PATIENCE_SECONDS)
    done_other.set()
    done.set()
    for each in (thread, second):
        each.join(PATIENCE_SECONDS)


def test_competing_threads_keep_to_the_places_and_all_proceed() -> None:
    fair_scheduler = FairScheduler(2)
    running, most, lock = 0, 0, threading.Lock()
    counts: dict[int, int] = dict.fromkeys(range(4), 0)

    def work(number: int, share: EngineShare) -> Callable[[], None]:
        def run() -> None:
            nonlocal running, most
            ticket = active(share)
            for _ in range(200):
                with ticket.held():
                    with lock:
                        running += 1
                        most = max(most, running)
                    with lock:
                        running -= 1
                counts[number] += 1
            ticket.deactivate()

        return run

    threads = [threading.Thread(target=work(number, fair_scheduler.share(1 + number))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert most <= 2
    assert counts == dict.fromkeys(range(4), 200)
