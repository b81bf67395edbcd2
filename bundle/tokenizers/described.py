"""The tokenizer of any imported checkpoint: pieces of text, surrounded by special tokens from its description."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dragoman.bundle.tokenizers.description import Description, Language, Slot
from dragoman.bundle.tokenizers.library import LibraryCutter
from dragoman.bundle.tokenizers.pieces import PieceCutter
from dragoman.bundle.tokenizers.protocol import Piece, unless_blank


class Cutter(Protocol):
    """Splits text into pieces with ids, without any special tokens."""

    @property
    def vocabulary(self) -> int:
        """One more than the largest source id."""

    @property
    def target_vocabulary(self) -> int:
        """One more than the largest target id."""

    def ids(self, text: str) -> list[int]:
        """Source ids of a text."""

    def pieces(self, text: str) -> list[Piece]:
        """Source ids of a text, with the bytes that each covers."""

    def text(self, ids: Sequence[int]) -> str:
        """Text of target ids; an id without a piece is skipped."""


def open_described(folder: Path) -> "DescribedTokenizer":
    """The tokenizer in a folder with a description. Raises FileNotFoundError or ValueError with the file's path."""
    description = Description.load(folder)
    cutter: Cutter = PieceCutter(folder) if description.kind == "pieces" else LibraryCutter(folder)
    return DescribedTokenizer(description, cutter)


class DescribedTokenizer:
    """See `Tokenizer`."""

    def __init__(self, description: Description, cutter: Cutter) -> None:
        self._description = description
        self._cutter = cutter
        self._sources = {language.code: language for language in description.source_languages}
        self._targets = {language.code: language for language in description.target_languages}
        self._control = frozenset(description.control_ids)
        target_control = description.target_control_ids
        self._target_control = self._control if target_control is None else frozenset(target_control)
        self._instructions = {(each.source, each.target): each.words for each in description.instructions}

    @property
    def vocabulary(self) -> int:
        """See `Tokenizer.vocabulary`."""
        return max(self._cutter.vocabulary, *(number + 1 for number in self._control))

    @property
    def target_vocabulary(self) -> int:
        """See `Tokenizer.target_vocabulary`."""
        return max(self._cutter.target_vocabulary, *(number + 1 for number in self._target_control))

    @property
    def source_languages(self) -> tuple[str, ...]:
        """See `Tokenizer.source_languages`."""
        return tuple(self._sources)

    @property
    def target_languages(self) -> tuple[str, ...]:
        """See `Tokenizer.target_languages`."""
        return tuple(self._targets)

    @property
    def native_codes(self) -> Mapping[str, str]:
        """See `Tokenizer.native_codes`."""
        languages = (*self._sources.values(), *self._targets.values())
        return {name: language.code for language in languages for name in language.names}

    @property
    def control_ids(self) -> tuple[int, ...]:
        """See `Tokenizer.control_ids`."""
        return tuple(sorted(self._control))

    @property
    def closing_tokens(self) -> int:
        """See `Tokenizer.closing_tokens`."""
        return len(self._description.after)

    def encode(self, text: str, source_language: str = "", target_language: str = "") -> list[int]:
        """See `Tokenizer.encode`."""
        before, words, after = self._around(source_language, target_language)
        shown = unless_blank(text)
        body = self._cutter.ids(words + shown) if shown else []
        if not self._control.isdisjoint(body):
            body = [number for piece in body for number in self._harmless(piece)]
        return [*before, *body, *after]

    def encode_pieces(self, text: str, source_language: str = "", target_language: str = "") -> list[Piece]:
        """See `Tokenizer.encode_pieces`."""
        before, words, after = self._around(source_language, target_language)
        shown, length, ahead = unless_blank(text), len(text.encode()), len(words.encode())
        body = self._cutter.pieces(words + shown) if shown else []
        return [
            *(Piece(number, 0, 0) for number in before),
            *(
                Piece(number, max(0, piece.start - ahead), max(0, piece.end - ahead))
                for piece in body
                for number in self._harmless(piece.id)
            ),
            *(Piece(number, length, length) for number in after),
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return self._cutter.text([number for number in ids if number not in self._target_control])

    def prompt(self, target_language: str = "") -> tuple[int, ...]:
        """See `Tokenizer.prompt`."""
        target = _language("target_language", target_language, self._targets)
        return tuple(_fill(self._description.prompt, {"target": target}))

    def _around(self, source_language: str, target_language: str) -> tuple[list[int], str, list[int]]:
        """The tokens before a text, its instruction, and the tokens after it."""
        source = _language("source_language", source_language, self._sources)
        target = _language("target_language", target_language, self._targets) if target_language else None
        languages, before = {"source": source, "target": target}, self._description.before
        if target is None:
            before = tuple(slot for slot in before if slot != "target")
        words = self._instructions.get((source.code, target.code), "") if source and target else ""
        return _fill(before, languages), words, _fill(self._description.after, languages)

    def _harmless(self, number: int) -> tuple[int, ...]:
        """The id itself; for a control id, which text must never yield, the unknown id if there is one."""
        unknown = self._description.unknown_id
        if number not in self._control or number == unknown:
            return (number,)
        return () if unknown is None else (unknown,)


def _language(field: str, code: str, offered: Mapping[str, Language]) -> Language | None:
    """The language with this code; without a code, the only one offered. Raises ValueError for an unknown code."""
    if not offered:
        return None
    if not code:
        return next(iter(offered.values())) if len(offered) == 1 else None
    if code not in offered:
        raise ValueError(f"{field} must be one of {', '.join(offered)}, is {code!r}")
    return offered[code]


def _fill(slots: Sequence[Slot], languages: Mapping[str, Language | None]) -> list[int]:
    ids = []
    for slot in slots:
        language = None if isinstance(slot, int) else languages[slot]
        number = slot if isinstance(slot, int) else language and language.id
        if not isinstance(number, int):
            raise ValueError(f"{slot}_language must be given: the model has several")
        ids.append(number)
    return ids
