"""Translates or embeds the texts of one call with one model, independent of the transport.

check        options, languages, number and length of the texts, and the forecast against the deadline
read         text to tokens; a large call on another thread
run          through the engine, all texts of the call at once
write        tokens to text, or states to vectors
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
from dragoman.service.errors import DeadlineExceededError, InvalidRequestError, ModelFailedError, quoted
from dragoman.service.telemetry.recorders import ModelMetrics
from dragoman.service.translation.languages import resolve_language
from dragoman.service.translation.options import EmbedOptions, TranslateOptions
from dragoman.service.translation.pending import PendingCalls, SequenceSpec
from dragoman.service.translation.pooling import pool
from dragoman.service.translation.source_reader import Pair, Source, SourceLimits, SourceReader

MAX_INLINE_CHARACTERS = 4096
"""Calls with more text are tokenized on another thread."""

MAX_INLINE_TOKENS = 4096
"""Calls with more output are detokenized on another thread."""

FLOAT_BYTES = 4

FINISH_REASONS: dict[Finish | None, FinishReason] = {
    Finish.END: FinishReason.END,
    Finish.LENGTH: FinishReason.LENGTH,
    Finish.REPETITION: FinishReason.REPETITION,
}

T = TypeVar("T")


@dataclass(frozen=True)
class CallSizeLimits:
    """Bounds on one call that the operator sets, beside the model's own limits."""

    texts: int
    """Texts per call."""
    answer_bytes: int
    """Bytes of all vectors in one answer."""


class Translator:
    """Translates and embeds texts with one model. Belongs to one event loop."""

    def __init__(
        self, manifest: Manifest, tokenizer: Tokenizer, engine: Engine, limits: CallSizeLimits, metrics: ModelMetrics
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
        self, texts: Row[str], options: TranslateOptions, seconds_left: float | None = None
    ) -> TranslateResult:
        """Translate each text by itself; results are in the order of `texts`.

        `seconds_left` is the time to the caller's deadline. Raises ServiceError: InvalidRequestError also where the
        model only embeds.
        """
        if not self._manifest.translates:
            raise InvalidRequestError("model", f"{quoted(self._manifest.name)} has no decoder: it only embeds")
        deadline = self._deadline(seconds_left)
        pair = Pair(*self.languages(options.source_language, options.target_language))
        options.check()
        self._reader.check(texts, options.truncate)
        self._pending.check(max(map(self._reader.likely_tokens, texts)), deadline)
        sources, tokenize_seconds = await self._read(texts, options.truncate, pair, False, deadline)
        specs = self._specs(sources, pair, options)
        sequences = await self._pending.run(specs, deadline, _do_nothing)
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

    async def embed(self, texts: Row[str], options: EmbedOptions, seconds_left: float | None = None) -> EmbedResult:
        """Turn each text into a vector, or with `Pooling.NONE` each of its tokens; a blank text is its end token alone.

        `seconds_left` is the time to the caller's deadline. Raises ServiceError.
        """
        defaults = self._manifest.embedding
        pooling = Pooling(defaults.pooling) if options.pooling is None else options.pooling
        normalize = defaults.normalize if options.normalize is None else options.normalize
        deadline = self._deadline(seconds_left)
        pair = Pair(*self.languages(options.source_language, None))
        self._reader.check(texts, options.truncate)
        self._pending.check(0, deadline)
        sources, tokenize_seconds = await self._read(texts, options.truncate, pair, pooling is Pooling.NONE, deadline)
        self._check_answer(sources, pooling)
        vectors: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(sources)

        def pool_one(index: int, sequence: Sequence) -> None:
            # At once, so that the states of a long call are not all kept until its end.
            states, sequence.states = sequence.states, None
            if not np.isfinite(states).all():
                raise ModelFailedError(index, "the encoder's states are not finite")
            vectors[index] = pool(states, pooling, normalize)

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
        """The model's own languages for those of a call: source and target, or the source alone if `target` is None.

        Raises UnknownLanguageError.
        """
        native, manifest = self._tokenizer.native_codes, self._manifest
        own_source = resolve_language("source_language", source, manifest.source_languages, native)
        if target is None:
            return (own_source,)
        return (own_source, resolve_language("target_language", target, manifest.target_languages, native))

    def fail_all(self, reason: str) -> None:
        """Fail every call in the engine with ModelHungError."""
        self._pending.fail_all(reason)

    def _deadline(self, seconds_left: float | None) -> float | None:
        """The deadline on the engine's clock."""
        return None if seconds_left is None else self._engine.clock() + seconds_left

    def _expired(self, deadline: float | None) -> bool:
        return deadline is not None and self._engine.clock() >= deadline

    async def _read(
        self, texts: Row[str], truncate: bool, pair: Pair, offsets: bool, deadline: float | None
    ) -> tuple[list[Source], float]:
        """The sources of a call, and the seconds that reading took.

        Raises DeadlineExceededError if the deadline passes first.
        """
        started = time.monotonic()

        def read(abandoned: Callable[[], bool]) -> list[Source]:
            return self._reader.read(texts, truncate, pair, offsets, lambda: abandoned() or self._expired(deadline))

        sources = await _off_loop_if(sum(map(len, texts)) > MAX_INLINE_CHARACTERS, read)
        if self._expired(deadline):
            raise DeadlineExceededError(work_begun=False)
        seconds = time.monotonic() - started
        self._metrics.tokenized(seconds)
        return sources, seconds

    def _specs(self, sources: Row[Source], pair: Pair, options: TranslateOptions) -> list[SequenceSpec]:
        """One for each text that is not blank."""
        rules, prompt = self._manifest.decoding, self._tokenizer.prompt(pair.target)
        requested = options.max_output_tokens or None
        return [
            SequenceSpec(index, source.ids, prompt, rules.output_limit(len(source.ids), requested), options.scores)
            for index, source in enumerate(sources)
            if not source.blank
        ]

    async def _write(self, sequences: Row[Sequence]) -> list[str]:
        """The text of each output."""
        rules = self._manifest.decoding

        def write(abandoned: Callable[[], bool]) -> list[str]:
            return [self._tokenizer.decode(_without_end(sequence, rules)) for sequence in sequences if not abandoned()]

        return await _off_loop_if(sum(len(sequence.tokens) for sequence in sequences) > MAX_INLINE_TOKENS, write)

    def _check_answer(self, sources: Row[Source], pooling: Pooling) -> None:
        vectors = sum(len(source.ids) for source in sources) if pooling is Pooling.NONE else len(sources)
        size = vectors * self._manifest.dimensions.d_model * FLOAT_BYTES
        if size > self._limits.answer_bytes:
            limit = self._limits.answer_bytes
            raise InvalidRequestError("texts", f"would produce {size} bytes of vectors, the limit is {limit}")


async def _off_loop_if(large: bool, work: Callable[[Callable[[], bool]], T]) -> T:
    """The result of `work`, run on another thread if `large`.

    `work` is passed a function that returns True once the call is cancelled.
    """
    cancelled = False
    if not large:
        return work(lambda: cancelled)
    try:
        return await asyncio.to_thread(work, lambda: cancelled)
    except asyncio.CancelledError:
        cancelled = True
        raise


def _do_nothing(index: int, sequence: Sequence) -> None:
    """Outputs are detokenized together, once all are there."""


def _without_end(sequence: Sequence, rules: DecodingRules) -> list[int]:
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
