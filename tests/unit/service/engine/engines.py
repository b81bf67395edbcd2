"""Limits, an observer and texts to drive an engine with."""

import threading
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from dragoman.service.engine.observer import Cause, Run
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Finish, Sequence
from tests.support.fake_runner import START, FakeRunner

FOREVER = 10**9
"""More tokens than any test decodes."""

LIMITS = BatchLimits(rows=4, tokens=10 * FOREVER, encode_tokens=1000, queue_sequences=10, queue_tokens=10 * FOREVER)
PATIENCE = 60


@dataclass
class Notes:
    """An observer that records all events."""

    encodings: list[tuple[int, int, int]] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    endings: list[Finish | None] = field(default_factory=list)
    failures: list[tuple[Run, Cause]] = field(default_factory=list)
    wasted_tokens: int = 0
    fault: Exception | None = None

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        self.encodings.append((rows, tokens, padding))

    def stepped(self, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.batches.append(rows)

    def failed(self, run: Run, cause: Cause) -> None:
        self.failures.append((run, cause))

    def wasted(self, tokens: int) -> None:
        self.wasted_tokens += tokens

    def finished(self, sequence: Sequence) -> None:
        if self.fault is not None:
            raise self.fault
        self.endings.append(sequence.finish)


class Texts:
    """Sequences, and a way to wait until all have ended."""

    def __init__(self, *sources: Row[int], max_output: int = 20, deadline: float | None = None) -> None:
        self._left = threading.Semaphore(0)
        self.sequences = [Sequence(tuple(source), (START,), max_output, self._done, deadline) for source in sources]

    def _done(self, sequence: Sequence) -> None:
        self._left.release()

    def wait(self) -> list[Sequence]:
        for _ in self.sequences:
            assert self._left.acquire(timeout=PATIENCE), "a sequence was never finished"
        assert not self._left.acquire(blocking=False), "a sequence was finished twice"
        return self.sequences


def break_moves(runner: FakeRunner, notes: Notes, fault: Exception) -> None:
    def raising(source: int, target: int) -> None:
        raise fault

    runner.move_row = raising  # type: ignore[method-assign]
