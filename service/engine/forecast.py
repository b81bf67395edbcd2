"""Forecasts the time to an answer from the engine's recent throughput. Pure bookkeeping."""

import math
from dataclasses import dataclass, field

MEMORY_SECONDS = 3.0
"""Time constant of the pace: evidence of this age counts for 1/e."""

FRESH_SECONDS = 10.0
"""Without a backlog for this long, the pace is unknown."""

EVIDENCE_SHARE = 0.25
"""Share of the rows' tokens that must be freed under a backlog before the rate is known."""

MARGIN_SHARE = 0.05
"""Share of the time left by which a forecast must miss a deadline before a sequence is refused."""

MIN_MARGIN_SECONDS = 0.1
"""Lower bound of that margin."""

WEIGHT = 0.05
"""Weight of the latest row in the average run time."""

DEVIATIONS = 2
"""Mean deviations added to a run time: the mean alone would be too short for half of the rows."""

SAFETY_FACTOR = 1.2
"""Factor on the wait in the queue, for the same reason."""

LATE_SHARE = 0.005
"""Tolerated share of late answers among promised ones: the forecast grows above it and shrinks below it."""

CORRECTION = 0.02
"""Growth of the correction for each late answer."""

MAX_CORRECTION = 1.6
"""Upper bound of the correction. Up to it the rows stay full; far above it they would run empty."""


def margin_seconds(seconds_left: float) -> float:
    """Seconds by which a forecast must miss a deadline that is `seconds_left` away before a sequence is refused."""
    return max(MIN_MARGIN_SECONDS, MARGIN_SHARE * seconds_left)


class _RunTime:
    """Seconds from a row's admission to its end, per token of its source."""

    def __init__(self) -> None:
        self.mean: float | None = None
        self._deviation = 0.0

    def note(self, seconds: float) -> None:
        """Record a row. Exponential averages as of round-trip times in RFC 6298."""
        if self.mean is None:
            self.mean = seconds
        self._deviation += WEIGHT * (abs(seconds - self.mean) - self._deviation)
        self.mean += WEIGHT * (seconds - self.mean)

    @property
    def upper(self) -> float:
        """Bound that hardly any row exceeds; 0 before the first."""
        return (self.mean or 0.0) + DEVIATIONS * self._deviation


@dataclass
class _Evidence:
    """Measurements under a backlog; they say nothing after a time without one."""

    tokens: float = 0.0
    """Freed tokens, faded with MEMORY_SECONDS."""
    seconds: float = 0.0
    """The time in which they were freed, faded alike."""
    missing: float = math.inf
    """Tokens still to be freed before the rate is known."""
    run: _RunTime = field(default_factory=_RunTime)
    correction: float = 1.0
    """Factor on the forecast, from kept and broken promises."""


class Pace:
    """Rate at which a queue with a backlog drains, and the run time of rows. Not thread-safe.

    The rate is measured between admissions while sequences wait. A measurement starts with the first admission into
    freed rows: the time before it fills free rows and says nothing about how fast rows become free. It ends when an
    admission takes the last waiting sequence, or, without a result, when the queue becomes empty in any other way.
    """

    def __init__(self) -> None:
        self._evidence = _Evidence()
        self._since: float | None = None
        """Time of the latest admission, while a measurement runs."""
        self._backlog = False
        """Whether the latest admission left sequences waiting."""
        self._calm = _RunTime()
        """Run time of rows without a backlog: fewer run together, so each ends sooner."""
        self._calm_noted = -math.inf
        self._measured = -math.inf
        """Time of the latest admission that counted."""

    def drained(self, tokens: int, occupied: int, backlog: bool, now: float) -> None:
        """Record an admission: `tokens` were freed since the previous one, the rows now hold `occupied` tokens.

        `backlog` says whether sequences still wait.
        """
        if self._since is not None:
            seconds = now - self._since
            faded = math.exp(-seconds / MEMORY_SECONDS)
            evidence = self._evidence
            evidence.tokens = evidence.tokens * faded + tokens
            evidence.seconds = evidence.seconds * faded + seconds
            evidence.missing = min(evidence.missing, EVIDENCE_SHARE * occupied) - tokens
            self._measured = now
        elif self._stale(now):
            # Rows that ended since the backlog began are fresh, and the rest is not.
            self._evidence = _Evidence(run=self._evidence.run if self._backlog else _RunTime())
        measures = backlog and (self._since is not None or tokens > 0)
        self._since = now if measures else None
        self._backlog = backlog

    def emptied(self) -> None:
        """Record that the queue became empty without an admission: the measurement ends without a result."""
        self._since = None
        self._backlog = False

    def decoded(self, source_tokens: int, seconds: float, now: float) -> None:
        """Record a row that ended well, `seconds` after its admission."""
        if self._backlog:
            self._evidence.run.note(seconds / source_tokens)
            return
        if now - self._calm_noted > FRESH_SECONDS:
            self._calm = _RunTime()
        self._calm_noted = now
        self._calm.note(seconds / source_tokens)

    def promise(self, kept: bool) -> None:
        """Record whether a sequence ended in time that was admitted to the queue by a forecast."""
        change = -CORRECTION * LATE_SHARE if kept else CORRECTION
        self._evidence.correction = min(MAX_CORRECTION, max(1.0, self._evidence.correction + change))

    def likely_run(self, source_tokens: int) -> float:
        """Seconds that a row with `source_tokens` usually takes from its admission to its end."""
        return source_tokens * (self._run.mean or 0.0)

    def tokens_per_second(self, now: float) -> float | None:
        """Tokens that the queue drains a second; None without fresh evidence."""
        evidence = self._evidence
        if evidence.missing > 0 or not evidence.tokens or not evidence.seconds or self._stale(now):
            return None
        return evidence.tokens / evidence.seconds

    def forecast(self, tokens_before: int, source_tokens: float, now: float) -> float | None:
        """Seconds that the answer to a sequence behind `tokens_before` hardly ever exceeds.

        `source_tokens` is the length of its own source, 0 if it is not decoded. None without fresh evidence.
        """
        rate = self.tokens_per_second(now)
        if rate is None:
            return None
        wait = SAFETY_FACTOR * tokens_before / rate
        return self._evidence.correction * (wait + source_tokens * self._run.upper)

    @property
    def _run(self) -> _RunTime:
        """Run time of rows that start under a backlog, as far as it is known."""
        return self._calm if self._evidence.run.mean is None else self._evidence.run

    def _stale(self, now: float) -> bool:
        return self._since is None and now - self._measured > FRESH_SECONDS
