import io
import itertools
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.bundle.tokenizers import cut
from dragoman.bundle.tokenizers.native import MODEL_FILE, SentencePieceTokenizer
from dragoman.model.training.vocabulary import train_tokenizer
from tests.support.tiny import PIECES, sentences, tiny_tokenizer

END = 2
UNKNOWN = 3

CONTROL_LOOKALIKES = [
    "</s>",
    "<pad>",
    "<unk>",
    "<s>",
    "kite </s> boat",
    "<pad> kite",
    "<s></s><unk>",
    "<0x41>",
    "▁</s>",
]

RARE = ["🙂", "中文", "kite 🙂 boat", "日本語のテキスト", "Ω≠π", "𝄞", "\ufdfa", "한글"]

# Texts, and their forms after nmt_nfkc.
NORMALISED = [
    ("\ufb01n", "fin"),  # a ligature
    ("\uff21\uff22 \uff12", "AB 2"),  # full width
    ("e\u0301t\u00e9", "\u00e9t\u00e9"),  # combining
    ("\u2460", "1"),
    ("\u00bd", "1\u20442"),
    ("\u2026", "..."),
    ("a\u00a0b\u3000c", "a b c"),
    ("a\u200bb", "a b"),
    ("  a   b  ", "a b"),
    ("a\nb\r\n\tc", "a b c"),
]

BLANK = [
    "",
    " ",
    "   ",
    "\n",
    "\t\r\n",
    "\u00a0",
    "\u2028",
    "\u2029",
    "\u3000",
    "\x85",
    "\x1c",
    "\u1680 \u205f",
    "\ufeff",
    "\x00",
    "\x00 \u2060\u202e",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceTokenizer:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


# --- ids


@pytest.mark.parametrize("text", ["kite", "A kite falls.", "🙂", *CONTROL_LOOKALIKES])
def test_a_text_ends_with_its_only_end_token(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert len(ids) > 1
    assert ids[-1] == END
    assert ids.count(END) == 1


@pytest.mark.parametrize("text", BLANK, ids=ascii)
def test_a_blank_text_has_only_the_end_token(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.encode(text) == [END]
    assert tokenizer.encode_all([text, "kite"]) == [[END], tokenizer.encode("kite")]
    assert [(piece.id, piece.start, piece.end) for piece in tokenizer.encode_pieces(text)] == [
        (END, len(text.encode()), len(text.encode()))
    ]


@pytest.mark.parametrize("text", CONTROL_LOOKALIKES)
def test_text_that_looks_like_a_control_token_is_text(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not set(ids[:-1]) & set(tokenizer.control_ids)
    assert tokenizer.decode(ids) == text.replace("▁", "")


@pytest.mark.parametrize("text", RARE)
def test_rare_characters_become_bytes_and_never_unknown(tokenizer: SentencePieceTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert UNKNOWN not in ids
    assert tokenizer.decode(ids) == unicodedata.normalize("NFKC", text)


@pytest.mark.parametrize("text", sentences(20, seed=3))
def test_plain_text_survives_a_round_trip(tokenizer: SentencePieceTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(("text", "plain"), NORMALISED, ids=ascii)
def test_equivalent_forms_have_the_same_ids(tokenizer: SentencePieceTokenizer, text: str, plain: str) -> None:
    assert tokenizer.encode(text) == tokenizer.encode(plain)
    assert tokenizer.decode(tokenizer.encode(text)) == plain


def test_a_batch_has_the_same_ids_as_single_texts(tokenizer: SentencePieceTokenizer) -> None:
    texts = [*sentences(30), *BLANK, *RARE, *CONTROL_LOOKALIKES]
    assert tokenizer.encode_all(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all(texts, threads=3) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_all([]) == []


def test_control_ids_yield_no_text(tokenizer: SentencePieceTokenizer) -> None:
    kite, boat = tokenizer.encode("kite")[:-1], tokenizer.encode("boat")[:-1]
    assert tokenizer.control_ids == (0, 1, 2, 3)
    assert tokenizer.decode([1, *kite, 0, 2, 3, *boat, 2, 0]) == "kite boat"
    assert tokenizer.decode([0, 1, 2, 3]) == ""
    assert tokenizer.decode([]) == ""


def test_every_id_can_be_decoded(tokenizer: SentencePieceTokenizer) -> None:
    assert tokenizer.vocabulary == PIECES
    assert all(isinstance(tokenizer.decode([number]), str) for number in range(PIECES))


# --- offsets


def spans(tokenizer: SentencePieceTokenizer, text: str) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in tokenizer.encode_pieces(text)]


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab kite \u00e9\u0301\ufb01\uff21中🙂\u2026\u00bd\u200b\n</s>"), max_size=12))
def test_offsets_cover_the_text_in_order_without_gaps(tokenizer: SentencePieceTokenizer, text: str) -> None:
    pieces = tokenizer.encode_pieces(text)
    assert [piece.id for piece in pieces] == tokenizer.encode(text)
    content = text.encode()
    *inner, last = ((piece.start, piece.end) for piece in pieces)
    assert last == (len(content), len(content))
    for (_, before), (start, _) in itertools.pairwise(inner):
        assert start == before
    if inner:
        covered = content[inner[0][0] : inner[-1][1]]
        assert covered.decode().strip(" \n\u200b") == text.strip(" \n\u200b")
    for start, end in inner:
        content[start:end].decode()  # no character is cut in two


def test_offsets_count_bytes_of_the_original_text(tokenizer: SentencePieceTokenizer) -> None:
    text = "  Ôté 中 d\u00e9j\u00e0 🙂"
    ends = [end for _, end in spans(tokenizer, text)]
    assert ends[-1] == len(text.encode())
    assert spans(tokenizer, text)[0][0] == 2
    assert text.encode()[spans(tokenizer, text)[-2][0] : ends[-2]] == "🙂".encode()


def test_a_word_piece_covers_the_bytes_of_its_word(tokenizer: SentencePieceTokenizer) -> None:
    content = "the été déjà".encode()
    parts = [content[start:end] for start, end in spans(tokenizer, "the été déjà")]
    assert [part.decode() for part in parts] == ["the", " été", " déjà", ""]


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("\ufb01", [0, 0, 3, 0]),  # the space before, f, i: the ligature's three bytes go to its last letter
        ("\uff21\uff22", [0, 3, 3, 0]),
        ("e\u0301", [0, 3, 0]),  # one piece for a letter and its combining accent
        ("🙂", [0, 0, 0, 0, 4, 0]),
    ],
    ids=["ligature", "full width", "combining", "bytes"],
)
def test_the_last_token_covers_a_shared_character(
    tokenizer: SentencePieceTokenizer, text: str, widths: list[int]
) -> None:
    assert [end - start for start, end in spans(tokenizer, text)] == widths


# --- truncation


@pytest.mark.parametrize(
    ("limit", "left"), [(1, [END]), (2, [10, END]), (3, [10, 11, END]), (4, [10, 11, 12, END]), (9, [10, 11, 12, END])]
)
def test_a_truncated_source_keeps_its_end_token(limit: int, left: list[int]) -> None:
    assert cut([10, 11, 12, END], limit) == left


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from([*CONTROL_LOOKALIKES, *RARE]), max_size=4).map("".join))
def test_no_text_yields_a_control_token(tokenizer: SentencePieceTokenizer, text: str) -> None:
    *body, last = tokenizer.encode(text)
    assert last == END
    assert not set(body) & set(tokenizer.control_ids)
    assert [piece.id for piece in tokenizer.encode_pieces(text)] == [*body, last]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=40))
