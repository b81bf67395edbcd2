"""Decides which sequences run next. Pure bookkeeping: no arrays, no runtime, no clock of its own.

Rows of the running batch are a prefix 0..n-1 of the cache's slots. The last row replaces one that leaves, so that the
batch stays a prefix; a Removal lists the moves.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace

from dragoman.service.engine.length_buckets import bucket
from dragoman.service.engine.memory_budget import MemoryBudget
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.repetition import Repetition
from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.engine.step import Step

RELIEF_SECONDS = 10.0
"""Time after memory ran out before the size of the batch may double again."""


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of the running batch and of the queue."""

    rows: int
    """Maximum number of sequences in the running batch."""
    tokens: int
    """Maximum sum of the costs of the running batch, in tokens of source and longest output."""
    encode_tokens: int
    """Maximum number of source tokens encoded between two steps: running rows wait for them."""
    queue_sequences: int
    queue_tokens: int
    admission_steps: int = 0
    """Steps between two admissions while rows run, so that new arrivals are encoded together."""
    repetition: Repetition | None = None
    """Loops that stop an output before its limit; None stops none."""


@dataclass(frozen=True)
class Move:
    """Copy of row `source` over row `target`."""

    source: int
    target: int


@dataclass(frozen=True)
class Removal:
    """Sequences that left, and the changes of the runner's rows that follow."""

    gone: tuple[Sequence, ...]
    moves: tuple[Move, ...]
    """To be carried out in order."""
    clear: tuple[int, ...]
    """Free rows to be zeroed after the moves: their cells may hold NaN or infinity."""
    wasted_tokens: int = 0
    """Output tokens of sequences that returned to the queue; they are decoded again."""


NOTHING = Removal((), (), ())
"""No sequence left."""


@dataclass(frozen=True)
class Admission:
    """Sequences that leave the queue to be encoded."""

    embed: tuple[Sequence, ...]
    """Encoded for their states alone."""
    insert: tuple[Sequence, ...]
    """Decoded in the rows from `first_row` on."""
    first_row: int
    gone: tuple[Sequence, ...] = ()
    """Refused at the head: they would probably miss their deadlines."""


