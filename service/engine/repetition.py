"""Detection of outputs that have become a loop."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Repetition:
    """A pattern of 1 to `tokens` tokens, repeated `times` times at the end of an output."""

    tokens: int
    times: int

    def ends(self, output: Sequence[int]) -> bool:
        """Whether `output`, of at least one token, ends with such a repetition."""
        last = output[-1]
        # Runs for every row at every step, and nearly always ends here.
        if last not in output[-1 - self.tokens : -1]:
            return False
        for size in range(1, min(self.tokens, len(output) // self.times) + 1):
            start = len(output) - size * self.times
            if output[-1 - size] == last and output[start:-size] == output[start + size :]:
                return True
        return False
