import re

import pytest

from dragoman.bundle.tokenizers.language_codes import (
    M2M100_CODES,
    MBART50_CODES,
    MBART_CODES,
    SHORT,
    WMT21_CODES,
    bcp47_codes,
)

NLLB = (
    "ace_Arab ace_Latn arb_Arab azj_Latn cmn_Hans eng_Latn fra_Latn kas_Arab kas_Deva kmr_Latn nob_Latn nno_Latn "
    "pbt_Arab por_Latn srp_Cyrl twi_Latn aka_Latn yue_Hant zho_Hans zho_Hant zsm_Latn"
)


@pytest.mark.parametrize("codes", [M2M100_CODES, WMT21_CODES, MBART_CODES, MBART50_CODES], ids=len)
def test_every_language_of_a_family_has_a_unique_code(codes: tuple[str, ...]) -> None:
    found = bcp47_codes(codes, shortest=True)
    assert list(found) == list(codes)
    assert len(set(found.values())) == len(codes)
    assert all(re.fullmatch(r"[a-z]{2,3}(-Han[st])?", code) for code in found.values())


def test_families_have_the_right_number_of_languages() -> None:
    assert (len(M2M100_CODES), len(WMT21_CODES), len(MBART_CODES), len(MBART50_CODES)) == (100, 8, 25, 52)


def test_the_script_is_kept_for_chinese_and_for_two_scripts() -> None:
    found = bcp47_codes([code for code in NLLB.split() if code != "cmn_Hans"], shortest=True)
    assert found["fra_Latn"] == "fr"
    assert found["srp_Cyrl"] == "sr"
    assert (found["ace_Arab"], found["ace_Latn"]) == ("ace-Arab", "ace-Latn")
    assert (found["kas_Arab"], found["kas_Deva"]) == ("ks-Arab", "ks-Deva")
    assert (found["zho_Hans"], found["zho_Hant"], found["yue_Hant"]) == ("zh-Hans", "zh-Hant", "yue")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("arb_Arab", "ar"),
        ("zsm_Latn", "ms"),
        ("azj_Latn", "az"),
        ("kmr_Latn", "ku"),
        ("pbt_Arab", "ps"),
        ("nob_Latn", "nb"),
        ("nno_Latn", "nn"),
        ("twi_Latn", "tw"),
        ("aka_Latn", "ak"),
        ("zh_CN", "zh-Hans"),
        ("fr_XX", "fr"),
        ("pt_XX", "pt"),
        ("ns", "nso"),
        ("zh", "zh"),
    ],
)
def test_codes_follow_bcp_47(name: str, code: str) -> None:
    assert bcp47_codes([name], shortest=True) == {name: code}


@pytest.mark.parametrize(
    ("name", "code"),
    [("pt_br", "pt-BR"), ("fra", "fr"), ("cmn_Hans", "zh-Hans"), ("srp_Latn", "sr-Latn"), ("es_419", "es-419")],
)
def test_script_and_region_are_kept_unless_shortened(name: str, code: str) -> None:
    assert bcp47_codes([name], shortest=False) == {name: code}


def test_two_names_of_one_language_get_two_codes() -> None:
    assert bcp47_codes(["cmn_Hans", "zho_Hans", "fr", "fra"], shortest=False) == {
        "cmn_Hans": "zh-Hans",
        "zho_Hans": "zho-Hans",
        "fr": "fr",
        "fra": "fra",
    }


def test_another_spelling_of_a_name_is_left_out() -> None:
    assert bcp47_codes(["pt_br", "pt_BR", "pt"], shortest=False) == {"pt_br": "pt-BR", "pt": "pt"}


def test_the_table_of_short_codes_is_complete() -> None:
    assert all(re.fullmatch("[a-z]{3}", long) and re.fullmatch("[a-z]{2}", short) for long, short in SHORT.items())
    assert len(set(SHORT.values())) == 184  # all of ISO 639-1, and sh
