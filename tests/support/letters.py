"""A described tokenizer whose ids can be computed by hand."""

from collections.abc import Sequence
from typing import Any

from dragoman.bundle.tokenizers.described import DescribedTokenizer
from dragoman.bundle.tokenizers.description import Description, Language
from dragoman.bundle.tokenizers.protocol import Piece
from tests.support.fake_runner import END

UNKNOWN, EN, FR = 3, 0xE0, 0xF0
"""EN and FR are bytes that no test text contains."""

LANGUAGES = (Language("en", ("eng",), EN), Language("fr", ("fra",), FR))


class Letters:
    """Each byte is a piece with its value as id, except that "!" is END and "?" is UNKNOWN."""

    vocabulary = target_vocabulary = 256

    def ids(self, text: str) -> list[int]:
        return [{"!": END, "?": UNKNOWN}.get(chr(byte), byte) for byte in text.encode()]

    def pieces(self, text: str) -> list[Piece]:
        return [Piece(number, index, index + 1) for index, number in enumerate(self.ids(text))]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(number) for number in ids if number < 256)


def described(**changes: Any) -> DescribedTokenizer:
    """Make a tokenizer of English and French that adds only an end token to a text."""
    defaults: dict[str, Any] = {
        "kind": "pieces",
        "before": (),
        "after": (END,),
        "prompt": (END,),
        "control_ids": (END, UNKNOWN, EN, FR),
        "unknown_id": UNKNOWN,
        "source_languages": LANGUAGES,
        "target_languages": LANGUAGES,
    }
    return DescribedTokenizer(Description(**{**defaults, **changes}), Letters())
