import pytest

from dragoman.service.errors import UnknownLanguageError
from dragoman.service.translation.languages import resolve_language


@pytest.mark.parametrize(
    ("requested", "expected"),
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
def test_case_separator_script_and_region_may_differ(requested: str, expected: str) -> None:
    assert resolve_language("target_language", requested, ("de", "fr", "pt-BR", "zh-Hans")) == expected


def test_the_only_language_need_not_be_named() -> None:
    assert resolve_language("source_language", "", ("en",)) == "en"


def test_one_of_several_must_be_named() -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", "", ("de", "fr"))
    assert str(caught.value) == "target_language is missing; this model has de, fr"


@pytest.mark.parametrize("requested", ["xx", "f", "fra", "-", "fr fr", "pt", " fr"])
def test_an_unknown_language_lists_those_offered(requested: str) -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", requested, ("fr", "pt-BR"))
    assert caught.value.field == "target_language"
    assert str(caught.value) == f"target_language '{requested}' is not known; this model has fr, pt-BR"


def test_megabytes_of_subtags_cost_nothing() -> None:
    with pytest.raises(UnknownLanguageError) as caught:
        resolve_language("target_language", "x-" * 2_000_000, ("fr",))
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("fra_Latn", "fr"),
        ("FRA-latn", "fr"),
        ("zho_Hans", "zh-Hans"),
        (">>fra<<", "fr"),
        ("fr-CA", "fr"),
    ],
)
def test_a_family_s_own_code_is_accepted(requested: str, expected: str) -> None:
    native = {"fra_Latn": "fr", ">>fra<<": "fr", "zho_Hans": "zh-Hans", "spa_Latn": "es"}
    assert resolve_language("target_language", requested, ("fr", "zh-Hans", "zh-Hant"), native) == expected


def test_a_family_s_own_code_must_be_of_an_offered_language() -> None:
    with pytest.raises(UnknownLanguageError, match="'spa_Latn' is not known; this model has fr, de"):
        resolve_language("target_language", "spa_Latn", ("fr", "de"), {"spa_Latn": "es"})


@pytest.mark.parametrize("requested", ["", "fr", "zh-Hans", "und"])
def test_an_undetermined_language_takes_any_request(requested: str) -> None:
    assert resolve_language("source_language", requested, ("und",)) == "und"
