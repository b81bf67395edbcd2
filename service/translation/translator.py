"""Text in, text or vectors out: the whole of a call, whatever transport brings it.

check        numbers and names, and how many characters there are
read         text to tokens, off the event loop where there is much of it
fly          through the engine, all texts of the call at once
write        tokens to text
"""

import asyncio
import time
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle.manifest import Manifest
from dragoman.bundle.rules import DecodingRules
from dragoman.bundle.tokenizers import Tokenizer
from dragoman.client.values import (
    Embedding,
    EmbedResult,
    FinishReason,
    Pooling,
    Timings,
    Token,
    TranslateResult,
    Translation,
)
from dragoman.service.engine.engine import Engine
from dragoman.service.engine.sequence import Finish, Sequence
from dragoman.service.errors import InvalidRequestError, ModelFailedError, TooLateError, quoted
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.languages import resolve_language
from dragoman.service.translation.pending import PendingCalls, SequenceSpec
from dragoman.service.translation.pooling import pool
from dragoman.service.translation.source_reader import Pair, Source, SourceLimits, SourceReader

MAX_INLINE_CHARACTERS = 4096
"""From here on, text is tokenized on another thread."""

MAX_INLINE_TOKENS = 4096
"""From here on, output is turned into text on another thread."""

BYTES_PER_NUMBER = 4

FINISH_REASONS: dict[Finish | None, FinishReason] = {
    Finish.END: FinishReason.END,
    Finish.LENGTH: FinishReason.LENGTH,
    Finish.REPETITION: FinishReason.REPETITION,
}

T = TypeVar("T")


@dataclass(frozen=True)
class CallLimits:
    """What one call may bring, and take away, beside what the model itself can do."""

    texts: int
    answer_bytes: int
    """The vectors of one answer, together."""


class Translator:
    """One model's answers."""

    def __init__(
        self, manifest: Manifest, tokenizer: Tokenizer, engine: Engine, limits: CallLimits, metrics: ModelMetrics
    ) -> None:
        self._manifest = manifest
        self._tokenizer = tokenizer
        self._engine = engine
        self._pending = PendingCalls(engine)
        self._limits = limits
        self._metrics = metrics
        rules = manifest.decoding
        self._reader = SourceReader(
            tokenizer, SourceLimits(limits.texts, manifest.max_source_characters, rules.max_source_tokens)
        )

    async def translate(
        self,
        texts: Row[str],
        *,
        source_language: str = "",
        target_language: str = "",
        max_output_tokens: int = 0,
        truncate: bool = False,
        scores: bool = True,
        seconds_left: float | None = None,
    ) -> TranslateResult:
        """Translate each text by itself, in their order; a model without a decoder refuses.

        `max_output_tokens` of 0 means the model's own limit, and one beyond that limit means no more; `seconds_left`
        is what the caller still waits. Raises ServiceError.
        """
        if not self._manifest.translates:
            raise InvalidRequestError("model", f"{quoted(self._manifest.name)} has no decoder: it only embeds")
        deadline = self._deadline(seconds_left)
        pair = Pair(*self.languages(source_language, target_language))
        check_output_limit(max_output_tokens)
        self._reader.check(texts, truncate)
        self._pending.check(max(map(self._reader.likely_tokens, texts)), deadline)
        sources, tokenize_seconds = await self._read(texts, truncate, pair, False, deadline)
        rules, prompt = self._manifest.decoding, self._tokenizer.prompt(pair.target)
        specs = [
            SequenceSpec(
                index, source.ids, prompt, rules.output_limit(len(source.ids), max_output_tokens or None), scores
            )
            for index, source in enumerate(sources)
            if not source.blank
        ]
        sequences = await self._pending.run(specs, deadline, _leave_alone)
        started = time.monotonic()
        outputs = await self._write(sequences)
        self._metrics.translated(len(texts), pair.target, time.monotonic() - started)
        found = {spec.index: out for spec, out in zip(specs, zip(sequences, outputs, strict=True), strict=True)}
        return TranslateResult(
            translations=tuple(
                _translation(source, *found[index]) if index in found else _blank(source)
                for index, source in enumerate(sources)
            ),
            model=self._manifest.name,
            model_version=self._manifest.version,
            timings=_timings(sequences, tokenize_seconds),
        )

    async def embed(
        self,
        texts: Row[str],
        *,
        source_language: str = "",
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        truncate: bool = False,
        seconds_left: float | None = None,
    ) -> EmbedResult:
        """Turn each text into a vector, or with `Pooling.NONE` each of its tokens; a blank one is its end token alone.

        What is None is as the model's checkpoint has it. `seconds_left` is what the caller still waits. Raises
        ServiceError.
        """
        usual = self._manifest.embedding
        pooling = Pooling(usual.pooling) if pooling is None else pooling
        normalize = usual.normalize if normalize is None else normalize
        deadline = self._deadline(seconds_left)
        pair = Pair(*self.languages(source_language, None))
        self._reader.check(texts, truncate)
        self._pending.check(0, deadline)
        sources, tokenize_seconds = await self._read(texts, truncate, pair, pooling is Pooling.NONE, deadline)
        self._check_answer(sources, pooling)
        vectors: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(sources)

        def pool_one(place: int, sequence: Sequence) -> None:
            # At once, so that the states of a long call are not all kept till its end.
            states, sequence.states = sequence.states, None
            if not np.isfinite(states).all():
                raise ModelFailedError(place, "the encoder's states are not finite")
            vectors[place] = pool(states, pooling, normalize)

        specs = [SequenceSpec(index, source.ids, (), 0) for index, source in enumerate(sources)]
        sequences = await self._pending.run(specs, deadline, pool_one)
        self._metrics.embedded(len(texts))
        return EmbedResult(
            embeddings=tuple(map(_embedding, sources, vectors)),
            dimension=self._manifest.dimensions.d_model,
            model=self._manifest.name,
            model_version=self._manifest.version,
            timings=_timings(sequences, tokenize_seconds),
        )

    def languages(self, source: str, target: str | None) -> tuple[str, ...]:
        """The model's own names for the languages of a call, with no `target` for the one alone.

        Raises UnknownLanguageError.
        """
        native, manifest = self._tokenizer.native_codes, self._manifest
        read = resolve_language("source_language", source, manifest.source_languages, native)
        if target is None:
            return (read,)
        return (read, resolve_language("target_language", target, manifest.target_languages, native))

    def fail_all(self, reason: str) -> None:
        """Answer every call that waits for the engine with ModelHungError."""
        self._pending.fail_all(reason)

    def _deadline(self, seconds_left: float | None) -> float | None:
        """By the engine's clock."""
        return None if seconds_left is None else self._engine.clock() + seconds_left

    def _late(self, deadline: float | None) -> bool:
        return deadline is not None and self._engine.clock() >= deadline

    async def _read(
        self, texts: Row[str], truncate: bool, pair: Pair, offsets: bool, deadline: float | None
    ) -> tuple[list[Source], float]:
        """The sources of a call that is still worth the work, and the seconds that reading took."""
        started = time.monotonic()

        def read(given_up: Callable[[], bool]) -> list[Source]:
            return self._reader.read(texts, truncate, pair, offsets, lambda: given_up() or self._late(deadline))

        sources = await _aside(sum(map(len, texts)) > MAX_INLINE_CHARACTERS, read)
        if self._late(deadline):
            raise TooLateError
        seconds = time.monotonic() - started
        self._metrics.tokenized(seconds)
        return sources, seconds

    async def _write(self, sequences: Row[Sequence]) -> list[str]:
        """The text of each output."""
        rules = self._manifest.decoding

        def write(given_up: Callable[[], bool]) -> list[str]:
            return [self._tokenizer.decode(_spoken(sequence, rules)) for sequence in sequences if not given_up()]

        return await _aside(sum(len(sequence.tokens) for sequence in sequences) > MAX_INLINE_TOKENS, write)

    def _check_answer(self, sources: Row[Source], pooling: Pooling) -> None:
        vectors = sum(len(source.ids) for source in sources) if pooling is Pooling.NONE else len(sources)
        size = vectors * self._manifest.dimensions.d_model * BYTES_PER_NUMBER
        if size > self._limits.answer_bytes:
            limit = self._limits.answer_bytes
            raise InvalidRequestError("texts", f"would be answered by {size} bytes of vectors, the limit is {limit}")


