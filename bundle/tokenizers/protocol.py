"""The interface of a tokenizer, independent of the kind of its checkpoint."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

INVISIBLE = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
"""Unicode's categories of spaces, controls and formats: a text of only these is blank."""

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """One token of a text, with the part of the text that it covers.

    The parts are adjacent; spaces at either end of the text belong to no token. If several tokens share one character
    (byte tokens, or the letters of a ligature), the last of them covers it, and the others cover nothing.
    """

    id: int
    start: int
    """Offset of its first byte in the text's UTF-8 form."""
    end: int
    """Offset after its last byte; equal to `start` for a token that covers nothing, such as the end token."""


class Tokenizer(Protocol):
    """Text to token ids and back. Languages are BCP-47 codes from the tokenizer's own lists.

    The number of special tokens at the end of a source does not depend on the languages; nor does a prompt's length.
    """

    @property
    def vocabulary(self) -> int:
        """Number of source ids."""

    @property
    def target_vocabulary(self) -> int:
        """Number of target ids."""

    @property
    def source_languages(self) -> tuple[str, ...]:
        """Languages of sources; empty if its files list none."""

    @property
    def target_languages(self) -> tuple[str, ...]:
        """Languages that it can prompt for; empty if its files list none."""

    @property
    def native_codes(self) -> Mapping[str, str]:
        """The family's own names of languages, such as fra_Latn, with the BCP-47 code for each."""

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Source ids without text (padding, start, end, unknown, languages)."""

    @property
    def closing_tokens(self) -> int:
        """Number of special tokens at the end of each source."""

    def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
        """Ids of a source text with its special tokens; a blank text has only these.

        Without a target language, the text is not to be translated. The text itself never yields a control id, except
        that of an unknown character. Raises ValueError for a language that is not listed.
        """

    def encode_pieces(self, text: str, source_language: str = "", target_language: str = "") -> list[Piece]:
        """`encode` with the bytes that each token covers."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids; control ids have none."""

    def prompt(self, target_language: str = "") -> tuple[int, ...]:
        """The ids fed to the decoder before its first free choice; empty without a decoder.

        Raises ValueError for a language that is not listed.
        """


def unless_blank(text: str) -> str:
    """The text, or "" if it is blank: a tokenizer drops most invisible characters by itself, but not all."""
    return "" if all(unicodedata.category(character) in INVISIBLE for character in text) else text


def cut(tokens: list[T], limit: int, closing: int = 1) -> list[T]:
    """A source truncated to `limit` tokens, at least 1, that keeps its last `closing` tokens."""
    if len(tokens) <= limit:
        return tokens
    kept = min(closing, limit)
    return [*tokens[: limit - kept], *tokens[len(tokens) - kept :]]
