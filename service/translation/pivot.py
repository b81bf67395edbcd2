"""Translates through a pivot language with two models, for a pair of languages that no single model covers."""

import time
from collections.abc import Sequence
from dataclasses import replace

from dragoman.client.values import FinishReason, Pivot, Timings, TranslateResult, Translation
from dragoman.service.errors import InvalidRequestError, TooLongError, quoted
from dragoman.service.translation.options import TranslateOptions
from dragoman.service.translation.served_model import ServedModel


class TooLongBetweenError(InvalidRequestError):
    """A text whose translation into the pivot language is longer than the second model can read."""

    # The first model has already worked on it.
    refusal = None

    def __init__(self, error: TooLongError, pivot: str) -> None:
        super().__init__(error.field, f"in {quoted(pivot)} {error.fault}")


class PivotTranslator:
    """Two models in a row: the first translates into the pivot language, the second out of it."""

    def __init__(self, first: ServedModel, second: ServedModel, pivot: str) -> None:
        """`pivot` is the language in between: a target of `first` and a source of `second`."""
        self.first = first
        self.second = second
        self._pivot = pivot

    async def translate(
        self, texts: Sequence[str], options: TranslateOptions, seconds_left: float | None = None
    ) -> TranslateResult:
        """As `Translator.translate`, with both models bound by the caller's deadline.

        `max_output_tokens` limits the second model alone; `truncate` and `scores` apply to both. Raises ServiceError,
        and NotServingError before any work unless both models serve.
        """
        options.check()
        into = replace(options, target_language=self._pivot, max_output_tokens=0)
        out_of = replace(options, source_language=self._pivot)
        # Both from the start: neither model may be retired between the two legs.
        with self.first.lifecycle, self.second.lifecycle:
            started = time.monotonic()
            between = await self.first.translator.translate(texts, into, seconds_left)
            if seconds_left is not None:
                seconds_left -= time.monotonic() - started
            try:
                result = await self.second.translator.translate(between.texts, out_of, seconds_left)
            except TooLongError as error:
                raise TooLongBetweenError(error, self._pivot) from error
        return replace(
            result,
            translations=tuple(map(_joined, between.translations, result.translations)),
            timings=_sum(between.timings, result.timings),
            pivot=Pivot(self._pivot, between.model, between.model_version, between.translations),
        )


def _joined(first: Translation, second: Translation) -> Translation:
    """The outcome of one text over both legs."""
    ended = second.finish_reason is FinishReason.END
    return replace(
        second,
        finish_reason=first.finish_reason if ended else second.finish_reason,
        source_truncated=first.source_truncated or second.source_truncated,
        source_tokens=first.source_tokens,
    )


def _sum(first: Timings, second: Timings) -> Timings:
    return Timings(
        queue_seconds=first.queue_seconds + second.queue_seconds,
        tokenize_seconds=first.tokenize_seconds + second.tokenize_seconds,
        encode_seconds=first.encode_seconds + second.encode_seconds,
        decode_seconds=first.decode_seconds + second.decode_seconds,
    )