def check_output_limit(max_output_tokens: int) -> None:
    """Raise InvalidRequestError where a call asks for less than no output."""
    if max_output_tokens < 0:
        raise InvalidRequestError("max_output_tokens", f"must be at least 0, is {max_output_tokens}")


async def _aside(much: bool, work: Callable[[Callable[[], bool]], T]) -> T:
    """The result of `work`, done on another thread if it is `much`; it is told when the caller has gone."""
    given_up = False
    if not much:
        return work(lambda: given_up)
    try:
        return await asyncio.to_thread(work, lambda: given_up)
    except asyncio.CancelledError:
        given_up = True
        raise


def _leave_alone(place: int, sequence: Sequence) -> None:
    """Nothing to do for an output until all are there."""


def _spoken(sequence: Sequence, rules: DecodingRules) -> list[int]:
    """The output without its end token."""
    ended = bool(sequence.tokens) and sequence.tokens[-1] in rules.end_ids
    return sequence.tokens[:-1] if ended else sequence.tokens


def _translation(source: Source, sequence: Sequence, text: str) -> Translation:
    return Translation(
        text=text,
        finish_reason=FINISH_REASONS[sequence.finish],
        source_truncated=source.truncated,
        source_tokens=len(source.ids),
        output_tokens=len(sequence.tokens),
        score=sequence.log_prob / sequence.chosen if sequence.scored and sequence.chosen else None,
    )


def _blank(source: Source) -> Translation:
    return Translation("", FinishReason.END, source.truncated, source_tokens=0, output_tokens=0, score=None)


def _embedding(source: Source, values: NDArray[np.float32]) -> Embedding:
    tokens = tuple(Token(piece.id, piece.start, piece.end) for piece in source.pieces)
    return Embedding(values, tokens, source.truncated, len(source.ids))


def _timings(sequences: Row[Sequence], tokenize_seconds: float) -> Timings:
    times = [sequence.times for sequence in sequences]
    return Timings(
        queue_seconds=max((each.admitted - each.submitted for each in times), default=0.0),
        tokenize_seconds=tokenize_seconds,
        encode_seconds=max((each.encoded - each.admitted for each in times), default=0.0),
        decode_seconds=max((each.finished - each.encoded for each in times if each.first_token), default=0.0),
    )
