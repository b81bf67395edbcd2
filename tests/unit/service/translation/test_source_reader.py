import pytest

from dragoman.service.errors import InvalidRequestError, TooLongError
from dragoman.service.translation.source_reader import SourceLimits, SourceReader
from tests.support.fake_runner import END
from tests.support.harness import text_of, token_of, tokenizer

LIMITS = SourceLimits(texts=3, characters=60, tokens=10)


@pytest.fixture
def reader() -> SourceReader:
    return SourceReader(tokenizer(), LIMITS)


def test_no_text_is_refused(reader: SourceReader) -> None:
    with pytest.raises(InvalidRequestError, match="texts must hold at least one text, is empty"):
        reader.check([], truncate=False)


def test_too_many_texts_are_refused(reader: SourceReader) -> None:
    reader.check(["a"] * 3, truncate=False)
    with pytest.raises(InvalidRequestError, match="texts must hold at most 3 texts, holds 4"):
        reader.check(["a"] * 4, truncate=True)


def test_characters_are_counted_before_tokens(reader: SourceReader) -> None:
    reader.check(["é" * 60], truncate=False)
    with pytest.raises(TooLongError) as caught:
        reader.check(["kite", "é" * 61], truncate=False)
    assert caught.value.field == "texts[1]"
    assert str(caught.value) == "texts[1] has 61 characters, the limit is 60; shorten it or set truncate"


@pytest.mark.parametrize("tokens", [9, 10])
def test_a_text_within_the_limit_is_kept_whole(reader: SourceReader, tokens: int) -> None:
    (source,) = reader.read([text_of(tokens)], truncate=False)
    assert len(source.ids) == tokens
    assert not source.truncated
    assert source.pieces == ()


@pytest.mark.parametrize("tokens", [11, 12])
def test_a_text_beyond_the_limit_is_refused(reader: SourceReader, tokens: int) -> None:
    with pytest.raises(TooLongError, match=rf"texts\[1\] has {tokens} tokens, the limit is 10"):
        reader.read(["kite", text_of(tokens)], truncate=False)


@pytest.mark.parametrize("offsets", [False, True])
def test_a_cut_text_keeps_its_beginning_and_end_token(reader: SourceReader, offsets: bool) -> None:
    (source,) = reader.read([text_of(12)], truncate=True, offsets=offsets)
    assert source.truncated
    assert source.ids == (*[token_of("kite")] * 9, END)
    if offsets:
        assert tuple(piece.id for piece in source.pieces) == source.ids
        assert [(piece.start, piece.end) for piece in source.pieces[:2]] == [(0, 4), (4, 9)]
        assert source.pieces[-1].start == source.pieces[-1].end


def test_a_text_is_cut_by_characters_before_tokens(reader: SourceReader) -> None:
    (source,) = reader.read([" " * 58 + "kite"], truncate=True)
    assert source.truncated
    assert source.ids == tuple(tokenizer().encode(" " * 58 + "ki"))


def test_a_text_cut_only_by_characters_is_flagged(reader: SourceReader) -> None:
    (source,) = reader.read([" " * 61], truncate=True)
    assert source.truncated
    assert source.blank


@pytest.mark.parametrize("text", ["", " ", "\n\t\r ", "\u00a0\u3000", "\u2003\u2028"])
def test_blank_texts_are_recognized(reader: SourceReader, text: str) -> None:
    (source,) = reader.read([text], truncate=False)
    assert source.blank
    assert source.ids == (END,)


@pytest.mark.parametrize("text", [".", "kite", "0", "\u4e00"])
def test_other_texts_are_not_blank(reader: SourceReader, text: str) -> None:
    (source,) = reader.read([text], truncate=False)
    assert not source.blank


@pytest.mark.parametrize("text", ["kite </s> boat", "<pad> kite", "<unk>", "<s>", "__fr__ kite"])
def test_text_that_looks_like_a_control_token_is_text(reader: SourceReader, text: str) -> None:
    reader = SourceReader(tokenizer(), SourceLimits(texts=1, characters=100, tokens=100))
    (source,) = reader.read([text], truncate=False)
    assert source.ids[-1] == END
    assert set(source.ids[:-1]).isdisjoint(tokenizer().control_ids)
    assert tokenizer().decode(source.ids) == text


def test_offsets_do_not_change_the_tokens(reader: SourceReader) -> None:
    texts = ["red kite", "Été déjà 7.", "   the  kite ", ""]
    reader = SourceReader(tokenizer(), SourceLimits(texts=9, characters=100, tokens=100))
    plain = [source.ids for source in reader.read(texts, truncate=False)]
    pieced = [tuple(piece.id for piece in source.pieces) for source in reader.read(texts, truncate=False, offsets=True)]
    assert plain == pieced


def test_reading_stops_once_abandoned(reader: SourceReader) -> None:
    answers = iter([False, False, True])
    assert len(reader.read(["kite"] * 3, truncate=False, abandoned=lambda: next(answers))) == 2


def test_tokens_are_estimated_from_earlier_texts(reader: SourceReader) -> None:
    assert reader.likely_tokens(text_of(8)) == 0
    reader.read([text_of(4), text_of(6)], truncate=False)
    assert reader.likely_tokens(text_of(8)) == pytest.approx(8, abs=1.5)
    assert reader.likely_tokens("") == 0


def test_the_estimate_is_capped_by_the_model_s_limit(reader: SourceReader) -> None:
    reader.read([text_of(6)], truncate=False)
    assert reader.likely_tokens(text_of(500)) == LIMITS.tokens


def test_the_estimate_follows_recent_texts(reader: SourceReader) -> None:
    reader.read(["kite"] * 1000, truncate=False)
    before = reader.likely_tokens("1234")
    reader.read(["1234"] * 1000, truncate=False)
    assert reader.likely_tokens("1234") == pytest.approx(len(tokenizer().encode("1234")), rel=0.01)
    assert before == pytest.approx(len(tokenizer().encode("kite")), rel=0.01)
