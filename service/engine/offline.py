"""The engine as a batch job, without a server."""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Row
from types import TracebackType
from typing import Self

from dragoman.bundle.rules import DecodingRules
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.observer import Cause, Observer, Run
from dragoman.service.engine.runner import Runner
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Sequence

Source = Row[int]

ENCODE_TOKENS = 512
"""Maximum number of source tokens encoded between two steps: the server's default."""

ADMISSION_STEPS = 3
"""Steps between two admissions: the server's default."""

NO_LIMIT = 10**9


class Silent:
    """An observer that ignores all events."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """Ignore."""

    def stepped(self, rows: int, seconds: float) -> None:
        """Ignore."""

    def failed(self, run: Run, cause: Cause) -> None:
        """Ignore."""

    def wasted(self, tokens: int) -> None:
        """Ignore."""

    def finished(self, sequence: Sequence) -> None:
        """Ignore."""


class Offline:
    """Runs sources through an engine with one lane per runner, each of `rows` rows.

    Engines may use the same runners one after another.
    """

    def __init__(
        self,
        runners: Row[Runner],
        rules: DecodingRules,
        rows: int,
        *,
        scored: bool = True,
        observer: Observer | None = None,
    ) -> None:
        """Log-probabilities are computed only if `scored`."""
        limits = BatchLimits(rows, NO_LIMIT, ENCODE_TOKENS, NO_LIMIT, NO_LIMIT, ADMISSION_STEPS)
        self._rules = rules
        self._scored = scored
        observer = observer or Silent()
        self._engine = Engine(runners, limits, rules.end_ids, observer, forced_end_id=rules.forced_end_id)
        self._engine.start()

    def run(
        self, sources: Row[Source], limits: Row[int] | None = None, prompts: Row[Row[int]] | None = None
    ) -> list[Sequence]:
        """Decode all of `sources`, to at most `limits` tokens each, and return their sequences in order.

        `limits` default to those of the decoding rules, and `prompts` to the start token. Raises the first error of a
        sequence.
        """
        finished = threading.Semaphore(0)
        sequences = self.submit(sources, limits, lambda _sequence: finished.release(), prompts)
        for _ in sequences:
            finished.acquire()
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error
        return sequences

    def submit(
        self,
        sources: Row[Source],
        limits: Row[int] | None,
        done: Callable[[Sequence], None],
        prompts: Row[Row[int]] | None = None,
    ) -> list[Sequence]:
        """Start the same without waiting; `done` is called on a lane's thread with each finished sequence."""
        if limits is None:
            limits = [self._rules.output_limit(len(source)) for source in sources]
        if prompts is None:
            prompts = [(self._rules.start_id,)] * len(sources)
        sequences = [
            Sequence(tuple(source), tuple(prompt), limit, done, scored=self._scored)
            for source, prompt, limit in zip(sources, prompts, limits, strict=True)
        ]
        self._engine.submit(sequences)
        return sequences

    def close(self) -> None:
        """End the engine's threads, and free the runners."""
        self._engine.stop()

    def __enter__(self) -> Self:
        """Return the engine itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()
