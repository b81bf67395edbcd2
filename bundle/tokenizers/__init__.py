"""Text to token ids and back. No torch here: the service uses the very tokenizer the model was trained with."""

import shutil
from pathlib import Path

from dragoman.bundle.tokenizers.described import open_described
from dragoman.bundle.tokenizers.description import DESCRIPTION_FILE
from dragoman.bundle.tokenizers.language_codes import UNDETERMINED
from dragoman.bundle.tokenizers.library import LIBRARY_FILE
from dragoman.bundle.tokenizers.native import MODEL_FILE, SentencePieceTokenizer
from dragoman.bundle.tokenizers.pieces import SOURCE_FILE, TARGET_FILE, TARGET_VOCABULARY_FILE, VOCABULARY_FILE
from dragoman.bundle.tokenizers.protocol import Piece, Tokenizer, cut

__all__ = ["UNDETERMINED", "Piece", "SentencePieceTokenizer", "Tokenizer", "copy_tokenizer", "cut", "open_tokenizer"]

FILES = (
    MODEL_FILE,
    DESCRIPTION_FILE,
    LIBRARY_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    VOCABULARY_FILE,
    TARGET_VOCABULARY_FILE,
)
"""All that `open_tokenizer` ever reads."""


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in the `tokenizer` folder of a bundle or a checkpoint, whatever its kind.

    Raises FileNotFoundError or ValueError, with the file's name, if a file is missing or not what it should be.
    """
    return open_described(folder) if (folder / DESCRIPTION_FILE).is_file() else SentencePieceTokenizer(folder)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy what `open_tokenizer` read of the folder `source` into the new folder `target`, and nothing else.

    Whatever else lies there, or is linked there, is nobody's business where a bundle goes.
    """
    target.mkdir(parents=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
