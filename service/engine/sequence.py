"""One text on its way through the engine."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class Finish(Enum):
    """How a sequence ended."""

    END = "end"
    """The model chose an end token, or the states of an embedding are there."""
    LENGTH = "length"
    """The limit of output tokens was reached."""
    REPETITION = "repetition"
    """The output had become a loop."""
    CANCELLED = "cancelled"
    """The caller went away."""
    DEADLINE = "deadline"
    """The caller's deadline passed, or would have passed: then `error` is a DeadlineUnreachableError."""
    FAILED = "failed"
    """The step raised, or the model gave a log-probability that is not finite."""


class QueueFullError(Exception):
    """The queue cannot take a request; it may fit later."""

    def __init__(self, queued: int, limit: int, unit: str) -> None:
        super().__init__(f"the queue holds {queued} of {limit} {unit}")


class StoppedError(Exception):
    """The engine takes no more work."""


@dataclass(frozen=True)
class Times:
    """When a sequence reached each stage, by the engine's clock, in seconds; 0 where it did not."""

    submitted: float = 0.0
    admitted: float = 0.0
    encoded: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(eq=False)
class Sequence:
    """One text as tokens: what is asked of the engine, and what became of it."""

    source: tuple[int, ...]
    """Token ids with their end token; at least one."""
    prompt: tuple[int, ...]
    """What the decoder is fed before its first free choice, at least one id; none where max_output is 0."""
    max_output: int
    """Most output tokens, the end token counted; 0 asks for the encoder's states and no output."""
    done: Callable[["Sequence"], None]
    """Called once, on the thread of a lane, when `finish` is set; must not block or raise."""
    deadline: float | None = None
    """By the engine's clock, in seconds."""

    scored: bool = True
    """Whether log-probabilities are wanted; they cost a pass over the vocabulary at each step."""

    position: int = 0
    """How many tokens the decoder has been fed."""
    tokens: list[int] = field(default_factory=list)
    """Output so far, the end token included."""
    log_prob: float = 0.0
    """Sum of the natural log-probabilities of the first `chosen` of `tokens`; means nothing unless `scored`."""
    chosen: int = 0
    """How many of `tokens` the model chose: all but an end token that was forced at the limit."""
    states: Any = None
    """The encoder's states, float32 [source, model], where max_output is 0."""
    finish: Finish | None = None
    error: Exception | None = None
    """What went wrong, where finish is FAILED, or was foreseen."""
    times: Times = Times()
    promised: bool = False
    """Whether it was taken because it would be answered before its deadline."""
    cancelled: bool = False
    tell_cancelled: Callable[["Sequence"], object] | None = None
    """Called by `cancel`, on its thread: whoever holds the sequence would otherwise have to ask again and again."""

    @property
    def positions(self) -> int:
        """Tokens that it may come to occupy beside its source: its longest output with what is fed before."""
        return max(0, len(self.prompt) - 1) + self.max_output

    @property
    def cost(self) -> int:
        """Tokens that it may come to occupy in all."""
        return len(self.source) + self.positions

    @property
    def next_fed(self) -> int:
        """The token that the decoder is fed next: while there is one, the prompt's, whatever was chosen."""
        before = self.position - len(self.prompt)
        return self.prompt[self.position] if before < 0 else self.tokens[before]

    @property
    def prompting(self) -> bool:
        """Whether what is chosen next is overruled by the prompt."""
        return self.position + 1 < len(self.prompt)

    def restart(self) -> None:
        """Forget the output and when it was made: the sequence waits in the queue once more."""
        self.position = 0
        self.tokens.clear()
        self.log_prob = 0.0
        self.chosen = 0
        self.times = Times(submitted=self.times.submitted)

    def cancel(self) -> None:
        """Ask for the sequence to be dropped before the next step; any thread may call it."""
        self.cancelled = True
        if self.tell_cancelled is not None:
            self.tell_cancelled(self)

    def end(self, finish: Finish, now: float, error: Exception | None = None) -> None:
        """Say how and when it ended."""
        self.finish = finish
        self.error = error
        self.times = replace(self.times, finished=now)

    def dead(self, now: float) -> Finish | None:
        """Why nobody waits for this sequence any more, if so."""
        # First, since a caller whose deadline has passed goes away as well.
        if self.deadline is not None and now >= self.deadline:
            return Finish.DEADLINE
        if self.cancelled:
            return Finish.CANCELLED
        return None
