"""Sequences waiting for a row, in order of arrival. Pure bookkeeping, as the scheduler."""

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Sequence as Row
from dataclasses import replace

from dragoman.service.engine.forecast import Pace, margin_seconds
from dragoman.service.engine.sequence import Finish, QueueFullError, Sequence
from dragoman.service.errors import DeadlineForecast, DeadlineUnreachableError

MIN_STALE_DEADLINES = 64
"""Number of deadlines of sequences already gone that is not worth a clean-up."""


class Queue:
    """Bounded in sequences and in tokens. Not thread-safe: its owner calls it from one thread at a time.

    Dropping expired sequences costs time by their number, not by the queue's length: deadlines lie in a heap, and a
    cancelled sequence reports itself.
    """

    def __init__(self, max_sequences: int, max_tokens: int) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._numbers = itertools.count()
        self._cancelled: deque[Sequence] = deque()
        self.tokens = 0
        """Sum of the costs of the waiting sequences."""
        self.pace = Pace()
        """Rate at which sequences are admitted; the scheduler records it."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def head(self) -> Sequence:
        """The next sequence to be taken. The queue must not be empty."""
        return next(iter(self._waiting))

    def submit(self, sequences: Row[Sequence], now: float) -> None:
        """Add the sequences of one request, all or none.

        Raises QueueFullError if they do not fit, and DeadlineUnreachableError if they would miss their deadline.
        An empty queue takes any request: one larger than the queue could otherwise never be answered.
        """
        promised = False
        if self._waiting and sequences:
            before = self.tokens + sum(sequence.cost for sequence in sequences[:-1])
            longest = max(map(_decoded_source, sequences))
            promised = self._check_deadline(before, longest, sequences[-1].deadline, now)
            if len(self._waiting) + len(sequences) > self._max_sequences:
                raise QueueFullError(len(self._waiting), self._max_sequences, "sequences")
            if self.tokens + sum(sequence.cost for sequence in sequences) > self._max_tokens:
                raise QueueFullError(self.tokens, self._max_tokens, "tokens")
        for sequence in sequences:
            sequence.times = replace(sequence.times, submitted=now)
            sequence.promised = promised
            self._add(sequence)

    def check(self, source_tokens: float, deadline: float | None, now: float) -> None:
        """Raise DeadlineUnreachableError if a sequence of about `source_tokens` would miss `deadline`.

        `source_tokens` is 0 for an embedding. Spares the caller work on a text that `submit` would refuse.
        """
        if self._waiting:
            self._check_deadline(self.tokens, source_tokens, deadline, now)

    def _check_deadline(self, before: int, source_tokens: float, deadline: float | None, now: float) -> bool:
        """Whether a forecast says that a sequence behind `before` tokens meets `deadline`; False without a forecast.

        Raises DeadlineUnreachableError if it would miss the deadline.
        """
        seconds = None if deadline is None else self.pace.forecast(before, source_tokens, now)
        if deadline is None or seconds is None:
            return False
        left = deadline - now
        rate = self.pace.tokens_per_second(now) or 0.0
        forecast = DeadlineForecast(seconds, left, margin_seconds(left), before, rate)
        if forecast.late_seconds > forecast.margin_seconds:
            raise DeadlineUnreachableError(forecast)
        return True

    def take(self) -> Sequence:
        """Remove the head and return it."""
        sequence, _ = self._waiting.popitem(last=False)
        self.tokens -= sequence.cost
        return sequence

    def refuse_late(self, now: float) -> list[Sequence]:
        """Remove and finish each head that could start now but would probably miss its deadline.

        Only requests that queued behind others can be shed, and never the last one: run times are those of past rows
        and may be stale.
        """
        gone: list[Sequence] = []
        while len(self._waiting) > 1:
            head = self.head
            if not head.promised or head.deadline is None:
                break
            forecast = DeadlineForecast(self.pace.likely_run(_decoded_source(head)), head.deadline - now)
            if forecast.late_seconds <= 0:
                break
            self.take()
            self.note_expired(head, Finish.DEADLINE)
            head.end(Finish.DEADLINE, now, DeadlineUnreachableError(forecast))
            gone.append(head)
        return gone

    def put_back(self, sequences: Row[Sequence]) -> None:
        """Return sequences that were taken to the front of the queue. They are in order of arrival."""
        for sequence in reversed(sequences):
            self._add(sequence)
            self._waiting.move_to_end(sequence, last=False)

    def drop_expired(self, now: float) -> list[Sequence]:
        """Remove and finish every sequence that was cancelled or whose deadline has passed."""
        gone: list[Sequence] = []
        while self._cancelled:
            self._drop(self._cancelled.popleft(), now, gone)
        while self._deadlines and self._deadlines[0][0] <= now:
            self._drop(heapq.heappop(self._deadlines)[-1], now, gone)
        if len(self._deadlines) > 2 * len(self._waiting) + MIN_STALE_DEADLINES:
            # Most belong to sequences that have left.
            self._deadlines = [entry for entry in self._deadlines if entry[-1] in self._waiting]
            heapq.heapify(self._deadlines)
        if gone and not self._waiting:
            self.pace.emptied()
        return gone

    def note_expired(self, sequence: Sequence, reason: Finish) -> None:
        """Correct the forecast if `sequence`, waiting or running, missed a deadline that it was promised to meet."""
        if reason is Finish.DEADLINE and sequence.promised:
            self.pace.promise(kept=False)

    def drain(self) -> list[Sequence]:
        """Remove everything and return it."""
        everything = list(self._waiting)
        self._waiting.clear()
        self._deadlines.clear()
        self.tokens = 0
        self.pace.emptied()
        return everything

    def _add(self, sequence: Sequence) -> None:
        self._waiting[sequence] = None
        self.tokens += sequence.cost
        if sequence.deadline is not None:
            # The number orders equal deadlines, since sequences have no order.
            heapq.heappush(self._deadlines, (sequence.deadline, next(self._numbers), sequence))
        # Any thread may cancel it from now on, or may have before the callback was set.
        sequence.on_cancel = self._cancelled.append
        if sequence.cancelled:
            self._cancelled.append(sequence)

    def _drop(self, sequence: Sequence, now: float, gone: list[Sequence]) -> None:
        reason = sequence.expired_reason(now)
        # Cancellations and deadlines also come from sequences that have left, and may have returned.
        if reason is None or sequence not in self._waiting:
            return
        del self._waiting[sequence]
        self.tokens -= sequence.cost
        self.note_expired(sequence, reason)
        sequence.end(reason, now)
        gone.append(sequence)


def _decoded_source(sequence: Sequence) -> int:
    """Source tokens of a sequence that is decoded; 0 for an embedding."""
    return len(sequence.source) if sequence.max_output else 0
