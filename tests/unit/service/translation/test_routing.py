"""Choice of the model for a call by its name or its languages."""

import pytest

from dragoman.bundle.tokenizers import UNDETERMINED
from dragoman.service.errors import NoSuchPairError, UnknownModelError
from dragoman.service.translation.routing import embedding_model, translation_model
from tests.unit.service.translation.served import served_model

EN_FR = served_model("en-fr", "en", "fr")
EN_DE = served_model("en-de", "en", "de")
MANY = served_model("many", "fr de it", "en es")
EMBEDS = served_model("embeds", UNDETERMINED, "")
ALL = [EN_FR, EN_DE, MANY, EMBEDS]


@pytest.mark.parametrize(
    ("name", "source", "target", "chosen"),
    [
        ("en-de", "", "", "en-de"),
        ("embeds", "en", "fr", "embeds"),
        ("", "en", "fr", "en-fr"),
        ("", "en-US", "fr_CA", "en-fr"),
        ("", "", "de", "en-de"),
        ("", "it", "es", "many"),
    ],
)
def test_a_model_is_chosen_by_name_or_by_languages(name: str, source: str, target: str, chosen: str) -> None:
    assert translation_model(ALL, name, source, target).info.name == chosen


def test_the_only_model_is_chosen_for_any_languages() -> None:
    assert translation_model([EN_FR], "", "xx", "yy") is EN_FR
    assert embedding_model([EN_FR], "", "xx") is EN_FR


def test_an_unsupported_pair_is_refused_with_those_offered() -> None:
    with pytest.raises(NoSuchPairError) as caught:
        translation_model(ALL, "", "fr", "de")
    assert str(caught.value) == (
        "target_language 'de' from 'fr' is not offered; this server has "
        "en-fr (en to fr), en-de (en to de), many (fr/de/it to en/es)"
    )


def test_two_models_for_one_pair_need_a_name() -> None:
    with pytest.raises(UnknownModelError, match=r"^model is missing; this server has en-fr, en-fr-big$"):
        translation_model([EN_FR, EN_DE, served_model("en-fr-big", "en", "fr")], "", "en", "fr")


def test_an_unknown_name_lists_the_models() -> None:
    with pytest.raises(UnknownModelError, match=r"^model 'nope' is not known; this server has embeds, en-de, en-fr, m"):
        translation_model(ALL, "nope", "en", "fr")


def test_an_embedding_model_is_chosen_by_the_source_language() -> None:
    assert embedding_model(ALL, "", "it") is MANY
    assert embedding_model([EN_FR, EMBEDS], "", "de") is EMBEDS, "an undetermined language takes any other"
    with pytest.raises(UnknownModelError, match=r"^model is missing; this server has en-de, en-fr$"):
        embedding_model(ALL, "", "en")
    with pytest.raises(NoSuchPairError, match=r"^source_language 'xx' is read by no model; this server has en-fr"):
        embedding_model([EN_FR, EN_DE], "", "xx")
