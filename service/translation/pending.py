"""Runs the sequences of a call on the engine's threads, and awaits them together on the event loop."""

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Row
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dragoman.service.engine.engine import Engine
from dragoman.service.engine.runner import MemoryRefusedError
from dragoman.service.engine.sequence import Finish, QueueFullError, Sequence, StoppedError
from dragoman.service.errors import (
    DeadlineExceededError,
    DeadlineUnreachableError,
    ModelFailedError,
    ModelHungError,
    NoMemoryError,
    NotServingError,
    OverloadedError,
)

DEADLINE_SLACK_SECONDS = 0.1
"""How long before the deadline on the engine's clock gRPC may already end a call."""


@dataclass(frozen=True)
class SequenceSpec:
    """Work for the engine: one text as tokens. Fields without a docstring are as in Sequence."""

    index: int
    """Index of the text in the request; errors name it."""
    source: tuple[int, ...]
    prompt: tuple[int, ...]
    """Empty if `max_output` is 0."""
    max_output: int
    """As in Sequence; 0 requests the encoder's states instead of an output."""
    scored: bool = True


OnResult = Callable[[int, Sequence], None]
"""Receives each sequence that succeeds, with its index among the specs; runs on the event loop."""


class PendingCalls:
    """The calls in progress on one engine. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: set[_PendingCall] = set()

    async def run(self, specs: Row[SequenceSpec], deadline: float | None, on_result: OnResult) -> list[Sequence]:
        """Run `specs`, and return their sequences in the same order.

        `deadline` is on the engine's clock. The first failure fails the call and cancels its other sequences; so does
        cancellation by the caller. Raises OverloadedError, NotServingError, DeadlineExceededError or ModelFailedError,
        and any error of `on_result`.
        """
        if not specs:
            return []
        call = _PendingCall(specs, on_result)
        sequences = [
            Sequence(spec.source, spec.prompt, spec.max_output, partial(call.done, index), deadline, spec.scored)
            for index, spec in enumerate(specs)
        ]
        _submit(self._engine, sequences)
        self._pending.add(call)
        try:
            await call.ended
        except BaseException:
            # Past the deadline the engine drops them itself, and counts them as late rather than cancelled.
            if deadline is None or self._engine.clock() < deadline - DEADLINE_SLACK_SECONDS:
                for sequence in sequences:
                    sequence.cancel()
            raise
        finally:
            self._pending.discard(call)
        return sequences

    def check(self, source_tokens: float, deadline: float | None) -> None:
        """Raise DeadlineUnreachableError if a text of about `source_tokens`, 0 for an embedding, would be late."""
        self._engine.check(source_tokens, deadline)

    def fail_all(self, reason: str) -> None:
        """Fail every pending call with ModelHungError, without waiting for the engine."""
        for call in self._pending:
            if not call.ended.done():
                call.ended.set_exception(ModelHungError(reason))


class _PendingCall:
    """Receives the sequences of one call from the engine's threads, on the event loop.

    Sequences refer to their call; a reference back would be a cycle.
    """

    def __init__(self, specs: Row[SequenceSpec], on_result: OnResult) -> None:
        self._specs = specs
        self._on_result = on_result
        self._loop = asyncio.get_running_loop()
        self._left = len(specs)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done once the last sequence has ended, or the first has failed."""

    def done(self, index: int, sequence: Sequence) -> None:
        """Note that the sequence of `specs[index]` has ended; called on an engine's thread."""
        # An engine that stops late may find the loop closed, and then no call is left to answer.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_done, index, sequence)

    def _on_done(self, index: int, sequence: Sequence) -> None:
        if self.ended.done():
            return
        try:
            _check(self._specs[index].index, sequence)
            self._on_result(index, sequence)
        except Exception as error:
            self.ended.set_exception(error)
            return
        self._left -= 1
        if not self._left:
            self.ended.set_result(None)


def _submit(engine: Engine, sequences: Row[Sequence]) -> None:
    try:
        engine.submit(sequences)
    except QueueFullError as error:
        raise OverloadedError(str(error)) from error
    except StoppedError as error:
        raise NotServingError(str(error)) from error


def _check(index: int, sequence: Sequence) -> None:
    """Raise the error of a sequence that did not succeed; `index` is that of its text in the request."""
    if isinstance(sequence.error, DeadlineUnreachableError):
        raise sequence.error
    if sequence.finish in (Finish.DEADLINE, Finish.CANCELLED):
        raise DeadlineExceededError
    if sequence.finish is not Finish.FAILED:
        return
    if isinstance(sequence.error, StoppedError):
        raise NotServingError(str(sequence.error)) from sequence.error
    if isinstance(sequence.error, MemoryRefusedError):
        raise NoMemoryError(index) from sequence.error
    fault = str(sequence.error) if isinstance(sequence.error, ArithmeticError) else "the runtime raised an error"
    raise ModelFailedError(index, fault) from sequence.error
