"""One thread that drives one runner: its own rows, filled from the queue that all lanes share."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Row
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from dragoman.bundle.graphs import padded_width
from dragoman.service.engine.fair_scheduler import RunTicket
from dragoman.service.engine.length_buckets import batches
from dragoman.service.engine.queue import Queue
from dragoman.service.engine.runner import MemoryRefusedError, RowInput, Runner
from dragoman.service.engine.scheduler import NOTHING, Removal, Scheduler
from dragoman.service.engine.sequence import Sequence, StoppedError
from dragoman.service.engine.step import Step

log = logging.getLogger(__name__)

ENGINE = "engine"
"""What the threads are called."""

PAUSE_SECONDS = 2.0
"""How long there must be nothing to do before memory is given back."""

Run = Literal["embed", "insert", "step"]
"""What the runner was asked for."""

Cause = Literal["error", "memory"]
"""Why it could not: it raised an error, or was refused memory."""

T = TypeVar("T")


class Observer(Protocol):
    """Told what happens, on the thread of a lane; must be quick."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """`rows` sources went through the encoder, `tokens` real tokens and `padding` beside them."""

    def stepped(self, rows: int, seconds: float) -> None:
        """A step of the decoder gave one token to each of `rows`."""

    def failed(self, run: Run, cause: Cause) -> None:
        """The runner raised."""

    def wasted(self, tokens: int) -> None:
        """So many tokens of output are made anew, because their batch was refused memory."""

    def finished(self, sequence: Sequence) -> None:
        """A sequence left; its `finish` says how."""


class LaneGroup:
    """What all lanes share: the queue and the rows that it fills, under one lock."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.changed = threading.Condition()
        """The lock; notified when there is something to do."""
        self.stopped = False
        self.schedulers: list[Scheduler] = []
        """Of each lane."""

    @property
    def active_rows(self) -> int:
        """The rows that run, in all lanes; to be asked for under the lock."""
        return sum(len(scheduler.rows) for scheduler in self.schedulers)

    @property
    def share(self) -> int:
        """How many sequences a lane may have, so that none is idle while another has many; under the lock."""
        return -(-(len(self.queue) + self.active_rows) // len(self.schedulers))

    def stop(self) -> None:
        """Let every lane end."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()


class Lane:
    """Runs sequences, many at a time, on a thread of its own.

    Where the runner raises, each sequence of that run is tried once more, alone. One that raises again fails; the
    others go on, with the tokens that they would have had without it. Where memory is refused, the batch becomes
    smaller, and what leaves it runs again later.
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
        self._busy_since: float | None = None
        self._began: Callable[[], None] = lambda: None
        self._ended: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._loop, name=ENGINE, daemon=True)

    def start(self, ended: Callable[[], None], began: Callable[[], None]) -> None:
        """Start the thread; `began` is the first that it calls, and `ended` the last, whatever ends it."""
        self._began, self._ended = began, ended
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end, if it was ever started."""
        if self._thread.ident is not None:
            self._thread.join()

    def busy_seconds(self) -> float:
        """How long the runner has been at what it does now, 0 if it does nothing; any thread may call it."""
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    # --- the lane's own thread

    def _loop(self) -> None:
        self._ticket.arrive()
        try:
            self._began()
            while self._wait_for_work():
                self._turn()
        finally:
            self._ticket.leave()
            # Whatever ended the loop, nobody is left waiting, and nobody can come after: all other lanes end as well.
            self._lane_group.stop()
            with self._changed:
                left = self._scheduler.drain(StoppedError("the engine has stopped"), self._clock())
            try:
                self._deliver(left)
            finally:
                self._ended()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do. False when the engine is to stop."""
        with self._changed:
            if self._called():
                return not self._lane_group.stopped
        self._ticket.leave()
        try:
            return self._sleep()
        finally:
            self._ticket.arrive()

    def _sleep(self) -> bool:
        with self._changed:
            # A pause between two calls is no rest: what is given back would be asked for again at once.
            called = self._changed.wait_for(self._called, PAUSE_SECONDS)
        if not called:
            # Not under the lock: giving back memory takes time, and callers would wait for it.
            with self._busy():
                self._runner.rest()
        with self._changed:
            self._changed.wait_for(self._called)
            return not self._lane_group.stopped

    def _called(self) -> bool:
        return self._lane_group.stopped or not self._scheduler.idle

    def _turn(self) -> None:
        """Schedule, run, update: what one admission encodes is bounded, so that no step waits long for it."""
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

    def _embed(self, asked: Row[Sequence]) -> None:
        def embed(part: range) -> list[Any]:
            batch = asked[part.start : part.stop]
            states = self._runner.embed([sequence.source for sequence in batch])
            for sequence, each in zip(batch, states, strict=False):
                _check_shape(each.shape, (len(sequence.source), self._runner.width))
            self._note_encoded(batch)
            return states

        found: list[Any]
        try:
            found = self._attempt("embed", range(len(asked)), embed)
        except MemoryRefusedError as error:
            half = len(asked) // 2
            if half:
                self._embed(asked[:half])
                self._embed(asked[half:])
                return
            found = [error]
        for sequence, states in zip(asked, found, strict=True):
            if isinstance(states, Exception):
                sequence.error = states
            else:
                sequence.states = states
        with self._changed:
            self._scheduler.finish_embedded(asked, self._clock())
        self._deliver(asked)

    def _insert(self, first_row: int) -> None:
        """Encode the rows from `first_row` on, those of like length together."""

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
                found = self._attempt("insert", rows, insert)
            except MemoryRefusedError as error:
                # Those that are not encoded yet become fewer.
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
            steps = self._attempt("step", range(len(rows)), step)
        except MemoryRefusedError as error:
            self._shrink(0, error)
            return
        now = self._clock()
        self._observer.stepped(len(rows), now - started)
        with self._changed:
            removal = self._scheduler.update(steps, now)
        self._settle(removal)

    def _attempt(self, run: Run, rows: range, call: Callable[[range], Row[T]]) -> list[T | Exception]:
        """What `call` gives for `rows` together; if it raises, what it gives, or raises, for each alone.

        Raises MemoryRefusedError where there is not the memory for all of them.
        """
        try:
            with self._ticket.turn(), self._busy():
                return _whole(call(rows), rows)
        except MemoryRefusedError as error:
            self._note_failed(run, len(rows), error)
            raise
        except Exception as error:
            self._note_failed(run, len(rows), error)
        found: list[T | Exception] = []
        for row in rows:
            try:
                with self._ticket.turn(), self._busy():
                    found += _whole(call(range(row, row + 1)), range(row, row + 1))
            except Exception as error:
                # Whoever gets it reports it.
                self._observer.failed(run, _cause(error))
                found.append(error)
        return found

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """The time in which the runner has the thread."""
        self._busy_since = self._clock()
        try:
            yield
        finally:
            self._busy_since = None

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
        if removal is NOTHING:
            return
        try:
            with self._busy():
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

    def _note_failed(self, run: Run, rows: int, error: Exception) -> None:
        log.warning("%s of %d failed", run, rows, exc_info=error)
        self._observer.failed(run, _cause(error))

    def _note_encoded(self, sequences: Row[Sequence]) -> None:
        now = self._clock()
        for sequence in sequences:
            sequence.times = replace(sequence.times, encoded=now)
        lengths = [len(sequence.source) for sequence in sequences]
        padded = padded_width(max(lengths)) * len(lengths)
        self._observer.encoded(len(lengths), sum(lengths), padded - sum(lengths))


def _whole(found: Row[T], rows: range) -> list[T]:
    """What a runner gave for `rows`. Raises RuntimeError unless it is one for each: answers would go to others."""
    if len(found) != len(rows):
        raise RuntimeError(f"the runner gave {len(found)} results for {len(rows)} rows")
    return list(found)


def _check_shape(found: tuple[int, ...], asked: tuple[int, int]) -> None:
    """Raise RuntimeError unless states have the shape [source, width]: a vector of others would look like any."""
    if found != asked:
        raise RuntimeError(f"the runner gave states of the shape {list(found)}, not {list(asked)}")


def _cause(error: Exception) -> Cause:
    return "memory" if isinstance(error, MemoryRefusedError) else "error"
