"""Text to token ids and back. No torch here: the service uses the very tokenizer the model was trained with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import sentencepiece

MODEL_FILE = "sentencepiece.model"


@dataclass(frozen=True)
class Piece:
    """One token of a text, and the part of the text it stands for."""

    id: int
    start: int
    """Offset of its first byte in the text's UTF-8 form."""
    end: int
    """Offset after its last byte; equal to `start` for the end token."""


class Tokenizer(Protocol):
    """What the service, the trainer and the exporter ask of a tokenizer."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""

    def encode(self, text: str) -> list[int]:
        """Ids of a source text with its one end token; a blank text gives the end token alone.

        Nothing that stands in the text yields a control id.
        """

    def encode_pieces(self, text: str) -> list[Piece]:
        """As `encode`, with the bytes that each token stands for."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of target ids; control ids yield nothing."""


class SentencePieceTokenizer:
    """One SentencePiece model for source and target, as native checkpoints have it."""

    def __init__(self, folder: Path) -> None:
        path = folder / MODEL_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the tokenizer's model is missing")
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self._control = frozenset(i for i in range(self.vocabulary) if self._pieces.IsControl(i) or self._pieces.IsUnknown(i))

    @property
    def vocabulary(self) -> int:
        return int(self._pieces.vocab_size())

    @property
    def start_id(self) -> int:
        return int(self._pieces.bos_id())

    @property
    def end_id(self) -> int:
        return int(self._pieces.eos_id())

    @property
    def pad_id(self) -> int:
        return int(self._pieces.pad_id())

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Ids that stand for no text (padding, start, end, unknown)."""
        return tuple(sorted(self._control))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._pieces.encode(text)
        return [*ids, self.end_id]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` for many texts at once, on all cores."""
        return [[*ids, self.end_id] for ids in self._pieces.encode(list(texts))]

    def encode_pieces(self, text: str) -> list[Piece]:
        offsets = _byte_offsets(text)
        proto = self._pieces.encode(text, out_type="immutable_proto")
        pieces = [Piece(p.id, offsets[p.begin], offsets[p.end]) for p in proto.pieces]
        return [*pieces, Piece(self.end_id, offsets[-1], offsets[-1])]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._pieces.decode([i for i in ids if i not in self._control]))


def _byte_offsets(text: str) -> list[int]:
    """Where each character starts in the text's UTF-8 form, and last, where the text ends."""
    offsets = [0]
    for character in text:
        offsets.append(offsets[-1] + len(character.encode()))
    return offsets


def cut(ids: list[int], limit: int) -> list[int]:
    """The first `limit` tokens of a source; its end token stays its last."""
    return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
