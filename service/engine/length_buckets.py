"""Which sources are encoded together: those of like length.

Padding is not computed but in attention, which takes the more of the time the longer a source is.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from dragoman.service.engine.sequence import Sequence as Text

SHORTEST = 64
"""Sources up to this are alike; below it another run of the encoder costs more than the padding."""


def bucket(text: Text) -> int:
    """The most tokens that `text` is padded to: the power of 2 that holds its source."""
    return max(SHORTEST, 1 << (len(text.source) - 1).bit_length())


def batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Neighbours of one bucket, together."""
    return (list(alike) for _, alike in groupby(texts, bucket))
