"""Who may call: the holders of a token, each so often and so many times at once."""

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
    """What the holders of one token may do together; 0 sets no limit."""

    calls_per_second: int = 0
    """Also how many calls may come at once after a quiet second."""
    calls: int = 0
    """That run at the same time."""


class Authenticator:
    """Tells callers apart by their tokens. Belongs to one event loop."""

    def __init__(
        self,
        tokens: Callable[[], tuple[Digest, ...]] | None,
        limits: CallerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` gives those that hold now; where it is None anybody may call. `clock` counts seconds."""
        self._tokens = tokens
        self._limits = limits
        self._clock = clock
        self._accounts: dict[Digest, CallerUsage] = {}

    @property
    def closed(self) -> bool:
        """Whether a token is needed."""
        return self._tokens is not None

    def account(self, metadata: Iterable[tuple[str, str | bytes]]) -> "CallerUsage | None":
        """Whom a call with `metadata` is charged to, if anybody. Raises UnauthenticatedError."""
        if self._tokens is None:
            return None
        token = _bearer(metadata)
        if token is None:
            raise UnauthenticatedError("a bearer token is needed")
        digest = find_token(token, self._tokens())
        if digest is None:
            raise UnauthenticatedError("the bearer token is not known")
        if digest not in self._accounts:
            self._accounts[digest] = CallerUsage(self._limits, self._clock)
        return self._accounts[digest]


class CallerUsage:
    """What the holders of one token have done of late."""

    def __init__(self, limits: CallerLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._running = 0
        self._saved = float(limits.calls_per_second)
        """Calls that may come at once."""
        self._looked = clock()

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call, from its beginning to its end. Raises RateLimitedError where it is one too many."""
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
        self._saved = min(float(rate), self._saved + (now - self._looked) * rate)
        self._looked = now
        if self._saved < 1:
            raise RateLimitedError(f"this token may make {rate} calls a second", (1 - self._saved) / rate)
        self._saved -= 1


def _bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    for key, value in metadata:
        if key == AUTHORIZATION and isinstance(value, str) and value[: len(BEARER)].lower() == BEARER:
            return value[len(BEARER) :].strip()
    return None