class Scheduler:
    """Fills the rows of the running batch from the queue.

    Not thread-safe: its owner calls it from one thread at a time.
    """

    def __init__(self, limits: BatchLimits, end_ids: Row[int], queue: Queue, forced_end_id: int | None = None) -> None:
        """Any of `end_ids` ends an output; `forced_end_id` replaces the last token of one that reaches its limit."""
        self._limits = limits
        self._queue = queue
        self._end_ids = frozenset(end_ids)
        self._forced_end_id = forced_end_id
        self.budget: MemoryBudget | None = None
        """Bound of the rows' memory, if any."""
        self._rows: list[Sequence] = []
        self._embedding: list[Sequence] = []
        self._occupied = 0
        """Sum of the rows' costs after the latest admission, less rows that left while no sequence waited."""
        self._max_rows = limits.rows
        """Lower than the limit for a while after memory ran out."""
        self._relief = math.inf
        """Time of the next growth of `_max_rows`."""
        self._steps = limits.admission_steps
        """Steps since the latest admission."""

    @property
    def rows(self) -> Row[Sequence]:
        """The running sequences, by row."""
        return self._rows

    @property
    def idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return not self._queue and not self._rows

    def drop_expired(self, now: float) -> Removal:
        """Remove every sequence that was cancelled or whose deadline has passed, waiting or running."""
        gone = self._queue.drop_expired(now)
        for sequence in self._rows:
            reason = sequence.expired_reason(now)
            if reason is not None:
                self._queue.note_expired(sequence, reason)
                sequence.end(reason, now)
        removal = self._remove_finished()
        return replace(removal, gone=(*gone, *removal.gone)) if gone else removal

    def admit(self, now: float, share: int) -> Admission:
        """Take the sequences from the head of the queue that fit beside the running rows, in order of arrival.

        At most `share` sequences run then. The admitted ones are returned sorted by bucket of length. After an
        admission, wait `admission_steps` steps so that new arrivals are encoded together. Heads that would probably
        miss their deadlines are refused (`Queue.refuse_late`).
        """
        self._relieve(now)
        embed: list[Sequence] = []
        insert: list[Sequence] = []
        first_row = len(self._rows)
        if first_row and self._steps < self._limits.admission_steps:
            return Admission((), (), first_row)
        occupied = before = sum(sequence.cost for sequence in self._rows)
        encoded = 0
        gone: list[Sequence] = []
        while self._queue and first_row + len(embed) + len(insert) < share:
            gone += self._queue.refuse_late(now)
            head = self._queue.head
            encoded += len(head.source)
            if (embed or insert) and encoded > self._limits.encode_tokens:
                break
            if head.max_output and not self._fits(head, (*self._rows, *insert), occupied):
                break
            self._queue.take()
            head.times = replace(head.times, admitted=now)
            if head.max_output:
                insert.append(head)
                occupied += head.cost
            else:
                embed.append(head)
        if embed or insert:
            # Only freed tokens count: filling free rows says nothing about how fast rows become free.
            drained = self._occupied - before + sum(each.cost for each in embed)
            self._occupied = occupied
            self._queue.pace.drained(drained, occupied, len(self._queue) > 0, now)
        for admitted in (embed, insert):
            admitted.sort(key=bucket)
        self._rows += insert
        self._embedding = embed
        if (embed or insert) and encoded <= self._limits.encode_tokens:
            # If more sequences wait than may be encoded at once, waiting for more gains nothing.
            self._steps = 0
        return Admission(tuple(embed), tuple(insert), first_row, tuple(gone))

    def update(self, steps: Row[Step | Exception], now: float) -> Removal:
        """Give each row its new token or its error, and remove the rows that end by it."""
        self._steps += 1
        for sequence, step in zip(self._rows, steps, strict=True):
            if isinstance(step, Exception):
                sequence.end(Finish.FAILED, now, step)
                continue
            if not math.isfinite(step.log_prob):
                error = ArithmeticError(f"the model's log-probability is {step.log_prob}")
                sequence.end(Finish.FAILED, now, error)
                continue
            prompting = sequence.prompting
            sequence.position += 1
            if not prompting:
                self._append(sequence, step, now)
        return self._remove_finished()

    def fail_rows(self, errors: Mapping[int, Exception], now: float) -> Removal:
        """Remove the rows that have an error."""
        for row, error in errors.items():
            self._rows[row].end(Finish.FAILED, now, error)
        return self._remove_finished()

    def shrink(self, first_row: int, error: Exception, now: float) -> Removal:
        """Make the batch smaller after memory ran out for a run of the rows from `first_row` on.

        The half of them admitted last returns to the head of the queue, to run again. For a while no more rows run
        than now remain. If only one row runs, it fails with `error`.
        """
        if len(self._rows) == 1:
            return self.fail_rows({0: error}, now)
        held = sorted(self._rows[first_row:], key=lambda sequence: sequence.times.admitted)
        back = held[len(held) // 2 :]
        wasted = sum(len(sequence.tokens) for sequence in back)
        removal = self._remove(back.__contains__, clear=True)
        for sequence in back:
            self._occupied -= sequence.cost
            sequence.restart()
        self._queue.put_back(sorted(back, key=lambda sequence: sequence.times.submitted))
        self._max_rows = max(1, len(self._rows))
        self._relief = now + RELIEF_SECONDS
        return replace(removal, gone=(), wasted_tokens=wasted)

    def finish_embedded(self, embedded: Row[Sequence], now: float) -> None:
        """Finish embeddings, which have either states or an error."""
        for sequence in embedded:
            sequence.end(Finish.FAILED if sequence.error else Finish.END, now, sequence.error)

    def drain(self, error: Exception, now: float) -> tuple[Sequence, ...]:
        """Remove all sequences because the engine stops; those not expired fail with `error`."""
        embedding = [sequence for sequence in self._embedding if sequence.finish is None]
        everything = (*self._queue.drain(), *embedding, *self._rows)
        self._rows.clear()
        self._occupied = 0
        for sequence in everything:
            reason = sequence.expired_reason(now)
            if reason is None:
                sequence.end(Finish.FAILED, now, error)
            else:
                sequence.end(reason, now)
        return everything

    def _fits(self, head: Sequence, beside: Row[Sequence], occupied: int) -> bool:
        """Whether `head` can run `beside` others, whose costs are `occupied`."""
        if not beside:
            # Alone, a sequence larger than every limit still runs.
            return True
        if len(beside) >= self._max_rows or occupied + head.cost > self._limits.tokens:
            return False
        if self.budget is None:
            return True
        together = (*beside, head)
        source = max(len(sequence.source) for sequence in together)
        return self.budget.holds(len(together), source, max(sequence.positions for sequence in together))

    def _append(self, sequence: Sequence, step: Step, now: float) -> None:
        """Append a token to an output, and end the output if it is its last."""
        tokens, repetition = sequence.tokens, self._limits.repetition
        if not tokens:
            sequence.times = replace(sequence.times, first_token=now)
        ended, full = step.token in self._end_ids, len(tokens) + 1 >= sequence.max_output
        if full and not ended and self._forced_end_id is not None:
            tokens.append(self._forced_end_id)
        else:
            tokens.append(step.token)
            sequence.log_prob += step.log_prob
            sequence.chosen += 1
        if ended:
            sequence.end(Finish.END, now)
        elif full:
            sequence.end(Finish.LENGTH, now)
        elif repetition is not None and repetition.ends(tokens):
            sequence.end(Finish.REPETITION, now)
        if sequence.finish is not None:
            self._queue.pace.decoded(len(sequence.source), now - sequence.times.admitted, now)
            if sequence.promised:
                self._queue.pace.promise(kept=True)

    def _relieve(self, now: float) -> None:
        """Let the batch grow again if memory has not run out for a while."""
        if now < self._relief:
            return
        self._max_rows = min(2 * self._max_rows, self._limits.rows)
        self._relief = now + RELIEF_SECONDS if self._max_rows < self._limits.rows else math.inf

    def _remove_finished(self) -> Removal:
        finishes = {sequence.finish for sequence in self._rows} - {None}
        if not finishes:
            return NOTHING
        failed = Finish.FAILED in finishes
        removal = self._remove(lambda sequence: sequence.finish is not None, clear=failed)
        if not self._queue:
            # No evidence of how fast a waiting sequence gets its place.
            self._occupied -= sum(sequence.cost for sequence in removal.gone)
        return removal

    def _remove(self, leaves: Callable[[Sequence], bool], clear: bool) -> Removal:
        before = len(self._rows)
        gone: list[Sequence] = []
        moves: list[Move] = []
        # From last to first, so that the row that fills a gap is always one that stays.
        for row in reversed(range(before)):
            sequence = self._rows[row]
            if not leaves(sequence):
                continue
            last = len(self._rows) - 1
            if row != last:
                moves.append(Move(last, row))
                self._rows[row] = self._rows[last]
            self._rows.pop()
            gone.append(sequence)
        freed = tuple(range(len(self._rows), before)) if clear else ()
        return Removal(tuple(reversed(gone)), tuple(moves), freed)
