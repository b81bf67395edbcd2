"""The thread that drives scheduler and runner."""

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace
from typing import Protocol

from dragoman.export.graphs import padded_width
from dragoman.service.engine.runner import Memory, RowInput, Runner
from dragoman.service.engine.scheduler import Admission, Limits, Removal, Scheduler
from dragoman.service.engine.sequence import Sequence, StoppedError

ENGINE = "engine"
"""What the thread is called."""


@dataclass(frozen=True)
class Load:
    """What the engine has to do at one moment."""

    waiting_sequences: int
    waiting_tokens: int
    active_rows: int


class Observer(Protocol):
    """Told what happens, on the engine's thread; must be quick."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """`rows` sources went through the encoder, `tokens` real tokens and `padding` beside them."""

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of the decoder gave one token to each of `rows`."""

    def finished(self, sequence: Sequence) -> None:
        """A sequence left; its `finish` says how."""


class Engine:
    """Runs sequences, many at a time, on a thread of its own.

    A runner that raises fails the sequences of that run alone; the engine goes on.
    """

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        start_id: int,
        end_ids: Row[int],
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._runner = runner
        self._start_id = start_id
        self._observer = observer
        self._scheduler = Scheduler(limits, end_ids)
        self._changed = threading.Condition()
        self._stopped = False
        self._ended: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._loop, name=ENGINE, daemon=True)

    def start(self, ended: Callable[[], None] | None = None) -> None:
        """Start the thread; whatever ends it, `ended` is the last that it calls."""
        self._ended = ended or self._ended
        self._thread.start()

    def stop(self) -> None:
        """Fail what is still there with StoppedError, and end the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, sequences: Row[Sequence]) -> None:
        """Take the sequences of one request, all or none; any thread may call it.

        Raises QueueFullError where the queue cannot take them, and StoppedError after `stop`.
        """
        with self._changed:
            if self._stopped:
                raise StoppedError("the engine has stopped")
            self._scheduler.submit(sequences, self.clock())
            self._changed.notify()

    def load(self) -> Load:
        """What there is to do now; any thread may call it."""
        with self._changed:
            scheduler = self._scheduler
            return Load(scheduler.waiting_sequences, scheduler.waiting_tokens, len(scheduler.rows))

    def memory(self) -> Memory:
        """What the runner holds now; any thread may call it."""
        return self._runner.memory()

    # --- the engine's thread

    def _loop(self) -> None:
        try:
            while self._wait_for_work():
                self._turn()
        finally:
            # Whatever ended the loop, nobody is left waiting, and nobody can come after.
            with self._changed:
                self._stopped = True
                left = self._scheduler.drain(StoppedError("the engine has stopped"), self.clock())
            try:
                self._deliver(left)
            finally:
                self._ended()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do. False when the engine is to stop."""
        with self._changed:
            idle = self._scheduler.idle and not self._stopped
        if idle:
            # Not under the lock: giving back memory takes time, and callers would wait for it.
            self._runner.rest()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or not self._scheduler.idle)
            return not self._stopped

    def _turn(self) -> None:
        """Schedule, run, update: at most one encoding and one step."""
        with self._changed:
            removal = self._scheduler.drop_dead(self.clock())
        self._settle(removal)
        with self._changed:
            admission = self._scheduler.admit(self.clock())
        if admission.embed:
            self._embed(admission)
        if admission.insert:
            self._insert(admission)
        if self._scheduler.rows:
            self._step()

    def _embed(self, admission: Admission) -> None:
        error: Exception | None = None
        try:
            states = self._runner.embed([sequence.source for sequence in admission.embed])
            for sequence, rows in zip(admission.embed, states, strict=True):
                sequence.states = rows
            self._note_encoded(admission.embed)
        except Exception as raised:
            error = raised
        with self._changed:
            finished = self._scheduler.finish_embedded(admission, self.clock(), error)
        self._deliver(finished)

    def _insert(self, admission: Admission) -> None:
        try:
            self._runner.insert([sequence.source for sequence in admission.insert], admission.first_row)
        except Exception as error:
            self._fail_rows(admission.first_row, error)
            return
        self._note_encoded(admission.insert)

    def _step(self) -> None:
        rows = [
            RowInput(sequence.tokens[-1] if sequence.tokens else self._start_id, len(sequence.tokens))
            for sequence in self._scheduler.rows
        ]
        started = self.clock()
        try:
            steps = self._runner.step(rows)
        except Exception as error:
            self._fail_rows(0, error)
            return
        now = self.clock()
        self._observer.stepped(len(rows), now - started)
        with self._changed:
            removal = self._scheduler.update(steps, now)
        self._settle(removal)

    def _fail_rows(self, first_row: int, error: Exception) -> None:
        with self._changed:
            removal = self._scheduler.fail_rows(first_row, error, self.clock())
        self._settle(removal)

    def _settle(self, removal: Removal) -> None:
        try:
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
            # Even an observer that raises leaves no caller waiting.
            for sequence in sequences:
                sequence.done(sequence)

    def _note_encoded(self, sequences: Row[Sequence]) -> None:
        now = self.clock()
        for sequence in sequences:
            sequence.times = replace(sequence.times, encoded=now)
        lengths = [len(sequence.source) for sequence in sequences]
        padded = padded_width(max(lengths)) * len(lengths)
        self._observer.encoded(len(lengths), sum(lengths), padded - sum(lengths))
