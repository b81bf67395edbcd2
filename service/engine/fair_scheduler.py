"""Fair sharing of the processors among engines. Pure bookkeeping and one lock.

At most `places` model runs proceed at once, over all engines. Each engine's share is charged the seconds of its runs
divided by its weight, and the next run belongs to the share with the lowest charge (start-time fair queueing, Goyal et
al. 1996). A busy engine therefore has all processors while it is alone, and its share as soon as it is not. An engine
that returns after an idle time starts level with the others and waits for no more than the current run.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 0.25
"""Interval at which a waiting lane checks for hung runs."""


class FairScheduler:
    """The places shared by all engines."""

    def __init__(
        self, places: int, clock: Callable[[], float] = time.monotonic, patience_seconds: float = math.inf
    ) -> None:
        """A run longer than `patience_seconds`, by `clock`, counts as hung and frees its place."""
        self._places = places
        self._clock = clock
        self._patience = patience_seconds
        self._check_seconds = None if math.isinf(patience_seconds) else CHECK_SECONDS
        self._changed = threading.Condition()
        self._tickets: list[RunTicket] = []
        """Tickets of the active lanes: they run, wait to run, or are between two runs."""
        self._charged = 0.0
        """Charge of the share with the latest run: the level at which idle shares return."""

    def share(self, weight: float = 1.0) -> "EngineShare":
        """Make the share of one engine; twice the `weight` gets twice the time."""
        return EngineShare(self, weight)

    # --- called by tickets

    def _activate(self, ticket: "RunTicket") -> None:
        with self._changed:
            if all(other.share is not ticket.share for other in self._tickets):
                ticket.share.charged = max(ticket.share.charged, self._charged)
            self._tickets.append(ticket)

    def _deactivate(self, ticket: "RunTicket") -> None:
        with self._changed:
            self._tickets.remove(ticket)
            self._changed.notify_all()

    def _begin(self, ticket: "RunTicket") -> None:
        with self._changed:
            while not self._may_begin(ticket):
                self._changed.wait(self._check_seconds)
            self._charged = max(self._charged, ticket.share.charged)
            ticket.began = self._clock()

    def _end(self, ticket: "RunTicket") -> None:
        with self._changed:
            if ticket.began is not None:
                ticket.share.charged += (self._clock() - ticket.began) / ticket.share.weight
            ticket.began = None
            if len(self._tickets) > 1:
                self._changed.notify_all()

    def _may_begin(self, ticket: "RunTicket") -> bool:
        if len(self._tickets) <= self._places:
            return True
        free = self._places
        for other in self._tickets:
            if other.began is not None:
                free -= self._clock() - other.began < self._patience
            elif other.share.charged < ticket.share.charged:
                # A place is kept for a lower charge even between two runs, or weights would have no effect.
                free -= 1
        return free > 0


class EngineShare:
    """Charge and weight of one engine."""

    def __init__(self, fair_scheduler: FairScheduler, weight: float) -> None:
        self.fair_scheduler = fair_scheduler
        self.weight = weight
        self.charged = 0.0
        """Seconds over weight; guarded by the lock of `fair_scheduler`."""

    def ticket(self) -> "RunTicket":
        """Make the ticket of one lane of the engine."""
        return RunTicket(self.fair_scheduler, self)


class RunTicket:
    """One lane's part in the sharing: active while the lane has work, held for the length of each run."""

    def __init__(self, fair_scheduler: FairScheduler, share: EngineShare) -> None:
        self._fair_scheduler = fair_scheduler
        self.share = share
        self.began: float | None = None
        """Start of the current run, if any; guarded by the lock of `fair_scheduler`."""

    def activate(self) -> None:
        """Compete for places: other lanes now wait for this one if its charge is lower."""
        self._fair_scheduler._activate(self)

    def deactivate(self) -> None:
        """Stop competing for places."""
        self._fair_scheduler._deactivate(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for a place, and occupy it."""
        self._fair_scheduler._begin(self)
        try:
            yield
        finally:
            self._fair_scheduler._end(self)
