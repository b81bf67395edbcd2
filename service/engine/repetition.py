"""When an output is held to be a loop."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Repetition:
    """A pattern of 1 to `tokens` tokens, said `times` times in a row at the end of an output."""

    tokens: int
    times: int

    def ends(self, output: Sequence[int]) -> bool:
        """Whether `output`, which holds at least one token, ends so."""
        last = output[-1]
        # Asked of every row at every step: nearly always it ends here.
        if last not in output[-1 - self.tokens : -1]:
            return False
        for size in range(1, min(self.tokens, len(output) // self.times) + 1):
            start = len(output) - size * self.times
            if output[-1 - size] == last and output[start:-size] == output[start + size :]:
                return True
        return False
