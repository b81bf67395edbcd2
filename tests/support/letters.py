"""A described tokenizer whose every id can be worked out by hand."""

from collections.abc import Sequence
from typing import Any

from dragoman.bundle.tokenizers.described import DescribedTokenizer
from dragoman.bundle.tokenizers.description import Description, Language
from dragoman.bundle.tokenizers.protocol import Piece
from tests.support.fake_runner import END

UNKNOWN, EN, FR = 3, 0xE0, 0xF0
"""EN and FR are bytes that no text holds."""

LANGUAGES = (Language("en", ("eng",), EN), Language("fr", ("fra",), FR))


class Letters:
    """Every byte is a piece, its value the id; "!" is END and "?" UNKNOWN."""

    vocabulary = target_vocabulary = 256

    def ids(self, text: str) -> list[int]:
        return [{"!": END, "?": UNKNOWN}.get(chr(byte), byte) for byte in text.encode()]

    def pieces(self, text: str) -> list[Piece]:
        return [Piece(number, place, place + 1) for place, number in enumerate(self.ids(text))]

    def text(self, ids: Sequence[int]) -> str:
        return "".join(chr(number) for number in ids if number < 256)


def described(**changes: Any) -> DescribedTokenizer:
    """Source and target are English or French; there is an end token, and nothing else around a text."""
    plain: dict[str, Any] = {
        "kind": "pieces",
        "before": (),
        "after": (END,),
        "prompt": (END,),
        "control_ids": (END, UNKNOWN, EN, FR),
        "unknown_id": UNKNOWN,
        "source_languages": LANGUAGES,
        "target_languages": LANGUAGES,
    }
    return DescribedTokenizer(Description(**{**plain, **changes}), Letters())
