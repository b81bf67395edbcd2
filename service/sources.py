"""From the texts of a request to token ids within the model's limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dragoman.model.tokenizer import Piece, Tokenizer, cut
from dragoman.service.errors import InvalidRequestError, TooLongError


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
class Source:
    """One text as the model reads it."""

    ids: tuple[int, ...]
    """Its tokens, the end token last."""
    pieces: tuple[Piece, ...]
    """The same with the bytes they stand for, where that was asked for; else none."""
    truncated: bool
    """Only its beginning is here."""


class SourceReader:
    """Turns texts into sources, or says which text is too long for that."""

    def __init__(self, tokenizer: Tokenizer, limits: SourceLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._blank = tuple(tokenizer.encode(""))

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

    def read(
        self, texts: Sequence[str], truncate: bool, offsets: bool = False, unwanted: Callable[[], bool] = lambda: False
    ) -> list[Source]:
        """The sources of texts that `check` let pass, in their order; `offsets` asks for pieces.

        Stops early, with fewer sources, once `unwanted` says so. Raises TooLongError.
        """
        sources: list[Source] = []
        for index, text in enumerate(texts):
            if unwanted():
                break
            sources.append(self._read(index, text, truncate, offsets))
        return sources

    def is_blank(self, source: Source) -> bool:
        """Whether the text held nothing that the model could read."""
        return source.ids == self._blank

    def _read(self, index: int, text: str, truncate: bool, offsets: bool) -> Source:
        shortened = text[: self._limits.characters]
        pieces = self._tokenizer.encode_pieces(shortened) if offsets else []
        ids = [piece.id for piece in pieces] if offsets else self._tokenizer.encode(shortened)
        limit = self._limits.tokens
        if len(ids) > limit and not truncate:
            raise TooLongError(index, len(ids), limit, "tokens")
        truncated = len(shortened) < len(text) or len(ids) > limit
        return Source(tuple(cut(ids, limit)), tuple(cut_pieces(pieces, limit)), truncated)


def cut_pieces(pieces: list[Piece], limit: int) -> list[Piece]:
    """As `model.tokenizer.cut`, for pieces."""
    return pieces if len(pieces) <= limit else [*pieces[: limit - 1], pieces[-1]]
