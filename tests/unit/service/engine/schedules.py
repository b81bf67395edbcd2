"""A scheduler with its queue, and helpers to drive it by hand."""

from dragoman.service.engine.queue import Queue
from dragoman.service.engine.scheduler import Admission, BatchLimits, Removal, Scheduler
from dragoman.service.engine.sequence import Sequence
from dragoman.service.engine.step import Step

START = 1
END = 2
OTHER_END = 7
WORD = 50
NO_SHARE = 10**9
ROOMY = BatchLimits(rows=8, tokens=1000, encode_tokens=1000, queue_sequences=100, queue_tokens=10_000)


def limits(
    rows: int = 8, tokens: int = 1000, encode_tokens: int = 1000, queue_sequences: int = 100, queue_tokens: int = 10_000
) -> BatchLimits:
    return BatchLimits(rows, tokens, encode_tokens, queue_sequences, queue_tokens)


def sequence(source: int = 3, max_output: int = 5, deadline: float | None = None) -> Sequence:
    return Sequence(tuple(range(10, 10 + source)), (START,), max_output, lambda _: None, deadline)


class Scheduled(Scheduler):
    """A scheduler with two end tokens, and its queue."""

    def __init__(self, limits: BatchLimits) -> None:
        self.queue = Queue(limits.queue_sequences, limits.queue_tokens)
        super().__init__(limits, (END, OTHER_END), self.queue)

    def admit(self, now: float, share: int = NO_SHARE) -> Admission:
        return super().admit(now, share)


def running(*sequences: Sequence, limits: BatchLimits = ROOMY) -> Scheduled:
    """Make a scheduler whose rows are `sequences`."""
    scheduler = Scheduled(limits)
    scheduler.queue.submit(sequences, 0.0)
    scheduler.admit(0.0)
    assert list(scheduler.rows) == list(sequences)
    return scheduler


def steps(*tokens: int) -> list[Step]:
    """Return a step for each row."""
    return [Step(token, -0.5) for token in tokens]


def apply(removal: Removal, slots: list[Sequence | None]) -> None:
    """Change `slots` as a runner would change its rows."""
    for move in removal.moves:
        slots[move.target] = slots[move.source]
    for row in removal.clear:
        slots[row] = None
