"""From asyncio to the engine's thread and back: the sequences of one call, awaited together."""

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
"""By how much gRPC may end a call before the engine's clock says that its deadline has come."""


@dataclass(frozen=True)
class SequenceSpec:
    """What is asked of the engine for one text."""

    index: int
    """Of the text in the request; errors name it."""
    source: tuple[int, ...]
    prompt: tuple[int, ...]
    max_output: int
    """As in Sequence: 0 asks for the encoder's states, and then there is no prompt."""
    scored: bool = True


OnResult = Callable[[int, Sequence], None]
"""Gets each sequence, with its place among the orders, on the event loop as it ends well."""


class PendingCalls:
    """All calls whose texts are in one engine. Belongs to one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: set[_PendingCall] = set()

    async def run(self, specs: Row[SequenceSpec], deadline: float | None, on_result: OnResult) -> list[Sequence]:
        """Run `specs`, and return their sequences in the same order.

        `deadline` is by the engine's clock. One that fails makes the call fail and takes the others with it, and so
        does cancellation by the caller. Raises OverloadedError, NotServingError, DeadlineExceededError or
        ModelFailedError, and any error of `on_result`.
        """
        if not specs:
            return []
        call = _PendingCall(specs, on_result)
        sequences = [
            Sequence(spec.source, spec.prompt, spec.max_output, partial(call.done, place), deadline, spec.scored)
            for place, spec in enumerate(specs)
        ]
        _submit(self._engine, sequences)
        self._pending.add(call)
        try:
            await call.ended
        except BaseException:
            # Past the deadline the engine drops them by itself, and can then tell lateness from a change of mind.
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
        """Make every call that waits for the engine fail with ModelHungError, whatever the engine does."""
        for call in self._pending:
            if not call.ended.done():
                call.ended.set_exception(ModelHungError(reason))


class _PendingCall:
    """The sequences of one call, from the engine's thread back onto the event loop.

    They know it, and it does not know them: that would be a cycle.
    """

    def __init__(self, specs: Row[SequenceSpec], on_result: OnResult) -> None:
        self._specs = specs
        self._on_result = on_result
        self._loop = asyncio.get_running_loop()
        self._left = len(specs)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the last one has ended, or the first one has failed."""

    def done(self, place: int, sequence: Sequence) -> None:
        """The sequence of the order in that place has ended; called on the engine's thread."""
        # The loop may be closed already when an engine stops late; then nobody waits.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_done, place, sequence)

    def _on_done(self, place: int, sequence: Sequence) -> None:
        if self.ended.done():
            return
        try:
            _check(self._specs[place].index, sequence)
            self._on_result(place, sequence)
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
    """Raise what became of a sequence, if it did not end well."""
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
