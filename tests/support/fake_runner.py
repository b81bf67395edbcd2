"""A runner whose answers can be computed by hand, for tests of the scheduler, the engine and gRPC calls."""

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.service.engine.memory_budget import Costs, Side
from dragoman.service.engine.runner import Memory, MemoryRefusedError, RowInput
from dragoman.service.engine.step import Step

GATE_SECONDS = 120
"""Bound on a step that waits for its gate: longer than a test waits for an answer."""

START = 1
END = 2


def output_of(source: Sequence[int]) -> list[int]:
    """FakeRunner's answer to `source`: the same tokens, the end token last."""
    return list(source)


LOGIT = 100.0
"""Added to each unwanted log-probability, so that a test that uses it fails."""


def log_prob_of(token: int) -> float:
    """Log-probability of `token`; sums of them are exact in any order."""
    return -(token % 8 + 1) / 8


class FakeRunner:
    """Repeats each source, one token a step: the output of (5, 6, END) is 5, 6, END.

    A source with a token of `poison` gets NaN for its log-probability, and one with a token of `endless` repeats that
    token for ever. A source with a token of `broken` makes each of its steps raise, and its encoding too if it begins
    with one. The states of an embedding are [token, index, 1] for each token.

    If `prompt_tokens` is more than one, the output begins with the last token of the row's prompt: with the prompt
    (START, 40), the output of (5, 6, END) is 40, 5, 6, END. Within a prompt it chooses END.

    It also checks its caller: a row fed with anything but its prompt and then its own last token, or inserted over a
    spoiled row that was not cleared, is an AssertionError.
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
        """Steps and embeddings wait until it is set."""
        self.gate.set()
        self.stepping = threading.Event()
        """Set as each step or embedding begins."""
        self.fault: Exception | None = None
        """Raised once, by the next call that computes."""
        self.most_rows = rows
        """Memory runs out for every call with more rows."""
        self.batches: list[int] = []
        """Number of rows of each step so far."""
        self.scored: list[bool] = []
        """`scored` of each step so far."""
        self.rests = 0
        self.rested = threading.Event()
        """Set by each rest."""
        self._prompt_tokens = prompt_tokens
        self._sources: list[tuple[int, ...]] = [()] * rows
        self._fed: list[tuple[int, ...]] = [()] * rows
        self._spoiled = [False] * rows

    @property
    def width(self) -> int:
        return 3

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        import numpy as np

        self._raise_fault(len(sources), (source[0] for source in sources))
        self._wait()
        return [
            np.array(
                [[math.nan if token in self.poison else token, index, 1] for index, token in enumerate(source)],
                np.float32,
            )
            for source in sources
        ]

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        self._raise_fault(len(sources), (source[0] for source in sources))
        for row, source in enumerate(sources, start=first_row):
            assert not self._spoiled[row], f"row {row} was not cleared"
            self._sources[row] = tuple(source)

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        part = range(len(rows)) if only is None else range(only, only + 1)
        self._raise_fault(len(part), (token for row in part for token in self._sources[row]))
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
        endless = self.endless.intersection(source)
        if endless:
            token = min(endless)
            return Step(token, log_prob_of(token))
        self._fed[row] = before = (*self._fed[row][: fed.position], fed.token)
        assert before[0] == START, f"row {row} was fed {before}"
        assert len(before) == fed.position + 1, f"row {row} was fed {before} up to position {fed.position}"
        index = fed.position + 1 - self._prompt_tokens
        if index < 0:
            return Step(END, log_prob_of(END))
        prompt = before[: self._prompt_tokens]
        answer = (*prompt[1:][-1:], *source)
        assert before == (*prompt, *answer[:index]), f"row {row} was fed {before}, after {answer[:index]}"
        return Step(answer[index], log_prob_of(answer[index]))

    def _wait(self) -> None:
        self.stepping.set()
        assert self.gate.wait(GATE_SECONDS), "the gate stayed shut"

    def _raise_fault(self, rows: int, tokens: Iterable[int]) -> None:
        if rows > self.most_rows:
            raise MemoryRefusedError(f"no memory for {rows} rows")
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        if self.broken.intersection(tokens):
            raise RuntimeError("broken")
