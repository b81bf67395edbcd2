"""When what joins the queue now would be answered, by what the engine has done of late. Pure bookkeeping."""

import math

MEMORY_SECONDS = 3.0
"""How soon a change of the engine's pace is believed: what is so old counts for a third."""

WEIGHT = 0.05
"""Of the latest sequence in what is known of those before."""

DEVIATIONS = 2
"""Allowed for: where all who wait are at the edge of their deadlines, a mean would be late for half of them."""

SAFETY_FACTOR = 1.2
"""Of the wait, for the same reason."""

LATE_SHARE = 0.005
"""Of what was promised in time, so much may come late: with more the forecast grows, with less it shrinks."""

CORRECTION = 0.02
"""By how much one that is late makes the forecast grow, as a part of what it was at first."""

MAX_CORRECTION = 1.6
"""So many times what it was at first. Up to there the rows stay full; with much more they would wait for work."""


class Pace:
    """How fast the queue drains while there is more in it than rows are free. Not thread-safe."""

    def __init__(self) -> None:
        self._tokens = 0.0
        """In whose place others were taken from the queue, those of long ago counted less."""
        self._seconds = 0.0
        """In which they were taken."""
        self._since: float | None = None
        """When sequences were last admitted and others left waiting; None if none were left."""
        self._busy, self._calm = _Run(), _Run()
        """What rows take while others wait, and while none does: fewer run together then, and each is sooner done."""
        self._correction = 1.0

    def drained(self, tokens: int, backlog: bool, now: float) -> None:
        """Sequences were admitted in the place of others, which occupied `tokens`; `backlog` if not all that waited."""
        if self._since is not None:
            seconds = now - self._since
            faded = math.exp(-seconds / MEMORY_SECONDS)
            self._tokens = self._tokens * faded + tokens
            self._seconds = self._seconds * faded + seconds
        self._since = now if backlog else None

    def decoded(self, source_tokens: int, seconds: float) -> None:
        """A row ended well, `seconds` after its admission."""
        (self._calm if self._since is None else self._busy).note(seconds / source_tokens)

    def promise(self, kept: bool) -> None:
        """A sequence that was taken as one that would come in time did so, or did not."""
        change = -CORRECTION * LATE_SHARE if kept else CORRECTION
        self._correction = min(MAX_CORRECTION, max(1.0, self._correction + change))

    def likely_run(self, source_tokens: int) -> float:
        """Seconds that a row with so many tokens of source most likely takes from its admission to its end."""
        return source_tokens * (self._run.mean or 0.0)

    def forecast(self, tokens_before: int, source_tokens: float) -> float | None:
        """Seconds until the answer to a sequence with so many tokens before it, and hardly ever more.

        It has `source_tokens` itself; 0 where it is not decoded. None before the queue has ever had a backlog.
        """
        if not self._tokens or not self._seconds:
            return None
        wait = SAFETY_FACTOR * tokens_before * self._seconds / self._tokens
        return self._correction * (wait + source_tokens * self._run.most)

    @property
    def _run(self) -> "_Run":
        """What a row takes that starts while others wait, as far as it is known."""
        return self._calm if self._busy.mean is None else self._busy


class _Run:
    """Seconds from a row's admission to its end, for each token of its source."""

    def __init__(self) -> None:
        self.mean: float | None = None
        self._deviation = 0.0
        """By how much most differ from that."""

    def note(self, seconds: float) -> None:
        """A row has ended."""
        # As TCP knows how long to wait for an answer (RFC 6298).
        if self.mean is None:
            self.mean = seconds
        self._deviation += WEIGHT * (abs(seconds - self.mean) - self._deviation)
        self.mean += WEIGHT * (seconds - self.mean)

    @property
    def most(self) -> float:
        """What hardly any row exceeds; 0 before the first."""
        return (self.mean or 0.0) + DEVIATIONS * self._deviation
