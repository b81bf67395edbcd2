"""SentencePiece models with the ids of their pieces in a separate vocabulary, as in Marian and M2M100."""

import json
from collections.abc import Sequence
from pathlib import Path

import sentencepiece
from pydantic import TypeAdapter, ValidationError

from dragoman.bundle.tokenizers.protocol import Piece
from dragoman.bundle.validation import TokenId, explain

SOURCE_FILE = "source.spm"
TARGET_FILE = "target.spm"
VOCABULARY_FILE = "vocab.json"
TARGET_VOCABULARY_FILE = "target_vocab.json"

SPACE = "▁"
"""SentencePiece's character for a space."""


class PieceCutter:
    """See `Cutter`. One model and one vocabulary for source and target, or one each."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError with the file's path if a file is missing or invalid."""
        self._source = open_pieces(folder / SOURCE_FILE)
        self._target = open_pieces(folder / TARGET_FILE) if (folder / TARGET_FILE).exists() else self._source
        self._ids = read_vocabulary(folder / VOCABULARY_FILE)
        separate = (folder / TARGET_VOCABULARY_FILE).exists()
        target_ids = read_vocabulary(folder / TARGET_VOCABULARY_FILE) if separate else self._ids
        self._pieces = {number: piece for piece, number in target_ids.items()}
        self._unknown = self._ids.get("<unk>")

    @property
    def vocabulary(self) -> int:
        """See `Cutter.vocabulary`."""
        return max(self._ids.values()) + 1

    @property
    def target_vocabulary(self) -> int:
        """See `Cutter.target_vocabulary`."""
        return max(self._pieces) + 1

    def ids(self, text: str) -> list[int]:
        """See `Cutter.ids`."""
        pieces: list[str] = self._source.encode(text, return_type=str)
        return [self._id(piece) for piece in pieces]

    def pieces(self, text: str) -> list[Piece]:
        """See `Cutter.pieces`."""
        found = self._source.encode(text, return_type="offset_mapping", return_bytes=True)
        return [
            Piece(self._id(piece.decode()), start, end)
            for piece, (start, end) in zip(found["pieces"], found["offsets"], strict=True)
        ]

    def text(self, ids: Sequence[int]) -> str:
        """See `Cutter.text`."""
        pieces = [self._pieces[number] for number in ids if number in self._pieces]
        return str(self._target.decode(pieces)).replace(SPACE, " ").strip()

    def _id(self, piece: str) -> int:
        number = self._ids.get(piece, self._unknown)
        if number is None:
            raise ValueError(f"{VOCABULARY_FILE} has neither the piece {piece!r} nor <unk>")
        return number


def open_pieces(path: Path) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model. Raises FileNotFoundError or ValueError with its path."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{path}: not a complete SentencePiece model") from error


def read_vocabulary(path: Path) -> dict[str, int]:
    """Pieces and their ids, which are unique. Raises FileNotFoundError or ValueError with the file's path."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    try:
        vocabulary = TypeAdapter(dict[str, TokenId]).validate_json(path.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(error)}") from error
    if not vocabulary or len(set(vocabulary.values())) < len(vocabulary):
        raise ValueError(f"{path}: must map pieces to unique ids")
    return vocabulary


def write_vocabulary(path: Path, vocabulary: dict[str, int]) -> None:
    """Write a file for `read_vocabulary`."""
    path.write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
