"""Checks of the settings against the models to be served, before any of them is loaded."""

from collections.abc import Sequence

from dragoman.bundle.manifest import Manifest
from dragoman.service.errors import StartupError, UnknownLanguageError
from dragoman.service.settings import ServerSettings
from dragoman.service.translation.languages import resolve_language


def check_models(settings: ServerSettings, manifests: Sequence[Manifest]) -> None:
    """Raise StartupError if a name is not unique, or if the settings name a model or pivot language that is unknown."""
    names = [manifest.name for manifest in manifests]
    for name in names:
        if names.count(name) > 1:
            raise StartupError(f"{names.count(name)} bundles have the name {name!r}; names of models must be unique")
    unknown = sorted(settings.weights.keys() - set(names))
    if unknown:
        raise StartupError(
            f"model_weights names {unknown[0]!r}, which is not served; the models are {', '.join(names)}"
        )
    if settings.pivot:
        _check_pivot(settings.pivot, manifests)


def _check_pivot(pivot: str, manifests: Sequence[Manifest]) -> None:
    known = sorted({each for one in manifests for each in (*one.source_languages, *one.target_languages)})
    try:
        resolve_language("pivot", pivot, known)
    except UnknownLanguageError as error:
        raise StartupError(
            f"pivot is {pivot!r}, a language of no model; the languages are {', '.join(known)}"
        ) from error
