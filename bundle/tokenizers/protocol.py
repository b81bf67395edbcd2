"""What is asked of a tokenizer, whatever kind of checkpoint it came with."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

UNSEEN = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
"""Unicode's categories of spaces, controls and formats: a text that holds nothing else is blank."""

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """One token of a text, and the part of the text it stands for.

    The parts follow each other; spaces at either end of the text belong to none. Where several tokens stand
    for one character (its bytes, or a ligature's letters), the last of them has the character, the others nothing.
    """

    id: int
    start: int
    """Offset of its first byte in the text's UTF-8 form."""
    end: int
    """Offset after its last byte; equal to `start` for a token that stands for nothing, such as the end token."""


class Tokenizer(Protocol):
    """Text to token ids and back. Languages are BCP-47 codes out of those that it lists.

    Every source has the same number of special tokens at its end, whatever the languages; so has every prompt.
    """

    @property
    def vocabulary(self) -> int:
        """How many source ids there are."""

    @property
    def target_vocabulary(self) -> int:
        """How many target ids there are."""

    @property
    def source_languages(self) -> tuple[str, ...]:
        """Those it reads; none where its files do not say."""

    @property
    def target_languages(self) -> tuple[str, ...]:
        """Those it can prompt for; none where its files do not say."""

    @property
    def native_codes(self) -> Mapping[str, str]:
        """The family's own names of languages, such as fra_Latn, and the BCP-47 code that stands for each."""

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Source ids that stand for no text (padding, start, end, unknown, languages)."""

    @property
    def closing_tokens(self) -> int:
        """How many special tokens stand at the end of each source."""

    def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
        """Ids of a source text with its special tokens; a text that shows nothing gives these alone.

        No target language means that no translation is asked for. Nothing that stands in the text yields a control id
        but that of a character which is unknown. Raises ValueError for a language that is not listed.
        """

    def encode_pieces(self, text: str, source_language: str = "", target_language: str = "") -> list[Piece]:
        """As `encode`, with the bytes that each token stands for."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids; control ids yield nothing."""

    def prompt(self, target_language: str = "") -> tuple[int, ...]:
        """The ids that the decoder is fed before its first free choice; none where there is no decoder.

        Raises ValueError for a language that is not listed.
        """


def unless_blank(text: str) -> str:
    """The text, or none where it shows nothing: a tokenizer drops most such characters by itself, but not every one."""
    return "" if all(unicodedata.category(character) in UNSEEN for character in text) else text


def cut(tokens: list[T], limit: int, closing: int = 1) -> list[T]:
    """The first `limit` tokens of a source, `limit` at least 1; of those at its end, `closing` in number, none goes."""
    if len(tokens) <= limit:
        return tokens
    kept = min(closing, limit)
    return [*tokens[: limit - kept], *tokens[len(tokens) - kept :]]
