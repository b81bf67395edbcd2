import pytest

from dragoman.service.errors import UnknownLanguageError
from dragoman.service.languages import resolve_language


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("fr", "fr"),
        ("FR", "fr"),
        ("fr-FR", "fr"),
        ("fr_FR", "fr"),
        ("fr-Latn-CA", "fr"),
        ("pt-br", "pt-BR"),
        ("pt_BR", "pt-BR"),
        ("pt-BR-x-old", "pt-BR"),
        ("zh-Hans-CN", "zh-Hans"),
    ],
)
def test_a_language_is_found_by_case_script_and_region(asked: str, meant: str) -> None:
    assert resolve_language("target_language", asked, ("de", "fr", "pt-BR", "zh-Hans")) == meant


def test_the_only_language_need_not_be_named() -> None:
    assert resolve_language("source_language", "", ("en",)) == "en"


def test_one_of_several_must_be_named() -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", "", ("de", "fr"))
    assert str(caught.value) == "target_language is missing; this model has de, fr"


@pytest.mark.parametrize("asked", ["xx", "f", "fra", "-", "fr fr", "pt", " fr"])
def test_an_unknown_language_is_told_what_there_is(asked: str) -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", asked, ("fr", "pt-BR"))
    assert caught.value.field == "target_language"
    assert str(caught.value) == f"target_language '{asked}' is not known; this model has fr, pt-BR"


def test_megabytes_of_subtags_are_no_work() -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", "x-" * 2_000_000, ("fr",))
    assert len(str(caught.value)) < 120
