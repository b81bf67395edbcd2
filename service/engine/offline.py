"""The engine without a server: asked for many texts at once, and waited for."""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Row
from types import TracebackType
from typing import Self

from dragoman.bundle.rules import DecodingRules
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.lane import Cause, Observer, Run
from dragoman.service.engine.runner import Runner
from dragoman.service.engine.scheduler import BatchLimits
from dragoman.service.engine.sequence import Sequence

Source = Row[int]

ENCODE_TOKENS = 512
"""Most source tokens that are encoded between two steps: the server's default."""

ADMISSION_STEPS = 3
"""Steps from one admission to the next: the server's default."""

NO_LIMIT = 10**9


class Silent:
    """An observer that looks away."""

    def encoded(self, rows: int, tokens: int, padding: int) -> None:
        """Nothing."""

    def stepped(self, rows: int, seconds: float) -> None:
        """Nothing."""

    def failed(self, run: Run, cause: Cause) -> None:
        """Nothing."""

    def wasted(self, tokens: int) -> None:
        """Nothing."""

    def finished(self, sequence: Sequence) -> None:
        """Nothing."""


class Offline:
    """Runs sources through an engine of one lane a runner, each of `rows` rows.

    Several engines may use the same runners, one after another.
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
        """Log-probabilities are made only if `scored`."""
        limits = BatchLimits(rows, NO_LIMIT, ENCODE_TOKENS, NO_LIMIT, NO_LIMIT, ADMISSION_STEPS)
        self._rules = rules
        self._scored = scored
        told = observer or Silent()
        self._engine = Engine(runners, limits, rules.end_ids, told, forced_end_id=rules.forced_end_id)
        self._engine.start()

    def run(
        self, sources: Row[Source], limits: Row[int] | None = None, prompts: Row[Row[int]] | None = None
    ) -> list[Sequence]:
        """Decode all of `sources`, at most `limits` tokens each, and return them in their order.

        Without `limits`, those of the decoding rules hold; without `prompts`, each begins with the start token alone.
        Raises what made a sequence fail.
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
        """The same without waiting; `done` is called on the engine's thread with each that has finished."""
        most = [self._rules.output_limit(len(source)) for source in sources] if limits is None else limits
        begun = [(self._rules.start_id,)] * len(sources) if prompts is None else prompts
        sequences = [
            Sequence(tuple(source), tuple(prompt), limit, done, scored=self._scored)
            for source, prompt, limit in zip(sources, begun, most, strict=True)
        ]
        self._engine.submit(sequences)
        return sequences

    def close(self) -> None:
        """End the engine's thread; the runners are free again."""
        self._engine.stop()

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `close`."""
        self.close()