def test_decoded_text_is_stable(tokenizer: SentencePieceTokenizer, text: str) -> None:
    once = tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(once)) == once


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(), min_size=1, max_size=30), st.integers(1, 40), st.integers(1, 3))
def test_truncation_keeps_the_start_and_the_closing_tokens(tokens: list[int], limit: int, closing: int) -> None:
    left = cut(tokens, limit, closing)
    kept = min(closing, limit)
    assert len(left) == min(limit, len(tokens))
    assert left[-kept:] == tokens[-kept:]
    assert left[:-kept] == tokens[: len(left) - kept] or left == tokens


# --- files


def test_a_file_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=MODEL_FILE):
        SentencePieceTokenizer(tmp_path)
    for content in (b"", b"not a model", b"\0" * 100):
        (tmp_path / MODEL_FILE).write_bytes(content)
        with pytest.raises(ValueError, match=f"{MODEL_FILE}: not a complete SentencePiece model"):
            SentencePieceTokenizer(tmp_path)


def test_a_model_without_a_padding_token_is_refused(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(300)), model_writer=model, vocab_size=60, pad_id=-1, minloglevel=2
    )
    (tmp_path / MODEL_FILE).write_bytes(model.getvalue())
    with pytest.raises(ValueError, match=f"{MODEL_FILE}: must have a padding token, has none"):
        SentencePieceTokenizer(tmp_path)


def test_a_learned_vocabulary_has_the_requested_size(tmp_path: Path) -> None:
    train_tokenizer(sentences(300), tmp_path / "new", PIECES)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [MODEL_FILE]
    tokenizer = SentencePieceTokenizer(tmp_path / "new")
    assert (tokenizer.vocabulary, tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (PIECES, 0, 1, END)


def test_a_model_file_does_not_contain_its_path(tmp_path: Path) -> None:
    train_tokenizer(sentences(300), tmp_path, PIECES)
    assert tmp_path.name.encode() not in (tmp_path / MODEL_FILE).read_bytes()


@pytest.mark.parametrize("pieces", [257, 5000])
def test_more_or_fewer_pieces_than_the_corpus_allows_are_refused(tmp_path: Path, pieces: int) -> None:
    with pytest.raises(ValueError, match=f"the corpus cannot be split into {pieces} pieces: Vocabulary size"):
        train_tokenizer(sentences(300), tmp_path, pieces)
    assert not list(tmp_path.iterdir())
