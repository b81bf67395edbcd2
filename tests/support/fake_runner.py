"""A runner whose every answer can be worked out by hand, to drive scheduler, engine and real gRPC calls."""

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.service.engine.memory_budget import Costs, Side
from dragoman.service.engine.runner import Memory, MemoryRefusedError, RowInput
from dragoman.service.engine.step import Step

START = 1
END = 2


def output_of(source: Sequence[int]) -> list[int]:
    """What FakeRunner answers to `source`: the same tokens, the end token last."""
    return list(source)


LOGIT = 100.0
"""Added to each log-probability where none is wanted, so that nobody takes it for one."""


def log_prob_of(token: int) -> float:
    """The log-probability of each `token`; a sum of them is exact in any order."""
    return -(token % 8 + 1) / 8


class FakeRunner:
    """Says each source back, one token a step; the output of (5, 6, END) is 5, 6, END.

    A source that holds a token of `poison` gets NaN for its log-probability, and one that holds a token of `endless`
    says it for ever. One that holds a token of `broken` makes each step raise that it is in, and each encoding if it
    begins with one. The states of an embedding are [token, place, 1] for each token.

    With `prompt_tokens` of more than one it says the last token of the row's prompt before its source: fed with
    (START, 40) first, the output of (5, 6, END) is 40, 5, 6, END. Before a prompt has ended it chooses END.

    It watches over its caller as well: a row that is fed anything but a prompt and then its own last token, or that
    takes the place of one that was spoiled and not cleared, is an AssertionError.
    """

    def __init__(
        self,
        rows: int = 64,
        poison: Sequence[int] = (),
        endless: Sequence[int] = (),
        broken: Sequence[int] = (),
        prompt_tokens: int = 1,
    ) -> None:
        self.poison = frozenset(poison)
        self.endless = frozenset(endless)
        self.broken = frozenset(broken)
        self.gate = threading.Event()
        """Steps wait while it is not set."""
        self.gate.set()
        self.stepping = threading.Event()
        """Set by every step as it begins."""
        self.fault: Exception | None = None
        """Raised by the next call that computes, once."""
        self.most_rows = rows
        """Every call that computes more of them at once is refused memory."""
        self.batches: list[int] = []
        """Rows of each step so far."""
        self.scored: list[bool] = []
        """Whether each step so far was to give log-probabilities."""
        self.rests = 0
        self.rested = threading.Event()
        """Set by every rest."""
        self._prompt_tokens = prompt_tokens
        self._sources: list[tuple[int, ...]] = [()] * rows
        self._fed: list[tuple[int, ...]] = [()] * rows
        self._spoiled = [False] * rows

    @property
    def width(self) -> int:
        return 3

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        import numpy as np

        self._fail_if_told(len(sources), (source[0] for source in sources))
        self._wait()
        return [
            np.array(
                [[math.nan if token in self.poison else token, place, 1] for place, token in enumerate(source)],
                np.float32,
            )
            for source in sources
        ]

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        self._fail_if_told(len(sources), (source[0] for source in sources))
        for row, source in enumerate(sources, start=first_row):
            assert not self._spoiled[row], f"row {row} was not cleared"
            self._sources[row] = tuple(source)

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        part = range(len(rows)) if only is None else range(only, only + 1)
        self._fail_if_told(len(part), (token for row in part for token in self._sources[row]))
        self._wait()
        self.batches.append(len(part))
        self.scored.append(scored)
        steps = [self._step_row(row, rows[row]) for row in part]
        return steps if scored else [Step(step.token, step.log_prob + LOGIT) for step in steps]

    def move_row(self, source: int, target: int) -> None:
        self._sources[target] = self._sources[source]
        self._fed[target] = self._fed[source]
        self._spoiled[target] = self._spoiled[source]

    def clear_row(self, row: int) -> None:
        self._sources[row] = ()
        self._spoiled[row] = False

    def rest(self) -> None:
        self.rests += 1
        self.rested.set()

    def memory(self) -> Memory:
        return Memory(
            weights=1000,
            cache_reserved=200,
            cache_resident=100,
            cache_used=50,
            buffers=30,
            working=20,
            source_positions=16,
            output_positions=24,
        )

    def costs(self) -> Costs:
        return Costs(Side((16, 24, 32, 48, 64), 10, 2, 64), Side((16, 24, 32, 48, 64), 20, 2, 64))

    def most_working(self) -> int:
        return 100

    def _step_row(self, row: int, fed: RowInput) -> Step:
        source = self._sources[row]
        if self.poison.intersection(source):
            self._spoiled[row] = True
            return Step(0, math.nan)
        stuck = self.endless.intersection(source)
        if stuck:
            token = min(stuck)
            return Step(token, log_prob_of(token))
        self._fed[row] = before = (*self._fed[row][: fed.position], fed.token)
        assert before[0] == START, f"row {row} was fed {before}"
        assert len(before) == fed.position + 1, f"row {row} was fed {before} up to position {fed.position}"
        place = fed.position + 1 - self._prompt_tokens
        if place < 0:
            return Step(END, log_prob_of(END))
        prompt = before[: self._prompt_tokens]
        says = (*prompt[1:][-1:], *source)
        assert before == (*prompt, *says[:place]), f"row {row} was fed {before}, it had said {says[:place]}"
        return Step(says[place], log_prob_of(says[place]))

    def _wait(self) -> None:
        self.stepping.set()
        assert self.gate.wait(30), "nobody opened the gate"

    def _fail_if_told(self, rows: int, tokens: Iterable[int]) -> None:
        if rows > self.most_rows:
            raise MemoryRefusedError(f"no memory for {rows} rows")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if self.broken.intersection(tokens):
            raise RuntimeError("broken")
