"""Chooses the model, or the two models, for a call among those that the server has loaded."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.client.values import ModelInfo, TranslateResult
from dragoman.service.errors import (
    InvalidRequestError,
    NoSuchPairError,
    UnknownLanguageError,
    UnknownModelError,
    quoted,
)
from dragoman.service.translation.options import TranslateOptions
from dragoman.service.translation.pivot import PivotTranslator
from dragoman.service.translation.served_model import ServedModel


class TextTranslator(Protocol):
    """Translates the texts of one call: a ServedModel by itself, or a PivotTranslator with two."""

    async def translate(
        self, texts: Sequence[str], options: TranslateOptions, seconds_left: float | None = None
    ) -> TranslateResult:
        """As `Translator.translate`."""


def route_translation(
    models: Sequence[ServedModel], name: str, source: str, target: str, pivot: str = ""
) -> TextTranslator:
    """The translator for a call: a model named or matched by its languages, else two models through `pivot`.

    A call that names its model, or omits a language, never goes through the pivot; nor does any with `pivot` "". Raises
    as `translation_model`, and InvalidRequestError where several models qualify for one of the two legs.
    """
    try:
        return translation_model(models, name, source, target)
    except NoSuchPairError:
        legs = _legs(models, source, target, pivot) if pivot and source and target else None
        if legs is None:
            raise
        return PivotTranslator(*legs, pivot)


def translation_model(models: Sequence[ServedModel], name: str, source: str, target: str) -> ServedModel:
    """The model called `name`, else the only one, else the one that translates from `source` to `target`.

    A model that names the languages is preferred to one of undetermined languages. Raises UnknownModelError where
    `name` is not loaded or several models qualify, and NoSuchPairError where none does.
    """
    model = _named_or_only(name, models)
    if model is not None:
        return model
    able = [model for model in models if model.info.target_languages]
    return _best([(model, _languages(model, source, target)) for model in able], source, target)


def embedding_model(models: Sequence[ServedModel], name: str, source: str) -> ServedModel:
    """The model called `name`, else the only one, else the one that reads `source`. Raises as `translation_model`."""
    model = _named_or_only(name, models)
    if model is not None:
        return model
    return _best([(model, _languages(model, source, None)) for model in models], source, None)


def _named_or_only(name: str, models: Sequence[ServedModel]) -> ServedModel | None:
    """None where no name decides between several. Raises UnknownModelError."""
    if not name:
        return models[0] if len(models) == 1 else None
    for model in models:
        if model.info.name == name:
            return model
    raise UnknownModelError(name, sorted(model.info.name for model in models))


def _languages(model: ServedModel, source: str, target: str | None) -> tuple[str, ...] | None:
    """The model's own languages for those of a call; None where it lacks one."""
    with suppress(UnknownLanguageError):
        return model.translator.languages(source, target)
    return None


def _best(
    candidates: Sequence[tuple[ServedModel, tuple[str, ...] | None]], source: str, target: str | None
) -> ServedModel:
    fit = [(model, languages) for model, languages in candidates if languages is not None]
    fit = [(model, languages) for model, languages in fit if UNDETERMINED not in languages] or fit
    if len(fit) == 1:
        return fit[0][0]
    if fit:
        raise UnknownModelError("", sorted(model.info.name for model, _ in fit))
    raise NoSuchPairError(source, target, [_described(model.info, target is not None) for model, _ in candidates])


def _described(info: ModelInfo, translates: bool) -> str:
    languages = (info.source_languages, info.target_languages) if translates else (info.source_languages,)
    return f"{info.name} ({' to '.join('/'.join(each) for each in languages)})"


def _legs(
    models: Sequence[ServedModel], source: str, target: str, pivot: str
) -> tuple[ServedModel, ServedModel] | None:
    """The models into `pivot` and out of it; None where one is lacking, or two of the three languages are the same."""
    try:
        first = translation_model(models, "", source, pivot)
        second = translation_model(models, "", pivot, target)
    except NoSuchPairError:
        return None
    except UnknownModelError as error:
        pair = f"{quoted(target)} from {quoted(source)}"
        fault = f"{pair} is offered only through {quoted(pivot)}, by several models: {error.offered}"
        raise InvalidRequestError("target_language", fault) from error
    first_source, first_target = first.translator.languages(source, pivot)
    second_source, second_target = second.translator.languages(pivot, target)
    distinct = first_source != first_target and second_source != second_target and first_source != second_target
    return (first, second) if distinct else None
