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


class Turns:
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
        self._seats: list[Seat] = []
        """Of all lanes that have something to do: they run, wait for their turn, or are about to."""
        self._charged = 0.0
        """What the share of the latest turn had been charged: where those start who come back."""

    def share(self, weight: float = 1.0) -> "Share":
        """For one engine; of twice the `weight` it gets twice the time."""
        return Share(self, weight)

    # --- for seats

    def _arrive(self, seat: "Seat") -> None:
        with self._changed:
            if all(other.share is not seat.share for other in self._seats):
                seat.share.charged = max(seat.share.charged, self._charged)
            self._seats.append(seat)

    def _leave(self, seat: "Seat") -> None:
        with self._changed:
            self._seats.remove(seat)
            self._changed.notify_all()

    def _begin(self, seat: "Seat") -> None:
        with self._changed:
            while not self._may_begin(seat):
                self._changed.wait(self._look)
            self._charged = max(self._charged, seat.share.charged)
            seat.began = self._clock()

    def _end(self, seat: "Seat") -> None:
        with self._changed:
            if seat.began is not None:
                seat.share.charged += (self._clock() - seat.began) / seat.share.weight
            seat.began = None
            if len(self._seats) > 1:
                self._changed.notify_all()

    def _may_begin(self, seat: "Seat") -> bool:
        if len(self._seats) <= self._places:
            return True
        free = self._places
        for other in self._seats:
            if other.began is not None:
                free -= self._clock() - other.began < self._patience
            elif other.share.charged < seat.share.charged:
                # It is to go first even where it is not back yet, or weights would count for nothing.
                free -= 1
        return free > 0


class Share:
    """What one engine has been charged."""

    def __init__(self, turns: Turns, weight: float) -> None:
        self.turns = turns
        self.weight = weight
        self.charged = 0.0
        """Seconds over weight; under the lock of `turns`."""

    def seat(self) -> "Seat":
        """For one lane of the engine."""
        return Seat(self.turns, self)


class Seat:
    """One lane's part: it arrives when it has something to do, takes a turn for each run, and leaves."""

    def __init__(self, turns: Turns, share: Share) -> None:
        self._turns = turns
        self.share = share
        self.began: float | None = None
        """When its run began, if one goes on; under the lock of `turns`."""

    def arrive(self) -> None:
        """There is something to do: from now on others wait for this lane where it is its turn."""
        self._turns._arrive(self)

    def leave(self) -> None:
        """There is nothing to do."""
        self._turns._leave(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, and have it."""
        self._turns._begin(self)
        try:
            yield
        finally:
            self._turns._end(self)
