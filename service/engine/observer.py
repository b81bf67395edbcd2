"""Events of the engine, for metrics."""

from typing import Literal, Protocol

from dragoman.service.engine.sequence import Sequence

Run = Literal["embed", "insert", "step"]
"""A method of the runner that computes."""

Cause = Literal["error", "memory"]
"""Why a run failed: it raised an error, or memory ran out."""


class Observer(Protocol):
    """Receives events on the thread of a lane; each method must be quick."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """`rows` sources were encoded: `tokens` real tokens, and `padding` more."""

    def stepped(self, rows: int, seconds: float) -> None:
        """A decoder step gave one token to each of `rows`."""

    def failed(self, run: Run, cause: Cause) -> None:
        """A run failed."""

    def wasted(self, tokens: int) -> None:
        """Output tokens were discarded because memory ran out for their batch; they are decoded again."""

    def finished(self, sequence: Sequence) -> None:
        """A sequence left the engine; its `finish` says how."""
