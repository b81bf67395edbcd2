"""Turns the texts of a request into token ids within the model's limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.bundle.tokenizers import Piece, Tokenizer, cut
from dragoman.service.errors import InvalidRequestError, TooLongError

DECAY = 0.98
"""Factor by which each text read reduces the weight of earlier texts in the estimate of tokens per byte."""


@dataclass(frozen=True)
class SourceLimits:
    """Bounds on the texts of one call."""

    texts: int
    """Texts per call."""
    characters: int
    """Characters (Unicode code points) per text."""
    tokens: int
    """Tokens per text, end token included."""


@dataclass(frozen=True)
class Pair:
    """Source and target language; "" where caller and model leave it open, or for an embedding."""

    source: str = ""
    target: str = ""


NO_PAIR = Pair()


@dataclass(frozen=True)
class Source:
    """One text in the form that the model reads."""

    ids: tuple[int, ...]
    """Token ids, end token last."""
    pieces: tuple[Piece, ...]
    """The same tokens with their byte offsets, if offsets were requested; else empty."""
    truncated: bool
    """Whether the text was cut."""
    blank: bool
    """Whether the text holds nothing that the model can read."""


class SourceReader:
    """Tokenizes texts, and refuses those beyond its limits."""

    def __init__(self, tokenizer: Tokenizer, limits: SourceLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        # Decaying sums over the texts read so far.
        self._bytes = self._tokens = 0.0

    def check(self, texts: Sequence[str], truncate: bool) -> None:
        """Check the number of texts and their characters, before any is tokenized.

        Raises InvalidRequestError or TooLongError.
        """
        if not texts:
            raise InvalidRequestError("texts", "must hold at least one text, is empty")
        if len(texts) > self._limits.texts:
            raise InvalidRequestError("texts", f"must hold at most {self._limits.texts} texts, holds {len(texts)}")
        if truncate:
            return
        for index, text in enumerate(texts):
            if len(text) > self._limits.characters:
                raise TooLongError(index, len(text), self._limits.characters, "characters")

    def likely_tokens(self, text: str) -> float:
        """Estimated number of tokens of `text`, from the texts read so far; 0 before the first."""
        if not self._bytes:
            return 0.0
        shortened = text[: self._limits.characters]
        return min(float(self._limits.tokens), _utf8_bytes(shortened) * self._tokens / self._bytes)

    def read(
        self,
        texts: Sequence[str],
        truncate: bool,
        pair: Pair = NO_PAIR,
        offsets: bool = False,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> list[Source]:
        """The sources of `texts`, which passed `check`, in order; with pieces if `offsets`.

        Stops early, with fewer sources, once `abandoned` returns True. Raises TooLongError.
        """
        blank = self._tokenizer.encode("", pair.source, pair.target)
        sources: list[Source] = []
        for index, text in enumerate(texts):
            if abandoned():
                break
            sources.append(self._read(index, text, truncate, pair, offsets, blank))
        return sources

    def _read(self, index: int, text: str, truncate: bool, pair: Pair, offsets: bool, blank: list[int]) -> Source:
        shortened = text[: self._limits.characters]
        pieces = self._tokenizer.encode_pieces(shortened, pair.source, pair.target) if offsets else []
        ids = [piece.id for piece in pieces] if offsets else self._tokenizer.encode(shortened, pair.source, pair.target)
        self._note(_utf8_bytes(shortened), len(ids))
        limit, closing = self._limits.tokens, self._tokenizer.closing_tokens
        if len(ids) > limit and not truncate:
            raise TooLongError(index, len(ids), limit, "tokens")
        return Source(
            ids=tuple(cut(ids, limit, closing)),
            pieces=tuple(cut(pieces, limit, closing)),
            truncated=len(shortened) < len(text) or len(ids) > limit,
            blank=ids == blank,
        )

    def _note(self, size: int, tokens: int) -> None:
        # Without a lock: two threads may update at once, and an estimate bears the error.
        self._bytes = self._bytes * DECAY + size
        self._tokens = self._tokens * DECAY + tokens


def _utf8_bytes(text: str) -> int:
    """Length in UTF-8, whose bytes per token vary little between scripts."""
    return len(text.encode(errors="replace"))
