"""By which models a call goes, where a third language may lie between."""

import pytest

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.service.errors import InvalidRequestError, NoSuchPairError, UnknownModelError
from dragoman.service.translation.pivot import route
from tests.unit.service.translation.test_routing import EN_DE, EN_FR, Offered, model

FR_EN = model("fr-en", "fr", "en")
MANY_EN = model("many-en", "it es", "en")
EMBEDS = model("embeds", "de", "")
ALL = [EN_FR, EN_DE, FR_EN, MANY_EN, EMBEDS]


@pytest.mark.parametrize(
    ("source", "target", "models"),
    [
        ("en", "de", [EN_DE]),
        ("fr", "de", [FR_EN, EN_DE]),
        ("fr_CA", "de-AT", [FR_EN, EN_DE]),
        ("es", "fr", [MANY_EN, EN_FR]),
    ],
)
def test_two_models_go_together_where_none_goes_alone(source: str, target: str, models: list[Offered]) -> None:
    assert list(route(ALL, "", source, target, "en")) == models


@pytest.mark.parametrize(
    ("source", "target", "pivot"),
    [
        ("fr", "de", ""),
        ("fr", "de", "it"),
        ("fr", "xx", "en"),
        ("xx", "de", "en"),
        ("", "xx", "en"),
        ("de", "fr", "en"),
        ("en", "en", "en"),
        ("fr", "fr", "en"),
    ],
)
def test_and_otherwise_the_call_is_refused_as_without_a_pivot(source: str, target: str, pivot: str) -> None:
    with pytest.raises(NoSuchPairError, match="is not offered"):
        route(ALL, "", source, target, pivot)


def test_a_language_left_out_is_not_guessed_for_two_models() -> None:
    models = [FR_EN, EN_DE, model("en-es", "en", "es")]
    assert route(models, "", "", "de", "en") == (EN_DE,)
    with pytest.raises(NoSuchPairError):
        route([model("fr-many", "fr", "en it"), EN_DE], "", "fr", "", "en")


def test_there_is_nothing_between_a_language_and_itself() -> None:
    rewrites = model("rewrites", "en", "en")
    with pytest.raises(NoSuchPairError):
        route([rewrites, FR_EN], "", "en", "de", "en")
    with pytest.raises(NoSuchPairError):
        route([rewrites, EN_DE], "", "xx", "en", "en")


def test_a_named_model_is_the_one() -> None:
    assert route(ALL, "en-de", "fr", "de", "en") == (EN_DE,)
    with pytest.raises(UnknownModelError):
        route(ALL, "nope", "fr", "de", "en")


def test_several_models_for_one_half_of_the_way_are_told() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        route([*ALL, model("fr-en-big", "fr", "en")], "", "fr", "de", "en")
    assert str(caught.value) == (
        "target_language 'de' from 'fr' is offered through 'en' alone, by several models: fr-en, fr-en-big"
    )


def test_a_model_of_unknown_languages_goes_alone() -> None:
    unknown = model("unknown", UNDETERMINED, UNDETERMINED)
    assert route([*ALL, unknown], "", "fr", "de", "en") == (unknown,)
