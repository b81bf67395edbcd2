"""Text to token ids and back. No torch here: the service uses the very tokenizer the model was trained with."""

from pathlib import Path

from dragoman.model.tokenizers.described import open_described
from dragoman.model.tokenizers.description import DESCRIPTION_FILE
from dragoman.model.tokenizers.languages import UNDETERMINED
from dragoman.model.tokenizers.native import SentencePieceTokenizer
from dragoman.model.tokenizers.protocol import Piece, Tokenizer, cut

__all__ = ["UNDETERMINED", "Piece", "SentencePieceTokenizer", "Tokenizer", "cut", "open_tokenizer"]


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in the `tokenizer` folder of a bundle or a checkpoint, whatever its kind.

    Raises FileNotFoundError or ValueError, with the file's name, if a file is missing or not what it should be.
    """
    return open_described(folder) if (folder / DESCRIPTION_FILE).is_file() else SentencePieceTokenizer(folder)
