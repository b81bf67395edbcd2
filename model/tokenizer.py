"""Text to token ids and back. No torch here: the service uses the very tokenizer the model was trained with."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import sentencepiece

MODEL_FILE = "sentencepiece.model"

UNSEEN = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})
"""Unicode's categories of spaces, controls and formats: a text that holds nothing else is blank."""


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
    """What the service, the trainer and the exporter ask of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""

    def encode(self, text: str) -> list[int]:
        """Ids of a source text with its one end token; a text that shows nothing gives the end token alone.

        Nothing that stands in the text yields a control id.
        """

    def encode_pieces(self, text: str) -> list[Piece]:
        """As `encode`, with the bytes that each token stands for."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids; control ids yield nothing."""


class SentencePieceTokenizer:
    """One SentencePiece model for source and target, as native checkpoints have it."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError, with the file's name, if it is missing or no such model."""
        path = folder / MODEL_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the tokenizer's model is missing")
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        except (RuntimeError, OSError) as error:
            raise ValueError(f"{path}: not a whole SentencePiece model") from error
        for name, number in (("padding", self.pad_id), ("start", self.start_id), ("end", self.end_id)):
            if number < 0:
                raise ValueError(f"{path}: must have a {name} token, has none")
        self._control = frozenset(
            number
            for number in range(self.vocabulary)
            if self._pieces.is_control(number) or self._pieces.is_unknown(number)
        )

    @property
    def vocabulary(self) -> int:
        """How many pieces there are, the control ones among them."""
        return self._pieces.vocab_size()

    @property
    def start_id(self) -> int:
        """The token that a decoder is fed first."""
        return self._pieces.bos_id()

    @property
    def end_id(self) -> int:
        """The token that ends each source and each target."""
        return self._pieces.eos_id()

    @property
    def pad_id(self) -> int:
        """The token that fills rows of a batch."""
        return self._pieces.pad_id()

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text (padding, start, end, unknown)."""
        return tuple(sorted(self._control))

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = self._pieces.encode(_unless_blank(text))
        return [*ids, self.end_id]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on all cores."""
        rows: list[list[int]] = self._pieces.encode([_unless_blank(text) for text in texts])
        return [[*ids, self.end_id] for ids in rows]

    def encode_pieces(self, text: str) -> list[Piece]:
        """See `Tokenizer.encode_pieces`."""
        found = self._pieces.encode(_unless_blank(text), return_type="offset_mapping", return_bytes=True)
        length = len(text.encode())
        ids, offsets = [*found["ids"], self.end_id], [*found["offsets"], (length, length)]
        return [Piece(number, start, end) for number, (start, end) in zip(ids, offsets, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return str(self._pieces.decode([number for number in ids if number not in self._control]))


def _unless_blank(text: str) -> str:
    # SentencePiece drops most such characters by itself, but not every one that Unicode knows.
    return "" if all(unicodedata.category(character) in UNSEEN for character in text) else text


def cut(ids: list[int], limit: int) -> list[int]:
    """The first `limit` tokens of a source, `limit` at least 1; its end token stays its last."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
