"""Tokenizers of the tokenizers library, which BART, T5, mBART, NLLB and BERT use."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import tokenizers

from dragoman.bundle.tokenizers.protocol import Piece

LIBRARY_FILE = "tokenizer.json"

PANIC = "PanicException"
"""The library's error for a fault in its own code: not an Exception, and of a class that cannot be imported."""


class LibraryCutter:
    """See `Cutter`. One tokenizer for source and target."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError with the file's path if it is missing or invalid."""
        # A batch of one text needs only its caller's thread; the library would start one for each processor.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = open_library(folder / LIBRARY_FILE)

    @property
    def vocabulary(self) -> int:
        """See `Cutter.vocabulary`."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def target_vocabulary(self) -> int:
        """See `Cutter.target_vocabulary`."""
        return self.vocabulary

    def ids(self, text: str) -> list[int]:
        """See `Cutter.ids`."""
        # The library releases the interpreter's lock for a batch, even of one text, but not for a single text.
        with panics_as_errors():
            return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def pieces(self, text: str) -> list[Piece]:
        """See `Cutter.pieces`."""
        with panics_as_errors():
            found = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        places = _bytes_before(text)
        parts = _adjacent(found.offsets)
        return [
            Piece(number, places[start], places[end]) for number, (start, end) in zip(found.ids, parts, strict=True)
        ]

    def text(self, ids: Sequence[int]) -> str:
        """See `Cutter.text`."""
        with panics_as_errors():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def open_library(path: Path) -> tokenizers.Tokenizer:
    """A tokenizer of the library. Raises FileNotFoundError or ValueError with the file's path."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    return read_library(path, path.read_text(encoding="utf-8", errors="replace"))


def read_library(path: Path, content: str) -> tokenizers.Tokenizer:
    """The tokenizer in `content`, which came from the file at `path`. Raises ValueError with that path."""
    try:
        with panics_as_errors():
            return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"{path}: not a complete tokenizer: {error}") from error


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise RuntimeError if the library panics, as it does for some inconsistent files."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        raise RuntimeError(f"the tokenizers library failed: {error}") from error


def _bytes_before(text: str) -> list[int]:
    """Number of bytes before each character, and before the end."""
    places = [0]
    for character in text:
        places.append(places[-1] + len(character.encode()))
    return places


def _adjacent(offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts as `Piece` defines them: without gaps, and a part that several tokens share goes to the last one."""
    if not offsets:
        return
    place, last = offsets[0][0], offsets[-1][1]
    for (_, end), (following, _) in pairwise([*offsets, (last, last)]):
        own_end = max(place, min(end, following))
        yield place, own_end
        place = own_end
