"""From the texts of a request to token ids within the model's limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.bundle.tokenizers import Piece, Tokenizer, cut
from dragoman.service.errors import InvalidRequestError, TooLongError

DECAY = 0.98
"""Of what is known of the texts before, when another is read."""


@dataclass(frozen=True)
class SourceLimits:
    """How much text a call may bring."""

    texts: int
    """Texts of one call."""
    characters: int
    """Characters (Unicode code points) of one text."""
    tokens: int
    """Tokens of one text, the end token counted."""


@dataclass(frozen=True)
class Pair:
    """From which language to which; "" where the caller and the model leave it open, or asks for no translation."""

    source: str = ""
    target: str = ""


NO_PAIR = Pair()


@dataclass(frozen=True)
class Source:
    """One text as the model reads it."""

    ids: tuple[int, ...]
    """Its tokens, the end token last."""
    pieces: tuple[Piece, ...]
    """The same with the bytes they stand for, where that was asked for; else none."""
    truncated: bool
    """Only its beginning is here."""
    blank: bool
    """The text held nothing that the model could read."""


class SourceReader:
    """Turns texts into sources, or says which text is too long for that."""

    def __init__(self, tokenizer: Tokenizer, limits: SourceLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._bytes = self._tokens = 0.0
        """Of the texts read so far, those of long ago counted less."""

    def check(self, texts: Sequence[str], truncate: bool) -> None:
        """What can be said before anything is tokenized: the number of texts, and of characters in each.

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
        """About as many tokens as `text` has, by the texts read so far; 0 before the first."""
        shortened = text[: self._limits.characters]
        return min(float(self._limits.tokens), _bytes(shortened) * self._tokens / self._bytes) if self._bytes else 0.0

    def read(
        self,
        texts: Sequence[str],
        truncate: bool,
        pair: Pair = NO_PAIR,
        offsets: bool = False,
        unwanted: Callable[[], bool] = lambda: False,
    ) -> list[Source]:
        """The sources of texts that `check` let pass, in their order; `offsets` asks for pieces.

        Stops early, with fewer sources, once `unwanted` says so. Raises TooLongError.
        """
        blank = self._tokenizer.encode("", pair.source, pair.target)
        sources: list[Source] = []
        for index, text in enumerate(texts):
            if unwanted():
                break
            sources.append(self._read(index, text, truncate, pair, offsets, blank))
        return sources

    def _read(self, index: int, text: str, truncate: bool, pair: Pair, offsets: bool, blank: list[int]) -> Source:
        shortened = text[: self._limits.characters]
        pieces = self._tokenizer.encode_pieces(shortened, pair.source, pair.target) if offsets else []
        ids = [piece.id for piece in pieces] if offsets else self._tokenizer.encode(shortened, pair.source, pair.target)
        self._note(_bytes(shortened), len(ids))
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
        # Two threads may do so at once; it is an estimate.
        self._bytes = self._bytes * DECAY + size
        self._tokens = self._tokens * DECAY + tokens


def _bytes(text: str) -> int:
    """As UTF-8, of which a token has about as many in every script."""
    return len(text.encode(errors="replace"))
