"""Groups sources of like length to be encoded together.

Only attention computes padding, and its part of the time grows with the length of the source.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from dragoman.service.engine.sequence import Sequence as Text

MIN_WIDTH = 64
"""Width of the lowest bucket: below it a further run of the encoder costs more than the padding."""


def bucket(text: Text) -> int:
    """Maximum width to which `text` is padded: the lowest power of 2 that holds its source."""
    return max(MIN_WIDTH, 1 << (len(text.source) - 1).bit_length())


def batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Split `texts` into runs of neighbours of one bucket."""
    return (list(alike) for _, alike in groupby(texts, bucket))
