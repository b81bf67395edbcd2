"""Properties of every imported tokenizer, for any text.

The fixtures are small and have few letters, so that most drawn characters are unknown to them: that is the hard case.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.bundle.tokenizers import Piece, Tokenizer
from dragoman.bundle.tokenizers.pieces import SPACE
from dragoman.bundle.tokenizers.protocol import INVISIBLE
from dragoman.model.importing.tokenizers import import_tokenizer
from tests.support.hugging_face_tokenizers import TEXTS, TOKENIZERS, marian
from tests.unit.bundle.tokenizers.test_native import BLANK, CONTROL_LOOKALIKES, NORMALISED, RARE

KINDS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    **TOKENIZERS,
    # SentencePiece returns a run of unknown letters as one piece, which here has the name of a tag.
    "marian, a tag of unknown letters": ("marian", functools.partial(marian, tags=("fra", "zxx"))),
}

ONE_VOCABULARY = [kind for kind in KINDS if kind != "marian, two vocabularies"]
"""The tokenizers whose source and target share a vocabulary."""

DROPPED = frozenset({"Cc", "Cf", "Cn", "Co", "Mn"})
"""Unicode's categories of characters that normalisation may drop: controls, accents, private ones.

If the tokenizers library drops the first characters, the next offset is one place too early: "\\x1f0" is the piece "0"
at the byte of "\\x1f". That leaves no gap, and later offsets are right.
"""

drawn = settings(max_examples=150, deadline=None, derandomize=True, database=None)

words = st.text(max_size=40) | st.text(
    alphabet=st.sampled_from("ab kite AKITE \u00e9\u0301\ufb01\uff21中🙂\u2026\u00bd\u200b\n</s>_[]"), max_size=20
)


@dataclass(frozen=True)
class Imported:
    """A tokenizer, used for translation from its first language to its last one."""

    kind: str
    tokenizer: Tokenizer
    unknown: int
    """The only control id that a text may yield."""
    names: tuple[str, ...]
    """The names of its control tokens in its files."""

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, *self._languages)

    def pieces(self, text: str) -> list[Piece]:
        return self.tokenizer.encode_pieces(text, *self._languages)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after any text."""
        ids, closing = self.encode(""), self.tokenizer.closing_tokens
        return ids[: len(ids) - closing], ids[len(ids) - closing :]

    def body(self, ids: list[int]) -> list[int]:
        before, after = self.around
        return ids[len(before) : len(ids) - len(after)]

    def read(self, text: str) -> tuple[str, list[int]]:
        """The decoded text and its ids; without a target, for which T5 would add an instruction."""
        ids = self.tokenizer.encode(text, self._languages[0])
        return self.tokenizer.decode(ids), ids

    @property
    def _languages(self) -> tuple[str, str]:
        return self.tokenizer.source_languages[0], ("", *self.tokenizer.target_languages)[-1]


@pytest.fixture(scope="module", params=KINDS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    family, make = KINDS[request.param]
    folder = tmp_path_factory.mktemp("imported")
    reference = make(folder / "theirs")
    tokenizer = import_tokenizer(family, folder / "theirs", folder / "ours")
    names = reference.convert_ids_to_tokens(list(tokenizer.control_ids))
    return Imported(request.param, tokenizer, reference.unk_token_id, tuple(map(str, names)))


def texts(imported: Imported) -> st.SearchStrategy[str]:
    """Any texts, and texts with the names of the tokenizer's own control tokens."""
    parts = st.sampled_from([*CONTROL_LOOKALIKES, *RARE, *TEXTS[:5], " ", "a", ">", "<"])
    return words | st.lists(parts | st.sampled_from(imported.names), max_size=5).map("".join)


def shown(text: str) -> str:
    """The text without invisible characters at its ends."""
    visible = [place for place, character in enumerate(text) if unicodedata.category(character) not in INVISIBLE]
    return text[visible[0] : visible[-1] + 1] if visible else ""


def kept_whole(text: str) -> bool:
    """Whether no family drops any of its characters; SPACE is SentencePiece's own."""
    return SPACE not in text and all(unicodedata.category(character) not in DROPPED for character in text)


@drawn
@given(st.data())
def test_no_text_yields_a_control_token(imported: Imported, data: st.DataObject) -> None:
    text = data.draw(texts(imported))
    ids = imported.encode(text)
    before, after = imported.around
    assert ids == [*before, *imported.body(ids), *after]
    assert set(imported.body(ids)) & set(imported.tokenizer.control_ids) <= {imported.unknown}
    assert [piece.id for piece in imported.pieces(text)] == ids


def test_the_names_of_control_tokens_are_plain_text(imported: Imported) -> None:
    before, after = imported.around
    for name in imported.names:
        for text in (name, f"{name}{name}", f"a {name} a"):
            ids = imported.encode(text)
            assert ids == [*before, *imported.body(ids), *after], text
            assert imported.body(ids), text
            assert set(imported.body(ids)) & set(imported.tokenizer.control_ids) <= {imported.unknown}, text


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_blank_text_has_only_special_tokens(imported: Imported, text: str) -> None:
    before, after = imported.around
    length = len(text.encode())
    assert imported.encode(text) == [*before, *after]
    assert imported.pieces(text) == [
        *(Piece(number, 0, 0) for number in before),
        *(Piece(number, length, length) for number in after),
    ]


@drawn
@given(st.data())
def test_offsets_cover_the_text_in_order_without_gaps(imported: Imported, data: st.DataObject) -> None:
    text = data.draw(texts(imported) | st.sampled_from([given for given, _ in NORMALISED]))
    pieces = imported.pieces(text)
    content = text.encode()
    before, after = (len(part) for part in imported.around)
    first, inner, last = pieces[:before], pieces[before : len(pieces) - after], pieces[len(pieces) - after :]
    assert {(piece.start, piece.end) for piece in first} <= {(0, 0)}
    assert {(piece.start, piece.end) for piece in last} == {(len(content), len(content))}
    for piece, following in itertools.pairwise(inner):
        assert piece.end == following.start
    for piece in inner:
        content[piece.start : piece.end].decode()  # no character is cut in two
    if inner and kept_whole(text):
        assert shown(content[inner[0].start : inner[-1].end].decode()) == shown(text)


@pytest.mark.parametrize("imported", ONE_VOCABULARY, indirect=True)
@drawn
@given(st.data())
def test_decoded_text_is_stable(imported: Imported, data: st.DataObject) -> None:
    once, ids = imported.read(data.draw(words))
    again, _ = imported.read(once)
    if imported.unknown in imported.body(ids):
        # Unknown text is dropped, which leaves its surrounding spaces adjacent.
        once, again = " ".join(once.split()), " ".join(again.split())
    assert again == once


@drawn
@given(st.data())
def test_any_ids_can_be_decoded(imported: Imported, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, imported.tokenizer.target_vocabulary + 10), max_size=20))
    imported.tokenizer.decode(chosen).encode()


@pytest.mark.parametrize("imported", ONE_VOCABULARY, indirect=True)
def test_plain_text_survives_a_round_trip(imported: Imported) -> None:
    for text in TEXTS[:20]:
        plain, ids = imported.read(text)
        assert imported.unknown not in imported.body(ids) or imported.kind == "bert", text
        if imported.kind != "bert":  # it is lower case, and has no piece for "!"
            assert plain == text
