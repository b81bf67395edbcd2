"""The tokenizers library, as BART, T5, mBART, NLLB and BERT come with it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import tokenizers

from dragoman.bundle.tokenizers.protocol import Piece

LIBRARY_FILE = "tokenizer.json"

PANIC = "PanicException"
"""What the library raises where its own code went wrong: no Exception, and of no class that can be imported."""


class LibraryCutter:
    """See `Cutter`. One tokenizer for source and target."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError or ValueError, with the file's name, if it is missing or not what it should be."""
        # A batch of one text needs no threads but its caller's; the library would make one for each processor.
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
        # A batch, even of one text, is cut without the interpreter's lock; one text by itself is not.
        with sound():
            return list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def pieces(self, text: str) -> list[Piece]:
        """See `Cutter.pieces`."""
        with sound():
            found = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        places = _bytes_before(text)
        parts = _one_after_another(found.offsets)
        return [
            Piece(number, places[start], places[end]) for number, (start, end) in zip(found.ids, parts, strict=True)
        ]

    def text(self, ids: Sequence[int]) -> str:
        """See `Cutter.text`."""
        with sound():
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def open_library(path: Path) -> tokenizers.Tokenizer:
    """A tokenizer of the library. Raises FileNotFoundError or ValueError with the file's name."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    return read_library(path, path.read_text(encoding="utf-8", errors="replace"))


def read_library(path: Path, content: str) -> tokenizers.Tokenizer:
    """The same of what came from the file at `path`. Raises ValueError with its name."""
    try:
        with sound():
            return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(f"{path}: not a whole tokenizer: {error}") from error


@contextmanager
def sound() -> Iterator[None]:
    """Raise RuntimeError where the library panics, as it does over some files that make no sense."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        raise RuntimeError(f"the tokenizers library failed: {error}") from error


def _bytes_before(text: str) -> list[int]:
    """How many bytes come before each character, and before the end."""
    places = [0]
    for character in text:
        places.append(places[-1] + len(character.encode()))
    return places


def _one_after_another(offsets: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts as `Piece` has them: no gap between two, and a part that several tokens share is the last one's."""
    if not offsets:
        return
    place, last = offsets[0][0], offsets[-1][1]
    for (_, end), (following, _) in pairwise([*offsets, (last, last)]):
        own = max(place, min(end, following))
        yield place, own
        place = own
