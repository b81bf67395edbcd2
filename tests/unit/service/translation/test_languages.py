import pytest

from dragoman.service.errors import UnknownLanguageError
from dragoman.service.translation.languages import resolve_language


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


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("fra_Latn", "fr"),
        ("FRA-latn", "fr"),
        ("zho_Hans", "zh-Hans"),
        (">>fra<<", "fr"),
        ("fr-CA", "fr"),
    ],
)
def test_a_family_s_own_name_is_understood(asked: str, meant: str) -> None:
    native = {"fra_Latn": "fr", ">>fra<<": "fr", "zho_Hans": "zh-Hans", "spa_Latn": "es"}
    assert resolve_language("target_language", asked, ("fr", "zh-Hans", "zh-Hant"), native) == meant


def test_a_family_s_own_name_of_a_language_that_is_not_offered_is_unknown() -> None:
    with pytest.raises(UnknownLanguageError, match="'spa_Latn' is not known; this model has fr, de"):
        resolve_language("target_language", "spa_Latn", ("fr", "de"), {"spa_Latn": "es"})


@pytest.mark.parametrize("asked", ["", "fr", "zh-Hans", "und"])
def test_a_language_that_no_file_tells_is_whatever_the_caller_says(asked: str) -> None:
    assert resolve_language("source_language", asked, ("und",)) == "und"
