"""Which of several models a call means."""

import dataclasses
from dataclasses import dataclass

import pytest

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.client.values import ModelInfo
from dragoman.service.errors import NoSuchPairError, UnknownModelError
from dragoman.service.translation.languages import resolve_language
from dragoman.service.translation.routing import for_embedding, for_translation

INFO = ModelInfo("en-fr", "0123", "transformer", ("en",), ("fr",), "float32", "CPUExecutionProvider", 1, 1, 1, 1, 2)


@dataclass(frozen=True)
class Languages:
    """The part of a Translator that tells its languages."""

    info: ModelInfo

    def languages(self, source: str, target: str | None) -> tuple[str, ...]:
        read = resolve_language("source_language", source, self.info.source_languages)
        if target is None:
            return (read,)
        return (read, resolve_language("target_language", target, self.info.target_languages))


@dataclass(frozen=True)
class Offered:
    info: ModelInfo

    @property
    def translator(self) -> Languages:
        return Languages(self.info)


def model(name: str, sources: str, targets: str) -> Offered:
    return Offered(
        dataclasses.replace(
            INFO, name=name, source_languages=tuple(sources.split()), target_languages=tuple(targets.split())
        )
    )


EN_FR = model("en-fr", "en", "fr")
EN_DE = model("en-de", "en", "de")
MANY = model("many", "fr de it", "en es")
EMBEDS = model("embeds", UNDETERMINED, "")
ALL = [EN_FR, EN_DE, MANY, EMBEDS]


@pytest.mark.parametrize(
    ("name", "source", "target", "meant"),
    [
        ("en-de", "", "", EN_DE),
        ("embeds", "en", "fr", EMBEDS),
        ("", "en", "fr", EN_FR),
        ("", "en-US", "fr_CA", EN_FR),
        ("", "", "de", EN_DE),
        ("", "it", "es", MANY),
    ],
)
def test_a_model_is_meant_by_its_name_or_by_its_languages(name: str, source: str, target: str, meant: Offered) -> None:
    assert for_translation(ALL, name, source, target) is meant


def test_the_only_model_is_meant_whatever_the_languages_are() -> None:
    assert for_translation([EN_FR], "", "xx", "yy") is EN_FR
    assert for_embedding([EN_FR], "", "xx") is EN_FR


def test_a_pair_that_nobody_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(NoSuchPairError) as caught:
        for_translation(ALL, "", "fr", "de")
    assert str(caught.value) == (
        "target_language 'de' from 'fr' is not offered; this server has "
        "en-fr (en to fr), en-de (en to de), many (fr/de/it to en/es)"
    )


def test_what_two_models_offer_must_be_named() -> None:
    with pytest.raises(UnknownModelError, match=r"^model is missing; this server has en-fr, en-fr-big$"):
        for_translation([EN_FR, EN_DE, model("en-fr-big", "en", "fr")], "", "en", "fr")


def test_an_unknown_name_lists_the_models() -> None:
    with pytest.raises(UnknownModelError, match=r"^model 'nope' is not known; this server has embeds, en-de, en-fr, m"):
        for_translation(ALL, "nope", "en", "fr")


def test_embedding_goes_by_the_language_that_is_read() -> None:
    assert for_embedding(ALL, "", "it") is MANY
    assert for_embedding([EN_FR, EMBEDS], "", "de") is EMBEDS, "it reads whatever nobody else is known to read"
    with pytest.raises(UnknownModelError, match=r"^model is missing; this server has en-de, en-fr$"):
        for_embedding(ALL, "", "en")
    with pytest.raises(NoSuchPairError, match=r"^source_language 'xx' is read by no model; this server has en-fr"):
        for_embedding([EN_FR, EN_DE], "", "xx")
