"""Through a third language: two models one after the other, where none goes from the source to the target by itself."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from dragoman.client.values import FinishReason, Pivot, Timings, TranslateResult, Translation
from dragoman.service.errors import InvalidRequestError, NoSuchPairError, TooLongError, UnknownModelError, quoted
from dragoman.service.translation.routing import Model, for_translation
from dragoman.service.translation.served_model import ServedModel
from dragoman.service.translation.translator import Translator, check_output_limit


class TooLongBetweenError(InvalidRequestError):
    """A text that became longer in the language between than the second model can read."""

    refusal: ClassVar[str | None] = None

    def __init__(self, error: TooLongError, pivot: str) -> None:
        super().__init__(error.field, f"in {quoted(pivot)} {error.fault}")


def route(models: Sequence[Model], name: str, source: str, target: str, pivot: str) -> tuple[Model, ...]:
    """The model that a Translate call means (`for_translation`), or where there is none the two through `pivot`.

    Nothing is guessed: there is no other way for a call that names its model, or leaves out one of the languages. With
    `pivot` of "" there never is. Raises what `for_translation` does, and InvalidRequestError where several models would
    do for one half of the way.
    """
    try:
        return (for_translation(models, name, source, target),)
    except NoSuchPairError:
        legs = _legs(models, source, target, pivot) if pivot and source and target else None
        if legs is None:
            raise
        return legs


def _legs(models: Sequence[Model], source: str, target: str, pivot: str) -> tuple[Model, Model] | None:
    try:
        first = for_translation(models, "", source, pivot)
        second = for_translation(models, "", pivot, target)
    except NoSuchPairError:
        return None
    except UnknownModelError as error:
        way = f"{quoted(target)} from {quoted(source)} is offered through {quoted(pivot)} alone"
        raise InvalidRequestError("target_language", f"{way}, by several models: {error.offered}") from error
    read, between = first.translator.languages(source, pivot)
    again, written = second.translator.languages(pivot, target)
    # Where two of the three are one language, there is nothing to go through.
    return (first, second) if read != between and again != written and read != written else None


async def translate_along(
    models: Sequence[ServedModel],
    pivot: str,
    texts: Sequence[str],
    *,
    source_language: str,
    target_language: str,
    max_output_tokens: int,
    truncate: bool,
    scores: bool,
    seconds_left: float | None,
) -> TranslateResult:
    """What the one model of a route says, or its two in a row, with `pivot` between them.

    `max_output_tokens` is about what is written in the end; the rest is about both. Raises ServiceError.
    """
    ask = partial(Translator.translate, truncate=truncate, scores=scores)
    if len(models) == 1:
        with models[0].lifecycle:
            return await ask(
                models[0].translator,
                texts,
                source_language=source_language,
                target_language=target_language,
                max_output_tokens=max_output_tokens,
                seconds_left=seconds_left,
            )
    check_output_limit(max_output_tokens)
    first, second = models
    with first.lifecycle, second.lifecycle:
        started = time.monotonic()
        between = await ask(
            first.translator, texts, source_language=source_language, target_language=pivot, seconds_left=seconds_left
        )
        try:
            result = await ask(
                second.translator,
                between.texts,
                source_language=pivot,
                target_language=target_language,
                max_output_tokens=max_output_tokens,
                seconds_left=None if seconds_left is None else seconds_left - (time.monotonic() - started),
            )
        except TooLongError as error:
            raise TooLongBetweenError(error, pivot) from error
    return replace(
        result,
        translations=tuple(map(_whole, between.translations, result.translations)),
        timings=_sum(between.timings, result.timings),
        pivot=Pivot(pivot, between.model, between.model_version, between.translations),
    )


def _whole(first: Translation, second: Translation) -> Translation:
    """What came of a text, of which `first` was only half the way."""
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
