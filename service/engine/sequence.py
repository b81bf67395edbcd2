"""One text on its way through the engine."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any


class Finish(Enum):
    """Reason for which a sequence ended."""

    END = "end"
    """The model chose an end token, or the states of an embedding are complete."""
    LENGTH = "length"
    """The output reached its limit of tokens."""
    REPETITION = "repetition"
    """The output had become a loop."""
    CANCELLED = "cancelled"
    """The caller cancelled."""
    DEADLINE = "deadline"
    """The deadline passed, or would have: then `error` is a DeadlineUnreachableError."""
    FAILED = "failed"
    """The runner raised, or the model gave a log-probability that is not finite."""


class QueueFullError(Exception):
    """The queue has no room for a request now."""

    def __init__(self, queued: int, limit: int, unit: str) -> None:
        super().__init__(f"the queue holds {queued} of {limit} {unit}")


class StoppedError(Exception):
    """The engine has stopped and takes no more work."""


@dataclass(frozen=True)
class Times:
    """When a sequence reached each stage, in seconds on the engine's clock; 0 for stages not reached."""

    submitted: float = 0.0
    admitted: float = 0.0
    encoded: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0


@dataclass(eq=False)
class Sequence:
    """One text as tokens: the request, its progress and its result."""

    source: tuple[int, ...]
    """Token ids with their end token; at least one."""
    prompt: tuple[int, ...]
    """Tokens fed to the decoder before its first free choice: at least one, or none if max_output is 0."""
    max_output: int
    """Maximum number of output tokens, end token included; 0 requests the encoder's states instead."""
    done: Callable[["Sequence"], None]
    """Called once `finish` is set, on the thread of a lane; must neither block nor raise."""
    deadline: float | None = None
    """In seconds on the engine's clock."""

    scored: bool = True
    """Whether to compute log-probabilities; they cost a pass over the vocabulary at each step."""

    position: int = 0
    """Number of tokens fed to the decoder so far."""
    tokens: list[int] = field(default_factory=list)
    """Output so far, the end token included."""
    log_prob: float = 0.0
    """Sum of the natural log-probabilities of the first `chosen` of `tokens`; meaningless unless `scored`."""
    chosen: int = 0
    """Number of `tokens` that the model chose: all but an end token forced at the limit."""
    states: Any = None
    """The encoder's states, float32 [source, model], if max_output is 0."""
    finish: Finish | None = None
    error: Exception | None = None
    """Set if `finish` is FAILED, or DEADLINE by a forecast."""
    times: Times = Times()
    promised: bool = False
    """Whether it was queued because a forecast said that its answer meets the deadline."""
    cancelled: bool = False
    on_cancel: Callable[["Sequence"], object] | None = None
    """Called by `cancel`, on its thread, so that the queue need not poll `cancelled`."""

    @property
    def positions(self) -> int:
        """Maximum number of decoder positions: the prompt before the last token, and the longest output."""
        return max(0, len(self.prompt) - 1) + self.max_output

    @property
    def cost(self) -> int:
        """Maximum number of tokens in the caches, of source and output together."""
        return len(self.source) + self.positions

    @property
    def next_fed(self) -> int:
        """Token fed to the decoder next: from the prompt while it lasts, whatever the model chose."""
        before = self.position - len(self.prompt)
        return self.prompt[self.position] if before < 0 else self.tokens[before]

    @property
    def prompting(self) -> bool:
        """Whether the prompt overrules the model's next choice."""
        return self.position + 1 < len(self.prompt)

    def restart(self) -> None:
        """Discard the output and its times, to wait in the queue once more."""
        self.position = 0
        self.tokens.clear()
        self.log_prob = 0.0
        self.chosen = 0
        self.times = Times(submitted=self.times.submitted)

    def cancel(self) -> None:
        """Drop the sequence before the next step; any thread may call it."""
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel(self)

    def end(self, finish: Finish, now: float, error: Exception | None = None) -> None:
        """Record the end."""
        self.finish = finish
        self.error = error
        self.times = replace(self.times, finished=now)

    def expired_reason(self, now: float) -> Finish | None:
        """DEADLINE or CANCELLED if no caller waits for the sequence any more, else None."""
        # The deadline first: a caller cancels when it passes.
        if self.deadline is not None and now >= self.deadline:
            return Finish.DEADLINE
        if self.cancelled:
            return Finish.CANCELLED
        return None
