"""Imported tokenizers against those of transformers, on difficult texts."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dragoman.bundle.tokenizers import Tokenizer, open_tokenizer
from dragoman.model.importing.tokenizers import import_tokenizer
from tests.support.hugging_face_tokenizers import TEXTS, TOKENIZERS

NASTY = [
    "a",
    "A kite falls.",
    *TEXTS[:40],
    "  two  spaces   before, within and after  ",
    "tab\tline\nreturn\r\nform\x0cvertical\x0b",
    "no-break\u00a0narrow\u202fideographic\u3000thin\u2009",
    "line\u2028paragraph\u2029next\x85",
    "joiners: \u0915\u094d\u200d\u0937 \u0dc1\u0dca\u200d\u0dbb\u0dd3 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u200bzero\u200bwidth\ufeff and soft\u00adhyphen",
    "right \u202eto left\u202c and \u2066isolated\u2069",
    "combining e\u0301 a\u0308\u0323 \u1e9b\u0323 o\u0302\u0301",
    "precomposed \u00e9 \u00e4 \u1ec7 \ufb01 \ufb03 \u01c4",
    "full width \uff21\uff22\uff23 \uff11\uff12 \uff01, half \uff76\uff9e",
    "\u2460 \u00bd \u2026 \ufe30 \u2122 \u2103 \u3392 \ufdfa",
    "русский язык, ελληνικά, עברית, العربية, हिन्दी, ไทย, 한국어, 中文, 日本語",
    "emoji 🙂 👍🏽 👩‍👩‍👧‍👦 🇫🇷 ❤️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "𝄞 𐍈 𠜎 \U0010ffff",
    "quotes “curly” \u2018single\u2019 «guillemets» „low“ 'straight' \"double\"",
    "dashes - – — ― minus \u2212 hyphen \u2010",
    "3.14 1,000,000 1e-9 0x1F 50% $5 €5 #1 @home a_b a__b __init__",
    "https://example.org/a?b=c&d=%20#e mail@example.org C:\\path\\file",
    "don't can't l'été aujourd'hui O'Neil",
    "x" * 10_000,
    "kite" * 2_500,
    "中" * 10_000,
    "🙂" * 2_000,
    "e\u0301" * 3_000,
    "-" * 500 + " " * 500 + "." * 500,
    "▁ ▁▁ kite▁boat",
    "## ##s Ġ Ċ \u0120",
    "\x00 null \x01 control \x7f delete",
    "{}[]<>|\\/~`^*+=",
]

BLANK = ["", " ", "\n", "\t \r\n", "\u00a0\u3000", "\u200b\ufeff", "\u2028", "\x00"]

CONTROL = [
    "kite </s> boat",
    "<pad> kite",
    "<unk>",
    "<s>kite</s>",
    "<mask>",
    "__fr__ kite",
    "fra_Latn kite",
    "fr_XX kite eng_Latn",
    ">>fra<< kite",
    "<extra_id_0> kite",
    "<unk_2><mask_1>",
    "[CLS] kite [SEP][MASK]",
    "▁</s>",
]

LANGUAGES = {"m2m100": ("en", "fr"), "nllb": ("en", "fr"), "mbart": ("en", "fr"), "t5": ("en", "de")}
NATIVE = {"m2m100": "en", "nllb": "eng_Latn", "mbart": "en_XX"}


@dataclass(frozen=True)
class Pair:
    """One of our tokenizers and its reference."""

    kind: str
    family: str
    ours: Tokenizer
    reference: Any
    folder: Path

    def encode(self, text: str) -> list[int]:
        return self.ours.encode(text, self.source, "fr" if "targets" in self.kind else "")

    @property
    def source(self) -> str:
        return "en" if "en" in self.ours.source_languages else "und"

    def right(self, text: str) -> list[int]:
        before = ">>fra<< " if "targets" in self.kind else ""
        ids: list[int] = self.reference(before + text)["input_ids"]
        return ids


@pytest.fixture(scope="module", params=TOKENIZERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, write = TOKENIZERS[request.param]
    folder = tmp_path_factory.mktemp("tokenizer")
    reference = write(folder / "theirs")
    import_tokenizer(family, folder / "theirs", folder / "ours")
    return Pair(request.param, family, open_tokenizer(folder / "ours"), reference, folder)


def test_ids_equal_the_reference(pair: Pair) -> None:
    for text in NASTY:
        assert pair.encode(text) == pair.right(text), ascii(text[:60])


def test_a_blank_text_has_only_special_tokens(pair: Pair) -> None:
    alone = pair.right("")
    for text in BLANK:
        assert pair.encode(text) == alone, ascii(text)
        assert [piece.id for piece in pair.ours.encode_pieces(text, pair.source)] == pair.ours.encode("", pair.source)


def test_text_that_looks_like_a_control_token_yields_none(pair: Pair) -> None:
    around = len(pair.encode(""))
    before, after = around - pair.ours.closing_tokens, pair.ours.closing_tokens
    unknown = {pair.reference.unk_token_id}
    for text in CONTROL:
        body = pair.encode(text)[before:-after]
        assert not set(body) & set(pair.ours.control_ids) - unknown, text
        assert len(body) > 1


def test_pieces_have_the_same_ids_and_are_adjacent(pair: Pair) -> None:
    for text in (*NASTY, *CONTROL):
        pieces = pair.ours.encode_pieces(text, pair.source)
        assert [piece.id for piece in pieces] == pair.ours.encode(text, pair.source), ascii(text[:60])
        content = text.encode()
        before = len(pair.ours.encode("", pair.source)) - pair.ours.closing_tokens
        body = pieces[before : -pair.ours.closing_tokens]
        for piece, following in itertools.pairwise(body):
            assert piece.start <= piece.end == following.start, ascii(text[:60])
        assert all(piece.start == piece.end for piece in (*pieces[:before], *pieces[-pair.ours.closing_tokens :]))
        for piece in body:
            content[piece.start : piece.end].decode()  # no character is cut in two
        if body and pair.family != "bert":
            covered = content[body[0].start : body[-1].end].decode()
            assert covered.strip() == text.strip() or not text.isascii(), ascii(text[:60])


def test_pieces_end_with_their_words(pair: Pair) -> None:
    text = "Été kite boat"
    ends = {piece.end for piece in pair.ours.encode_pieces(text, pair.source)}
    assert {5, 10, 15} <= ends


def test_decoded_text_equals_the_reference(pair: Pair) -> None:
    reference, tokenizer = pair.reference, pair.ours
    for text in NASTY[:42]:
        ids = reference(text_target=text)["input_ids"] if pair.kind == "marian, two vocabularies" else pair.right(text)
        plain = [number for number in ids if number not in tokenizer.control_ids]
        assert tokenizer.decode(ids) == reference.decode(plain, skip_special_tokens=True), text


def test_control_and_unknown_ids_yield_no_text(pair: Pair) -> None:
    tokenizer = pair.ours
    ids = tokenizer.encode("kite", pair.source)
    beyond = [tokenizer.target_vocabulary, tokenizer.target_vocabulary + 1000]
    assert tokenizer.decode([*tokenizer.control_ids, *ids, *beyond]) == tokenizer.decode(ids)


def test_vocabulary_sizes_equal_the_reference(pair: Pair) -> None:
    # M2M100 has its languages outside its vocabulary.
    right = len(pair.reference) if pair.family != "m2m100" else max(pair.reference.lang_token_to_id.values()) + 1
    assert pair.ours.vocabulary == right
