"""Who computes when several engines share the processors: at most so many at once, each its share, nobody for ever."""

import threading
from collections.abc import Callable

from dragoman.service.engine.fair_scheduler import EngineShare, FairScheduler, RunTicket
from tests.support.harness import PATIENCE_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def begun(ticket: RunTicket) -> tuple[threading.Event, threading.Event, threading.Thread]:
    """A thread that takes one turn: it sets the first event when it has it, and keeps it until the second is set."""
    has, done = threading.Event(), threading.Event()

    def run() -> None:
        with ticket.held():
            has.set()
            done.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return has, done, thread


def arrived(share: EngineShare) -> RunTicket:
    ticket = share.ticket()
    ticket.activate()
    return ticket


def spent(clock: Clock, ticket: RunTicket, seconds: float) -> None:
    """A turn of `ticket` that takes so long."""
    with ticket.held():
        clock.now += seconds


def test_no_more_run_at_once_than_there_are_places() -> None:
    fair_scheduler = FairScheduler(2)
    tickets = [arrived(fair_scheduler.share()) for _ in range(3)]
    (has_a, done_a, a), (has_b, done_b, b) = begun(tickets[0]), begun(tickets[1])
    assert has_a.wait(PATIENCE_SECONDS)
    assert has_b.wait(PATIENCE_SECONDS)
    has_c, done_c, c = begun(tickets[2])
    assert not has_c.wait(0.05)
    done_a.set()
    assert has_c.wait(PATIENCE_SECONDS)
    done_b.set()
    done_c.set()
    for thread in (a, b, c):
        thread.join(PATIENCE_SECONDS)


def simulated(weights: dict[str, float], seconds: dict[str, float], turns_taken: int) -> dict[str, float]:
    """The seconds that each gets of one place, where all always want to run, for so long each time."""
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    tickets = {name: arrived(fair_scheduler.share(weight)) for name, weight in weights.items()}
    taken = dict.fromkeys(weights, 0.0)
    for _ in range(turns_taken):
        # All of them are there: the one that may begin is the one that nobody goes before.
        name = next(name for name, ticket in tickets.items() if fair_scheduler._may_begin(ticket))
        spent(clock, tickets[name], seconds[name])
        taken[name] += seconds[name]
    return taken


def test_time_is_shared_by_weight_whatever_a_run_takes() -> None:
    taken = simulated({"slow": 1, "quick": 1, "heavy": 2}, {"slow": 0.03, "quick": 0.005, "heavy": 0.01}, 2000)
    total = sum(taken.values())
    assert abs(taken["slow"] / total - 0.25) < 0.01
    assert abs(taken["quick"] / total - 0.25) < 0.01
    assert abs(taken["heavy"] / total - 0.5) < 0.01


def test_one_that_comes_back_is_level_with_the_others_and_goes_next() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    busy, rare = arrived(fair_scheduler.share()), fair_scheduler.share()
    for _ in range(100):
        spent(clock, busy, 1)
    ticket = arrived(rare)
    assert not fair_scheduler._may_begin(busy), "what it has had, the other has not"
    spent(clock, ticket, 5)
    assert fair_scheduler._may_begin(busy), "a long rest is no credit"


def test_one_that_has_nothing_to_do_is_not_waited_for() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock)
    busy, other = arrived(fair_scheduler.share()), arrived(fair_scheduler.share())
    spent(clock, busy, 1)
    assert not fair_scheduler._may_begin(busy)
    other.deactivate()
    assert fair_scheduler._may_begin(busy)


def test_a_run_that_hangs_gives_up_its_place() -> None:
    clock = Clock()
    fair_scheduler = FairScheduler(1, clock, patience_seconds=30)
    hanging, other = arrived(fair_scheduler.share()), arrived(fair_scheduler.share())
    has, done, thread = begun(hanging)
    assert has.wait(PATIENCE_SECONDS)
    has_other, done_other, second = begun(other)
    assert not has_other.wait(0.05)
    clock.now += 31
    assert has_other.wait(PATIENCE_SECONDS)
    done_other.set()
    done.set()
    for each in (thread, second):
        each.join(PATIENCE_SECONDS)


def test_threads_that_compete_never_exceed_the_places_and_all_get_on() -> None:
    fair_scheduler = FairScheduler(2)
    running, most, lock = 0, 0, threading.Lock()
    counts: dict[int, int] = dict.fromkeys(range(4), 0)

    def work(number: int, share: EngineShare) -> Callable[[], None]:
        def run() -> None:
            nonlocal running, most
            ticket = arrived(share)
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
