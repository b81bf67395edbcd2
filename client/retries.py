"""When a client repeats a call that failed. Any call may be repeated: none changes anything on the server."""

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from dragoman.client.errors import ClientError, OverloadedError, UnavailableError

MAX_DELAY_SECONDS = 1.0
"""Upper limit of the doubling delay. Each delay is shortened at random by up to a half, to spread the clients."""

EARNED_PER_SUCCESS = 0.1
"""Retries that a successful call adds to the budget."""

T = TypeVar("T")

DelayAfter = Callable[[ClientError], float | None]
"""Seconds to wait after a failure before the next attempt; None: no further attempt."""


@dataclass(frozen=True)
class Retries:
    """How a client retries failures that may pass."""

    seconds: float = 30.0
    """How long a call is retried after its first failure, within its own time limit. The default covers a restart."""
    first_wait_seconds: float = 0.1
    """Delay before the first retry, added to the delay that the server asks for."""
    overload_budget: int = 10
    """Retries after refusals by a full server, shared by all calls of the client. Ten successful calls restore one, so
    an overloaded server receives little extra load."""


class RetryBudget:
    """The retries that one client has left for overloaded servers. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size = float(size)
        self._left = float(size)
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count a successful call."""
        with self._lock:
            self._left = min(self._size, self._left + EARNED_PER_SUCCESS)

    def spend(self) -> bool:
        """Take one retry. False if none is left."""
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True


class Attempts:
    """The attempts of one call."""

    def __init__(
        self,
        retries: Retries | None,
        budget: RetryBudget,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`seconds` limits the time of all attempts together; without `retries` there is one attempt."""
        self._retries = retries
        self._budget = budget
        self._clock = clock
        self._chance = chance
        self._deadline = clock() + seconds
        self._until: float | None = None
        self._delay = retries.first_wait_seconds if retries else 0.0

    @property
    def seconds_left(self) -> float:
        """Time limit of the next attempt."""
        return max(0.0, self._deadline - self._clock())

    def delay_after(self, error: ClientError) -> float | None:
        """Seconds from `error` to the next attempt; None: no further attempt."""
        if self._retries is None or not may_pass(error):
            return None
        now = self._clock()
        if self._until is None:
            self._until = min(self._deadline, now + self._retries.seconds)
        delay = (error.retry_after_seconds or 0.0) + self._delay * (1 - self._chance() / 2)
        self._delay = min(MAX_DELAY_SECONDS, 2 * self._delay)
        if now + delay >= self._until:
            return None
        if isinstance(error, OverloadedError) and not self._budget.spend():
            return None
        return delay


def may_pass(error: ClientError) -> bool:
    """Whether the same call may succeed later or elsewhere. A message that is too large never will."""
    if isinstance(error, OverloadedError):
        return error.retry_after_seconds is not None
    return isinstance(error, UnavailableError)


def call_with_retries(attempt: Callable[[], T], delay_after: DelayAfter) -> T:
    """The result of the first attempt that succeeds. Raises the ClientError of the last attempt."""
    while True:
        try:
            return attempt()
        except ClientError as error:
            delay = delay_after(error)
            if delay is None:
                raise
        time.sleep(delay)


async def await_with_retries(attempt: Callable[[], Awaitable[T]], delay_after: DelayAfter) -> T:
    """`call_with_retries` for attempts that are awaited."""
    while True:
        try:
            return await attempt()
        except ClientError as error:
            delay = delay_after(error)
            if delay is None:
                raise
        await asyncio.sleep(delay)
