"""The result of one decoder step for one row."""

from typing import NamedTuple


class Step(NamedTuple):
    """One row's new token. A tuple, since each row makes one at each step."""

    token: int
    log_prob: float
