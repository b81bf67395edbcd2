"""Tokenizers: text to token ids and back. No torch: the service runs the tokenizer that the model was trained with."""

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
"""Every file that `open_tokenizer` may read."""


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in the `tokenizer` folder of a bundle or a checkpoint, of either kind.

    Raises FileNotFoundError or ValueError with the file's path if a file is missing or invalid.
    """
    return open_described(folder) if (folder / DESCRIPTION_FILE).is_file() else SentencePieceTokenizer(folder)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files that `open_tokenizer` reads from the folder `source` into the new folder `target`.

    Any other file or link there may be private, and must not get into a bundle.
    """
    target.mkdir(parents=True)
    for name in FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
