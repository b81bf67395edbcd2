"""Runs of a batch on the runner; where one raises, each row is tried once more, alone."""

import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Row
from contextlib import contextmanager
from typing import TypeVar

from dragoman.service.engine.fair_scheduler import RunTicket
from dragoman.service.engine.observer import Cause, Observer, Run
from dragoman.service.engine.runner import MemoryRefusedError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Attempts:
    """Runs of one lane, each under its ticket. Called on the lane's thread, but for `busy_seconds`."""

    def __init__(self, ticket: RunTicket, observer: Observer, clock: Callable[[], float]) -> None:
        self._ticket = ticket
        self._observer = observer
        self._clock = clock
        self._busy_since: float | None = None

    def busy_seconds(self) -> float:
        """Duration so far of the runner's current call, 0 without one; any thread may call it."""
        since = self._busy_since
        return 0.0 if since is None else self._clock() - since

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time of a call of the runner."""
        self._busy_since = self._clock()
        try:
            yield
        finally:
            self._busy_since = None

    def run(self, kind: Run, rows: range, call: Callable[[range], Row[T]]) -> list[T | Exception]:
        """Return the results of `call` for `rows` together; if it raises, the result or error of each row alone.

        Raises MemoryRefusedError if memory runs out for all of them together.
        """
        try:
            return self._run(rows, call)
        except MemoryRefusedError as error:
            self._note_failed(kind, len(rows), error)
            raise
        except Exception as error:
            self._note_failed(kind, len(rows), error)
        found: list[T | Exception] = []
        for row in rows:
            try:
                found += self._run(range(row, row + 1), call)
            except Exception as error:
                # The caller that receives the error reports it.
                self._observer.failed(kind, _cause(error))
                found.append(error)
        return found

    def _run(self, rows: range, call: Callable[[range], Row[T]]) -> list[T]:
        with self._ticket.held(), self.busy():
            return _whole(call(rows), rows)

    def _note_failed(self, kind: Run, rows: int, error: Exception) -> None:
        log.warning("%s of %d rows failed", kind, rows, exc_info=error)
        self._observer.failed(kind, _cause(error))


def _whole(found: Row[T], rows: range) -> list[T]:
    """Return a runner's results for `rows`. Raises RuntimeError unless there is one each: they would go astray."""
    if len(found) != len(rows):
        raise RuntimeError(f"the runner gave {len(found)} results for {len(rows)} rows")
    return list(found)


def _cause(error: Exception) -> Cause:
    return "memory" if isinstance(error, MemoryRefusedError) else "error"
