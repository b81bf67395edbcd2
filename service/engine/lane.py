"""One thread that drives one runner: its own rows, filled from the queue that all lanes share."""

import threading
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Row
from dataclasses import replace
from typing import Any

from dragoman.bundle.graphs import padded_width
from dragoman.service.engine.attempts import Attempts
from dragoman.service.engine.fair_scheduler import RunTicket
from dragoman.service.engine.length_buckets import batches
from dragoman.service.engine.observer import Observer
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.runner import MemoryRefusedError, RowInput, Runner
from dragoman.service.engine.scheduler import NOTHING, Removal, Scheduler
from dragoman.service.engine.sequence import Sequence, StoppedError
from dragoman.service.engine.step import Step

ENGINE = "engine"
"""Name of the threads."""

PAUSE_SECONDS = 2.0
"""Idle time before memory is given back."""


class LaneGroup:
    """State shared by all lanes, under one lock: the queue and the schedulers that it feeds."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.changed = threading.Condition()
        """The lock; notified when work arrives."""
        self.stopped = False
        self.schedulers: list[Scheduler] = []
        """One for each lane."""

    @property
    def active_rows(self) -> int:
        """Running rows in all lanes; read under the lock."""
        return sum(len(scheduler.rows) for scheduler in self.schedulers)

    @property
    def share(self) -> int:
        """Maximum number of sequences in one lane, so that no lane is idle beside a full one; read under the lock."""
        return -(-(len(self.queue) + self.active_rows) // len(self.schedulers))

    def stop(self) -> None:
        """End every lane."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class Lane:
    """Runs sequences, many at a time, on a thread of its own.

    If the runner raises, each sequence of that run is tried once more, alone. One that raises again fails; the others
    go on with the same tokens as without it. If memory runs out, the batch becomes smaller, and the sequences that
    leave it run again later.
    """

    def __init__(
        self,
        lane_group: LaneGroup,
        scheduler: Scheduler,
        runner: Runner,
        observer: Observer,
        clock: Callable[[], float],
        ticket: RunTicket,
    ) -> None:
        self._lane_group = lane_group
        self._ticket = ticket
        self._scheduler = scheduler
        self._runner = runner
        self._observer = observer
        self._clock = clock
        self._changed = lane_group.changed
        self._attempts = Attempts(ticket, observer, clock)
        self._began: Callable[[], None] = lambda: None
        self._ended: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._loop, name=ENGINE, daemon=True)

    def start(self, ended: Callable[[], None], began: Callable[[], None]) -> None:
        """Start the thread. It calls `began` first, and `ended` last, whatever ends it."""
        self._began, self._ended = began, ended
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end, if it was ever started."""
        if self._thread.ident is not None:
            self._thread.join()

    def busy_seconds(self) -> float:
        """Duration so far of the runner's current call, 0 without one; any thread may call it."""
        return self._attempts.busy_seconds()

    # --- on the lane's own thread

    def _loop(self) -> None:
        self._ticket.activate()
        try:
            self._began()
            while self._wait_for_work():
                self._iterate()
        finally:
            self._ticket.deactivate()
            # Whatever ended the loop, no caller may be left waiting, and no request may arrive later.
            self._lane_group.stop()
            with self._changed:
                left = self._scheduler.drain(StoppedError("the engine has stopped"), self._clock())
            try:
                self._deliver(left)
            finally:
                self._ended()

    def _wait_for_work(self) -> bool:
        """Sleep until there is work. False if the engine is to stop."""
        with self._changed:
            if self._wakes():
                return not self._lane_group.stopped
        self._ticket.deactivate()
        try:
            return self._sleep()
        finally:
            self._ticket.activate()

    def _sleep(self) -> bool:
        with self._changed:
            # Memory given back in a pause between two calls would be taken again at once.
            woken = self._changed.wait_for(self._wakes, PAUSE_SECONDS)
        if not woken:
            # Not under the lock: giving back memory takes time, and callers would wait for it.
            with self._attempts.busy():
                self._runner.rest()
        with self._changed:
            self._changed.wait_for(self._wakes)
            return not self._lane_group.stopped

    def _wakes(self) -> bool:
        return self._lane_group.stopped or not self._scheduler.idle

    def _iterate(self) -> None:
        """Schedule, run, update. One admission encodes a bounded number of tokens, so no step waits long for it."""
        with self._changed:
            removal = self._scheduler.drop_expired(self._clock())
        self._settle(removal)
        with self._changed:
            admission = self._scheduler.admit(self._clock(), self._lane_group.share)
        self._deliver(admission.gone)
        for batch in batches(admission.embed):
            self._embed(batch)
        self._insert(admission.first_row)
        if self._scheduler.rows:
            self._step()

    def _embed(self, sequences: Row[Sequence]) -> None:
        def embed(part: range) -> list[Any]:
            batch = sequences[part.start : part.stop]
            states = self._runner.embed([sequence.source for sequence in batch])
            for sequence, each in zip(batch, states, strict=False):
                _check_shape(each.shape, (len(sequence.source), self._runner.width))
            self._note_encoded(batch)
            return states

        found: list[Any]
        try:
            found = self._attempts.run("embed", range(len(sequences)), embed)
        except MemoryRefusedError as error:
            half = len(sequences) // 2
            if half:
                self._embed(sequences[:half])
                self._embed(sequences[half:])
                return
            found = [error]
        for sequence, states in zip(sequences, found, strict=True):
            if isinstance(states, Exception):
                sequence.error = states
            else:
                sequence.states = states
        with self._changed:
            self._scheduler.finish_embedded(sequences, self._clock())
        self._deliver(sequences)

    def _insert(self, first_row: int) -> None:
        """Encode the rows from `first_row` on, grouped by length."""

        def insert(part: range) -> list[None]:
            batch = self._scheduler.rows[part.start : part.stop]
            self._runner.insert([sequence.source for sequence in batch], part.start)
            self._note_encoded(batch)
            return [None] * len(batch)

        errors: dict[int, Exception] = {}
        row = first_row
        while row < len(self._scheduler.rows):
            batch = next(batches(self._scheduler.rows[row:]))
            rows = range(row, row + len(batch))
            try:
                found = self._attempts.run("insert", rows, insert)
            except MemoryRefusedError as error:
                # Fewer rows remain to be encoded, and the loop tries them.
                self._shrink(row, error)
                continue
            errors.update((row, error) for row, error in zip(rows, found, strict=True) if error is not None)
            row = rows.stop
        if errors:
            self._fail_rows(errors)

    def _step(self) -> None:
        rows = [RowInput(sequence.next_fed, sequence.position) for sequence in self._scheduler.rows]
        scored = any(sequence.scored for sequence in self._scheduler.rows)

        def step(part: range) -> list[Step]:
            return self._runner.step(rows, None if len(part) == len(rows) else part.start, scored)

        started = self._clock()
        try:
            steps = self._attempts.run("step", range(len(rows)), step)
        except MemoryRefusedError as error:
            self._shrink(0, error)
            return
        now = self._clock()
        self._observer.stepped(len(rows), now - started)
        with self._changed:
            removal = self._scheduler.update(steps, now)
        self._settle(removal)

    def _fail_rows(self, errors: Mapping[int, Exception]) -> None:
        with self._changed:
            removal = self._scheduler.fail_rows(errors, self._clock())
        self._settle(removal)

    def _shrink(self, first_row: int, error: MemoryRefusedError) -> None:
        with self._changed:
            removal = self._scheduler.shrink(first_row, error, self._clock())
        if removal.wasted_tokens:
            self._observer.wasted(removal.wasted_tokens)
        self._settle(removal)

    def _settle(self, removal: Removal) -> None:
        """Move and clear the runner's rows as `removal` says, and deliver the sequences that left."""
        if removal is NOTHING:
            return
        try:
            with self._attempts.busy():
                for move in removal.moves:
                    self._runner.move_row(move.source, move.target)
                for row in removal.clear:
                    self._runner.clear_row(row)
        finally:
            self._deliver(removal.gone)

    def _deliver(self, sequences: Row[Sequence]) -> None:
        try:
            for sequence in sequences:
                self._observer.finished(sequence)
        finally:
            # Even if an observer raises, no caller may be left waiting.
            for sequence in sequences:
                sequence.done(sequence)

    def _note_encoded(self, sequences: Row[Sequence]) -> None:
        now = self._clock()
        for sequence in sequences:
            sequence.times = replace(sequence.times, encoded=now)
        lengths = [len(sequence.source) for sequence in sequences]
        padded = padded_width(max(lengths)) * len(lengths)
        self._observer.encoded(len(lengths), sum(lengths), padded - sum(lengths))


def _check_shape(found: tuple[int, ...], expected: tuple[int, int]) -> None:
    """Raise RuntimeError unless states have the shape [source, width]: pooling would hide the fault."""
    if found != expected:
        raise RuntimeError(f"the runner gave states of the shape {list(found)}, not {list(expected)}")
