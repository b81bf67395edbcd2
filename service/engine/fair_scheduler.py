"""Whose turn it is to compute, where several engines share the processors. Pure bookkeeping and one lock.

At most `places` runs of a model go on at once, whoever's they are. Each share (an engine) is charged the seconds of its
runs, divided by its weight, and the next turn is for the one that has been charged least (start-time fair queueing,
Goyal et al. 1996). So a busy engine takes all there is while it is alone, and its share as soon as it is not; one that
comes back after a rest starts level with the others, and waits for no more than the run that is going on.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_SECONDS = 0.25
"""How often one who waits looks whether a run has taken too long to be waited for."""


class FairScheduler:
    """The places that all share."""

    def __init__(
        self, places: int, clock: Callable[[], float] = time.monotonic, patience_seconds: float = math.inf
    ) -> None:
        """A run that has taken `patience_seconds`, by `clock`, hangs: its place is given to others."""
        self._places = places
        self._clock = clock
        self._patience = patience_seconds
        self._look = None if math.isinf(patience_seconds) else LOOK_SECONDS
        self._changed = threading.Condition()
        self._tickets: list[RunTicket] = []
        """Of all lanes that have something to do: they run, wait for their turn, or are about to."""
        self._charged = 0.0
        """What the share of the latest turn had been charged: where those start who come back."""

    def share(self, weight: float = 1.0) -> "EngineShare":
        """For one engine; of twice the `weight` it gets twice the time."""
        return EngineShare(self, weight)

    # --- for seats

    def _arrive(self, ticket: "RunTicket") -> None:
        with self._changed:
            if all(other.share is not ticket.share for other in self._tickets):
                ticket.share.charged = max(ticket.share.charged, self._charged)
            self._tickets.append(ticket)

    def _leave(self, ticket: "RunTicket") -> None:
        with self._changed:
            self._tickets.remove(ticket)
            self._changed.notify_all()

    def _begin(self, ticket: "RunTicket") -> None:
        with self._changed:
            while not self._may_begin(ticket):
                self._changed.wait(self._look)
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
                # It is to go first even where it is not back yet, or weights would count for nothing.
                free -= 1
        return free > 0


class EngineShare:
    """What one engine has been charged."""

    def __init__(self, fair_scheduler: FairScheduler, weight: float) -> None:
        self.fair_scheduler = fair_scheduler
        self.weight = weight
        self.charged = 0.0
        """Seconds over weight; under the lock of `fair_scheduler`."""

    def ticket(self) -> "RunTicket":
        """For one lane of the engine."""
        return RunTicket(self.fair_scheduler, self)


class RunTicket:
    """One lane's part: it arrives when it has something to do, takes a turn for each run, and leaves."""

    def __init__(self, fair_scheduler: FairScheduler, share: EngineShare) -> None:
        self._fair_scheduler = fair_scheduler
        self.share = share
        self.began: float | None = None
        """When its run began, if one goes on; under the lock of `fair_scheduler`."""

    def arrive(self) -> None:
        """There is something to do: from now on others wait for this lane where it is its turn."""
        self._fair_scheduler._arrive(self)

    def leave(self) -> None:
        """There is nothing to do."""
        self._fair_scheduler._leave(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and have it."""
        self._fair_scheduler._begin(self)
        try:
            yield
        finally:
            self._fair_scheduler._end(self)
