"""What holds of every tokenizer that comes with an imported checkpoint, whatever a text holds.

The fixtures are small and have few letters, so that most of what is drawn is unknown to them: that is the hard case.
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
from dragoman.bundle.tokenizers.protocol import UNSEEN
from dragoman.model.importing.tokenizers import import_tokenizer
from tests.support.hugging_face_tokenizers import TEXTS, TOKENIZERS, marian
from tests.unit.bundle.tokenizers.test_native import BLANK, CONTROL_LOOKALIKES, NORMALISED, RARE

KINDS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    **TOKENIZERS,
    # SentencePiece gives a run of letters that it does not know as one piece, which here has the name of a tag.
    "marian, a tag of unknown letters": ("marian", functools.partial(marian, tags=("fra", "zxx"))),
}

ONE_VOCABULARY = [kind for kind in KINDS if kind != "marian, two vocabularies"]
"""Those that write what they read."""

DROPPED = frozenset({"Cc", "Cf", "Cn", "Co", "Mn"})
"""Unicode's categories of characters that a family may drop as it normalises: controls, accents, private ones.

The tokenizers library puts what is left of a text one place too early where it dropped what came first: "\\x1f0" is
the piece "0" at the byte of "\\x1f". No gap comes of it, and further on the places are right again.
"""

drawn = settings(max_examples=150, deadline=None, derandomize=True, database=None)

words = st.text(max_size=40) | st.text(
    alphabet=st.sampled_from("ab kite AKITE \u00e9\u0301\ufb01\uff21中🙂\u2026\u00bd\u200b\n</s>_[]"), max_size=20
)


@dataclass(frozen=True)
class Imported:
    """A tokenizer as it is asked for a translation out of its first language into its last one."""

    kind: str
    tokenizer: Tokenizer
    unknown: int
    """The one control id that a text may yield."""
    names: tuple[str, ...]
    """Of its control tokens, as they are written in its files."""

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, *self._languages)

    def pieces(self, text: str) -> list[Piece]:
        return self.tokenizer.encode_pieces(text, *self._languages)

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """What stands before and after the tokens of any text."""
        ids, closing = self.encode(""), self.tokenizer.closing_tokens
        return ids[: len(ids) - closing], ids[len(ids) - closing :]

    def body(self, ids: list[int]) -> list[int]:
        before, after = self.around
        return ids[len(before) : len(ids) - len(after)]

    def read(self, text: str) -> tuple[str, list[int]]:
        """A text as it comes back, with its ids; without a target, since T5 would put words before it."""
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
    """Anything, and what is made of the names of its own control tokens."""
    parts = st.sampled_from([*CONTROL_LOOKALIKES, *RARE, *TEXTS[:5], " ", "a", ">", "<"])
    return words | st.lists(parts | st.sampled_from(imported.names), max_size=5).map("".join)


def shown(text: str) -> str:
    """Without what nobody sees at its ends."""
    seen = [place for place, character in enumerate(text) if unicodedata.category(character) not in UNSEEN]
    return text[seen[0] : seen[-1] + 1] if seen else ""


def kept_whole(text: str) -> bool:
    """Whether every family reads each of its characters; SPACE is SentencePiece's own."""
    return SPACE not in text and all(unicodedata.category(character) not in DROPPED for character in text)


@drawn
@given(st.data())
def test_whatever_a_text_holds_it_yields_no_control_token(imported: Imported, data: st.DataObject) -> None:
    text = data.draw(texts(imported))
    ids = imported.encode(text)
    before, after = imported.around
    assert ids == [*before, *imported.body(ids), *after]
    assert set(imported.body(ids)) & set(imported.tokenizer.control_ids) <= {imported.unknown}
    assert [piece.id for piece in imported.pieces(text)] == ids


def test_the_names_of_its_control_tokens_are_text(imported: Imported) -> None:
    before, after = imported.around
    for name in imported.names:
        for text in (name, f"{name}{name}", f"a {name} a"):
            ids = imported.encode(text)
            assert ids == [*before, *imported.body(ids), *after], text
            assert imported.body(ids), text
            assert set(imported.body(ids)) & set(imported.tokenizer.control_ids) <= {imported.unknown}, text


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_blank_text_is_its_special_tokens_alone(imported: Imported, text: str) -> None:
    before, after = imported.around
    length = len(text.encode())
    assert imported.encode(text) == [*before, *after]
    assert imported.pieces(text) == [
        *(Piece(number, 0, 0) for number in before),
        *(Piece(number, length, length) for number in after),
    ]


@drawn
@given(st.data())
def test_offsets_go_through_the_text_in_order_without_a_gap(imported: Imported, data: st.DataObject) -> None:
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
def test_what_was_read_once_reads_the_same_again(imported: Imported, data: st.DataObject) -> None:
    once, ids = imported.read(data.draw(words))
    again, _ = imported.read(once)
    if imported.unknown in imported.body(ids):
        # What is unknown yields nothing, and the spaces that were around it stand side by side.
        once, again = " ".join(once.split()), " ".join(again.split())
    assert again == once


@drawn
@given(st.data())
def test_whatever_ids_a_model_chooses_they_have_a_text(imported: Imported, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, imported.tokenizer.target_vocabulary + 10), max_size=20))
    imported.tokenizer.decode(chosen).encode()


@pytest.mark.parametrize("imported", ONE_VOCABULARY, indirect=True)
def test_plain_text_comes_back_as_it_was(imported: Imported) -> None:
    for text in TEXTS[:20]:
        plain, ids = imported.read(text)
        assert imported.unknown not in imported.body(ids) or imported.kind == "bert", text
        if imported.kind != "bert":  # it writes small letters, and has no piece for "!"
            assert plain == text
