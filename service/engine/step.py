"""The result of one decoder step for one row."""

from typing import NamedTuple


class Step(NamedTuple):
    """The new token of one row. A tuple for speed: each row makes one at each step."""

    token: int
    log_prob: float
