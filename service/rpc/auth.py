"""Authenticates callers by bearer token, and limits the calls of each token."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dragoman.service.errors import RateLimitedError, UnauthenticatedError
from dragoman.service.rpc.tokens import Digest, find_token
from dragoman.v1.names import AUTHORIZATION

BEARER = "bearer "


@dataclass(frozen=True)
class CallerLimits:
    """Limits on all calls with the same token; 0 means unlimited."""

    calls_per_second: int = 0
    """Rate of new calls, and the burst allowed after a quiet second."""
    calls: int = 0
    """Calls running at the same time."""


class Authenticator:
    """Identifies callers by their tokens. Belongs to one event loop."""

    def __init__(
        self,
        tokens: Callable[[], tuple[Digest, ...]] | None,
        limits: CallerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` returns the digests valid now; None admits every caller. `clock` counts seconds."""
        self._tokens = tokens
        self._limits = limits
        self._clock = clock
        self._usages: dict[Digest, CallerUsage] = {}

    @property
    def closed(self) -> bool:
        """Whether callers need a token."""
        return self._tokens is not None

    def authenticate(self, metadata: Iterable[tuple[str, str | bytes]]) -> "CallerUsage | None":
        """The usage to which a call with `metadata` counts; None if no token is needed. Raises UnauthenticatedError."""
        if self._tokens is None:
            return None
        token = _bearer(metadata)
        if token is None:
            raise UnauthenticatedError("a bearer token is required")
        digest = find_token(token, self._tokens())
        if digest is None:
            raise UnauthenticatedError("the bearer token is not known")
        if digest not in self._usages:
            self._usages[digest] = CallerUsage(self._limits, self._clock)
        return self._usages[digest]


class CallerUsage:
    """Running calls and recent rate of one token, as a token bucket."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._running = 0
        self._allowance = float(limits.calls_per_second)
        """Calls that may begin at once."""
        self._updated = clock()

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call, from beginning to end. Raises RateLimitedError if it exceeds a limit."""
        limits = self._limits
        if limits.calls and self._running >= limits.calls:
            raise RateLimitedError(f"this token has {self._running} of {limits.calls} calls running")
        if limits.calls_per_second:
            self._spend(limits.calls_per_second)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def _spend(self, rate: int) -> None:
        now = self._clock()
        self._allowance = min(float(rate), self._allowance + (now - self._updated) * rate)
        self._updated = now
        if self._allowance < 1:
            raise RateLimitedError(f"this token is limited to {rate} calls per second", (1 - self._allowance) / rate)
        self._allowance -= 1


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value[: len(BEARER)].lower() == BEARER:
            return value[len(BEARER) :].strip()
    return None
