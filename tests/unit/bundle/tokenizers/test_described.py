"""The special tokens that a described tokenizer puts around its pieces, which are computable by hand here."""

from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle.tokenizers import open_tokenizer
from dragoman.bundle.tokenizers.description import DESCRIPTION_FILE, Description, Instruction, Language
from dragoman.bundle.tokenizers.protocol import cut
from tests.support.fake_runner import END
from tests.support.letters import EN, FR, LANGUAGES, UNKNOWN, described


def test_the_source_token_may_precede_the_text() -> None:
    tokenizer = described(before=("source",), prompt=(END, "target"))
    assert tokenizer.encode("ab", "fr", "en") == [FR, 97, 98, END]
    assert tokenizer.encode("ab", "fr") == [FR, 97, 98, END]
    assert tokenizer.prompt("en") == (END, EN)
    assert tokenizer.closing_tokens == 1


def test_the_source_token_may_follow_the_text() -> None:
    tokenizer = described(after=(END, "source"), prompt=("target",))
    assert tokenizer.encode("ab", "fr", "en") == [97, 98, END, FR]
    assert tokenizer.prompt("en") == (EN,)
    assert cut(tokenizer.encode("abcdef", "fr"), 4, tokenizer.closing_tokens) == [97, 98, END, FR]


def test_the_target_token_precedes_the_text_only_in_translation() -> None:
    tokenizer = described(before=("target",))
    assert tokenizer.encode("ab", "en", "fr") == [FR, 97, 98, END]
    assert tokenizer.encode("ab", "en") == [97, 98, END]
    assert [piece.id for piece in tokenizer.encode_pieces("ab", "en", "fr")] == [FR, 97, 98, END]


def test_an_instruction_precedes_the_text_only_in_translation() -> None:
    tokenizer = described(instructions=(Instruction("en", "fr", "to "),))
    assert tokenizer.encode("ab", "en", "fr") == [*b"to ab", END]
    assert tokenizer.encode("ab", "en") == [*b"ab", END]
    assert tokenizer.encode("ab", "fr", "en") == [*b"ab", END]
    assert tokenizer.encode(" \n", "en", "fr") == [END], "a blank text has no words either"
    assert [(piece.start, piece.end) for piece in tokenizer.encode_pieces("ab", "en", "fr")] == [
        *[(0, 0)] * 3,
        (0, 1),
        (1, 2),
        (2, 2),
    ]


def test_the_only_language_may_be_omitted() -> None:
    tokenizer = described(
        before=("source",), prompt=(END, "target"), source_languages=LANGUAGES[:1], target_languages=LANGUAGES[1:]
    )
    assert tokenizer.encode("a") == [EN, 97, END]
    assert tokenizer.prompt() == (END, FR)


def test_one_of_several_languages_must_be_given_and_known() -> None:
    tokenizer = described(before=("source",), prompt=(END, "target"))
    with pytest.raises(ValueError, match="source_language must be given: the model has several"):
        tokenizer.encode("a")
    with pytest.raises(ValueError, match="target_language must be given: the model has several"):
        tokenizer.prompt()
    with pytest.raises(ValueError, match="target_language must be one of en, fr, is 'de'"):
        tokenizer.prompt("de")
    with pytest.raises(ValueError, match="source_language must be one of en, fr, is 'xx'"):
        tokenizer.encode("a", "xx")


def test_text_yields_no_control_id() -> None:
    assert described().encode("a!b?", "en") == [97, UNKNOWN, 98, UNKNOWN, END]
    assert [piece.id for piece in described().encode_pieces("a!b?", "en")] == [97, UNKNOWN, 98, UNKNOWN, END]
    without = described(unknown_id=None)
    assert without.encode("a!b", "en") == [97, 98, END]
    assert [piece.id for piece in without.encode_pieces("a!b", "en")] == [97, 98, END]


def test_control_ids_yield_no_text() -> None:
    assert described().decode([97, END, UNKNOWN, EN, 98]) == "ab"
    two = described(target_control_ids=(97,))
    assert two.decode([97, 98]) == "b"
    assert two.control_ids == (END, UNKNOWN, EN, FR)


def test_vocabulary_sizes_cover_every_id() -> None:
    assert (described().vocabulary, described().target_vocabulary) == (256, 256)
    assert described(control_ids=(END, 300)).vocabulary == 301
    assert described(target_control_ids=(400,)).target_vocabulary == 401


def test_the_names_of_the_family_map_to_codes() -> None:
    assert described().native_codes == {"eng": "en", "fra": "fr"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"before": ("source",), "source_languages": ()}, "before contains the source language, so every source"),
        ({"prompt": ("target",), "target_languages": (Language("fr"),)}, "prompt contains the target language, so"),
        ({"after": ("target",)}, "after must not contain the target language"),
        ({"prompt": ("source",)}, "prompt must not contain the source language"),
        ({"before": ("both",)}, "before"),
        ({"after": (-1,)}, "after"),
    ],
)
def test_an_inconsistent_description_is_refused(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        described(**changes)


def test_a_description_survives_a_round_trip(tmp_path: Path) -> None:
    description = Description(
        kind="tokenizers",
        before=(5, "source"),
        after=(END,),
        prompt=(END, "target"),
        control_ids=(END, EN, FR),
        unknown_id=None,
        source_languages=LANGUAGES,
        target_languages=LANGUAGES,
        instructions=(Instruction("en", "fr", "to "),),
    )
    description.save(tmp_path)
    assert Description.load(tmp_path) == description


def test_a_broken_description_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / DESCRIPTION_FILE).write_text('{"kind": "pieces", "befor": []}')
    with pytest.raises(ValueError, match=rf"{DESCRIPTION_FILE}: .*befor: Unexpected"):
        open_tokenizer(tmp_path)
