"""Which sequences run next. Pure bookkeeping: no arrays, no runtime, no clock of its own.

Rows of the running batch are a prefix 0..n-1 of the cache's slots. A row that leaves is replaced by the
last one, so that the batch stays a prefix; `update` says which rows moved.
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
"""How long after memory was refused the running batch is kept small, before it may double."""


@dataclass(frozen=True)
class BatchLimits:
    """How much may run and wait at once."""

    rows: int
    """Most sequences in the running batch."""
    tokens: int
    """Most tokens (source and longest output) that the running batch may come to occupy."""
    encode_tokens: int
    """Most source tokens that are encoded between two steps, so that running rows never wait long."""
    queue_sequences: int
    queue_tokens: int
    admission_steps: int = 0
    """Steps from one admission to the next while rows run, so that several sources are encoded together."""
    repetition: Repetition | None = None
    """Where an output is stopped before its limit; None lets every loop run."""


@dataclass(frozen=True)
class Move:
    """The contents of row `source` take the place of row `target`."""

    source: int
    target: int


@dataclass(frozen=True)
class Removal:
    """Sequences that left, and what the runner must do about their rows."""

    gone: tuple[Sequence, ...]
    moves: tuple[Move, ...]
    """Rows that take the place of others; to be carried out in order."""
    clear: tuple[int, ...]
    """Rows, now free, whose cells may hold NaN or infinity; to be zeroed after the moves."""
    wasted_tokens: int = 0
    """Of the output of sequences that went back to the queue, which is made anew."""


NOTHING = Removal((), (), ())
"""Nobody leaves."""


@dataclass(frozen=True)
class Admission:
    """Sequences that leave the queue to be encoded."""

    embed: tuple[Sequence, ...]
    """For their states alone."""
    insert: tuple[Sequence, ...]
    """To be decoded, in rows `first_row` and on."""
    first_row: int
    gone: tuple[Sequence, ...] = ()
    """Those that are not, since they would hardly be in time."""


class Scheduler:
    """Fills the rows of the running batch from the queue.

    Not thread-safe: its owner calls it from one thread at a time.
    """

    def __init__(self, limits: BatchLimits, end_ids: Row[int], queue: Queue, forced_end_id: int | None = None) -> None:
        """Any of `end_ids` ends an output; `forced_end_id` is what one ends with that would else reach its limit."""
        self._limits = limits
        self._queue = queue
        self._end_ids = frozenset(end_ids)
        self._forced_end_id = forced_end_id
        self.budget: MemoryBudget | None = None
        """What bounds the memory of the rows, if anything does."""
        self._rows: list[Sequence] = []
        self._embedding: list[Sequence] = []
        self._occupied = 0
        """Tokens that the rows could come to occupy when sequences were last admitted."""
        self._most_rows = limits.rows
        self._relief = math.inf
        self._steps = limits.admission_steps
        """Since sequences were last admitted."""

    @property
    def rows(self) -> Row[Sequence]:
        """The running sequences, by row."""
        return self._rows

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._queue and not self._rows

    def drop_expired(self, now: float) -> Removal:
        """Take out, of the queue and of the rows, every sequence that nobody waits for any more."""
        gone = self._queue.drop_expired(now)
        for sequence in self._rows:
            reason = sequence.dead(now)
            if reason is not None:
                self._queue.note_expired(sequence, reason)
                sequence.end(reason, now)
        removal = self._remove_finished()
        return replace(removal, gone=(*gone, *removal.gone)) if gone else removal

    def admit(self, now: float, share: int) -> Admission:
        """Take from the head of the queue what fits beside the running rows, in the order of arrival.

        With them it is at most `share` sequences. It is given by length, so that neighbours can be encoded together.
        Nobody is taken so soon after others that those who come next had better be encoded with them.
        Whoever would hardly be in time any more makes way for those behind (`Queue.refuse_late`).
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
            # What only fills rows that were free says nothing of how fast rows become free.
            drained = self._occupied - before + sum(each.cost for each in embed)
            self._occupied = occupied
            self._queue.pace.drained(drained, occupied, len(self._queue) > 0, now)
        for admitted in (embed, insert):
            admitted.sort(key=bucket)
        self._rows += insert
        self._embedding = embed
        if (embed or insert) and encoded <= self._limits.encode_tokens:
            # Where more waits than may be encoded at once, waiting for more would gain nothing.
            self._steps = 0
        return Admission(tuple(embed), tuple(insert), first_row, tuple(gone))

    def update(self, steps: Row[Step | Exception], now: float) -> Removal:
        """Give each row its new token, and take out the rows that are finished by it or have an error instead."""
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
                self._take(sequence, step, now)
        return self._remove_finished()

    def fail_rows(self, errors: Mapping[int, Exception], now: float) -> Removal:
        """Take out the rows that have an error."""
        for row, error in errors.items():
            self._rows[row].end(Finish.FAILED, now, error)
        return self._remove_finished()

    def shrink(self, first_row: int, error: Exception, now: float) -> Removal:
        """Make the batch smaller, because a run of the rows from `first_row` on was refused memory.

        The half of them that was admitted last goes back to the head of the queue, to be run anew; for a while no more
        rows run than now are left. A row that was alone cannot be helped, and fails with `error`.
        """
        if len(self._rows) == 1:
            return self.fail_rows({0: error}, now)
        held = sorted(self._rows[first_row:], key=lambda sequence: sequence.times.admitted)
        back = held[len(held) // 2 :]
        wasted = sum(len(sequence.tokens) for sequence in back)
        removal = self._take_out(back.__contains__, clear=True)
        for sequence in back:
            self._occupied -= sequence.cost
            sequence.restart()
        self._queue.put_back(sorted(back, key=lambda sequence: sequence.times.submitted))
        self._most_rows = max(1, len(self._rows))
        self._relief = now + RELIEF_SECONDS
        return replace(removal, gone=(), wasted_tokens=wasted)

    def finish_embedded(self, embedded: Row[Sequence], now: float) -> None:
        """Finish sequences that were encoded for their states, or have an error instead."""
        for sequence in embedded:
            sequence.end(Finish.FAILED if sequence.error else Finish.END, now, sequence.error)

    def drain(self, error: Exception, now: float) -> tuple[Sequence, ...]:
        """Take out everything, waiting or running, because the engine stops; whoever still waits gets `error`."""
        embedding = [sequence for sequence in self._embedding if sequence.finish is None]
        everything = (*self._queue.drain(), *embedding, *self._rows)
        self._rows.clear()
        for sequence in everything:
            reason = sequence.dead(now)
            if reason is None:
                sequence.end(Finish.FAILED, now, error)
            else:
                sequence.end(reason, now)
        return everything

    def _fits(self, head: Sequence, beside: Row[Sequence], occupied: int) -> bool:
        """Whether `head` can run `beside` others, which may come to occupy so many tokens."""
        if not beside:
            # A sequence larger than every budget still runs, alone.
            return True
        if len(beside) >= self._most_rows or occupied + head.cost > self._limits.tokens:
            return False
        if self.budget is None:
            return True
        together = (*beside, head)
        source = max(len(sequence.source) for sequence in together)
        return self.budget.holds(len(together), source, max(sequence.positions for sequence in together))

    def _take(self, sequence: Sequence, step: Step, now: float) -> None:
        """Add a token to an output, and end the output if it is its last."""
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
        """Let the batch grow again where memory has not been refused for a while."""
        if now < self._relief:
            return
        self._most_rows = min(2 * self._most_rows, self._limits.rows)
        self._relief = now + RELIEF_SECONDS if self._most_rows < self._limits.rows else math.inf

    def _remove_finished(self) -> Removal:
        finishes = {sequence.finish for sequence in self._rows} - {None}
        if not finishes:
            return NOTHING
        failed = Finish.FAILED in finishes
        return self._take_out(lambda sequence: sequence.finish is not None, clear=failed)

    def _take_out(self, leaves: Callable[[Sequence], bool], clear: bool) -> Removal:
        before = len(self._rows)
        gone: list[Sequence] = []
        moves: list[Move] = []
        # From the last to the first, so that the row which fills a gap is always one that stays.
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
