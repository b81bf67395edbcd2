"""The models that a server answers with, and which of them a call means."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.client.values import ModelInfo
from dragoman.service.errors import NoSuchPairError, UnknownLanguageError, UnknownModelError


class LanguageResolver(Protocol):
    """A translator as far as a choice between models goes."""

    def languages(self, source: str, target: str | None) -> tuple[str, ...]:
        """See `Translator.languages`."""


class RoutableModel(Protocol):
    """A model that may be chosen."""

    @property
    def info(self) -> ModelInfo:
        """What it is."""

    @property
    def translator(self) -> LanguageResolver:
        """Knows its languages."""


Model = TypeVar("Model", bound=RoutableModel)


def chosen(name: str, models: Sequence[Model]) -> Model | None:
    """The model called `name`, or the only one there is; None where no name says which. Raises UnknownModelError."""
    if not name and len(models) == 1:
        return models[0]
    if not name:
        return None
    for model in models:
        if model.info.name == name:
            return model
    raise UnknownModelError(name, sorted(model.info.name for model in models))


def for_translation(models: Sequence[Model], name: str, source: str, target: str) -> Model:
    """The model that a Translate call means: the one it names, else the one that goes from `source` to `target`.

    A model that knows the languages by name is preferred to one whose languages nobody knows. Raises UnknownModelError
    where several are left, and NoSuchPairError where none is.
    """
    model = chosen(name, models)
    if model is not None:
        return model
    able = [model for model in models if model.info.target_languages]
    return _only([(model, _pair(model, source, target)) for model in able], source, target)


def for_embedding(models: Sequence[Model], name: str, source: str) -> Model:
    """The model that an Embed call means: the one it names, else the one that reads `source`. Raises the same."""
    model = chosen(name, models)
    if model is not None:
        return model
    return _only([(model, _pair(model, source, None)) for model in models], source, None)


def _pair(model: RoutableModel, source: str, target: str | None) -> tuple[str, ...] | None:
    """The model's own languages for those that are asked for; None where it lacks one."""
    with suppress(UnknownLanguageError):
        return model.translator.languages(source, target)
    return None


def _only(pairs: Sequence[tuple[Model, tuple[str, ...] | None]], source: str, target: str | None) -> Model:
    fit = [(model, pair) for model, pair in pairs if pair is not None]
    fit = [(model, pair) for model, pair in fit if UNDETERMINED not in pair] or fit
    if len(fit) == 1:
        return fit[0][0]
    if fit:
        raise UnknownModelError("", sorted(model.info.name for model, _ in fit))
    raise NoSuchPairError(source, target, [_described(model.info, target is not None) for model, _ in pairs])


def _described(info: ModelInfo, translates: bool) -> str:
    languages = (info.source_languages, info.target_languages) if translates else (info.source_languages,)
    return f"{info.name} ({' to '.join('/'.join(each) for each in languages)})"
