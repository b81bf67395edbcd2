"""The tokenizer of native checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dragoman.bundle.tokenizers.pieces import open_pieces
from dragoman.bundle.tokenizers.protocol import Piece, unless_blank

MODEL_FILE = "sentencepiece.model"


class SentencePieceTokenizer:
    """One SentencePiece model for source and target. It has no languages, and accepts any."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError with the file's path if the model is missing or invalid."""
        path = folder / MODEL_FILE
        self._pieces = open_pieces(path)
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
        """Number of pieces, including control pieces."""
        return self._pieces.vocab_size()

    @property
    def target_vocabulary(self) -> int:
        """The same as `vocabulary`."""
        return self.vocabulary

    @property
    def source_languages(self) -> tuple[str, ...]:
        """See `Tokenizer.source_languages`."""
        return ()

    @property
    def target_languages(self) -> tuple[str, ...]:
        """See `Tokenizer.target_languages`."""
        return ()

    @property
    def native_codes(self) -> Mapping[str, str]:
        """See `Tokenizer.native_codes`."""
        return {}

    @property
    def closing_tokens(self) -> int:
        """See `Tokenizer.closing_tokens`."""
        return 1

    @property
    def start_id(self) -> int:
        """The decoder's first input."""
        return self._pieces.bos_id()

    @property
    def end_id(self) -> int:
        """The token that ends each source and each target."""
        return self._pieces.eos_id()

    @property
    def pad_id(self) -> int:
        """The token that fills the rows of a batch."""
        return self._pieces.pad_id()

    @property
    def control_ids(self) -> tuple[int, ...]:
        """Ids without text (padding, start, end, unknown)."""
        return tuple(sorted(self._control))

    def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
        """See `Tokenizer.encode`."""
        ids: list[int] = self._pieces.encode(unless_blank(text))
        return [*ids, self.end_id]

    def encode_all(self, texts: Sequence[str], *, threads: int = 1) -> list[list[int]]:
        """`encode` for many texts at once, on `threads` threads."""
        rows: list[list[int]] = self._pieces.encode([unless_blank(text) for text in texts], num_threads=threads)
        return [[*ids, self.end_id] for ids in rows]

    def encode_pieces(self, text: str, source_language: str = "", target_language: str = "") -> list[Piece]:
        """See `Tokenizer.encode_pieces`."""
        found = self._pieces.encode(unless_blank(text), return_type="offset_mapping", return_bytes=True)
        length = len(text.encode())
        ids, offsets = [*found["ids"], self.end_id], [*found["offsets"], (length, length)]
        return [Piece(number, start, end) for number, (start, end) in zip(ids, offsets, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return str(self._pieces.decode([number for number in ids if number not in self._control]))

    def prompt(self, target_language: str = "") -> tuple[int, ...]:
        """See `Tokenizer.prompt`."""
        return (self.start_id,)
