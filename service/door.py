"""Calls that would come too late are refused before they are read, for as little as can be."""

import time
from collections.abc import Callable

from dragoman.service.errors import HopelessError
from dragoman.service.status import CallStatus, status_of

REMEMBERED_SECONDS = 0.01
"""How long what is hopeless for one call is so for all that have no more time: a queue changes little in it."""

Look = Callable[[float | None], HopelessError | None]
"""What a call that has so many seconds left would be refused with."""


class Door:
    """What calls of one method are told before they are read."""

    def __init__(self, look: Look, clock: Callable[[], float] = time.monotonic) -> None:
        self._look = look
        self._clock = clock
        self._refusal: CallStatus | None = None
        self._seconds_left = 0.0
        """Of the call that was refused last."""
        self._until = 0.0
        """By the clock: so long the same is told to all that have no more."""

    def refusal(self, seconds_left: float | None) -> CallStatus | None:
        """What a call that has so long left is refused with, if it is."""
        if seconds_left is None:
            return None
        now = self._clock()
        if now < self._until and seconds_left <= self._seconds_left:
            return self._refusal
        hopeless = self._look(seconds_left)
        if hopeless is None:
            return None
        self._refusal, self._seconds_left, self._until = status_of(hopeless), seconds_left, now + REMEMBERED_SECONDS
        return self._refusal
