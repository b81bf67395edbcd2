"""When a client makes a call again that failed. Any call may be made twice: none changes anything."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dragoman.client.errors import ClientError, OverloadedError, UnavailableError

MAX_WAIT_SECONDS = 1.0
"""Waits double up to here; each is then shortened at random by up to a half, so that callers do not come in step."""

EARNED = 0.1
"""What a call that succeeds gives to the budget."""


@dataclass(frozen=True)
class Retries:
    """How a client goes on after a failure that may pass."""

    seconds: float = 30.0
    """How long after its first failure a call is still made again, within its own time: as long as a restart takes."""
    first_wait_seconds: float = 0.1
    """How long to wait before the first repetition, where the server does not say."""
    overload_budget: int = 10
    """How many calls that a full server refused may be made again without any that succeeds in between; ten that
    succeed allow one more. So a server that is overloaded gets little more work for it."""


class RetryBudget:
    """What one client may still repeat at overloaded servers; any thread may use it."""

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._left = float(most)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """A call succeeded."""
        with self._lock:
            self._left = min(self._most, self._left + EARNED)

    def spend(self) -> bool:
        """Whether one more may be made again."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Attempts:
    """One call of a client, until it succeeds or is given up."""

    def __init__(
        self,
        retries: Retries | None,
        budget: RetryBudget,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`seconds` is the time that the call has, all attempts together; without `retries` there is but one."""
        self._retries = retries
        self._budget = budget
        self._clock = clock
        self._chance = chance
        self._deadline = clock() + seconds
        self._until: float | None = None
        self._wait = retries.first_wait_seconds if retries else 0.0

    @property
    def seconds_left(self) -> float:
        """What the next attempt may take."""
        return max(0.0, self._deadline - self._clock())

    def wait_after(self, error: ClientError) -> float | None:
        """How many seconds after `error` to make the call again; None to give it up."""
        if self._retries is None or not may_pass(error):
            return None
        now = self._clock()
        if self._until is None:
            self._until = min(self._deadline, now + self._retries.seconds)
        wait = (error.retry_after_seconds or 0.0) + self._wait * (1 - self._chance() / 2)
        self._wait = min(MAX_WAIT_SECONDS, 2 * self._wait)
        if now + wait >= self._until:
            return None
        if isinstance(error, OverloadedError) and not self._budget.spend():
            return None
        return wait


def may_pass(error: ClientError) -> bool:
    """Whether the same call may succeed later, or elsewhere. A message that is too large never will."""
    if isinstance(error, OverloadedError):
        return error.retry_after_seconds is not None
    return isinstance(error, UnavailableError)
