"""The interface between the engine's bookkeeping and the arrays of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dragoman.service.engine.memory_budget import Costs
from dragoman.service.engine.step import Step


class MemoryRefusedError(Exception):
    """Memory ran out for a run; one of fewer rows may fit."""


class RowInput(NamedTuple):
    """The input of one row to a step. A tuple for speed: each row makes one at each step."""

    token: int
    """From the prompt, then from the output."""
    position: int
    """Number of tokens fed to the row before this one."""


@dataclass(frozen=True)
class Memory:
    """Memory of a runner, in bytes unless stated otherwise."""

    weights: int
    cache_reserved: int
    """Address space of all rows, in use or not."""
    cache_resident: int
    """Part of it that rows have touched so far; the rest takes no memory yet."""
    cache_used: int
    """Part of it that holds tokens of running rows."""
    buffers: int
    """All other allocated inputs and outputs."""
    working: int
    """Growth of the working memory since it was last given back."""
    source_positions: int
    """Current capacity of each row, in source tokens."""
    output_positions: int
    """Current capacity of each row, in output tokens."""


class Runner(Protocol):
    """Owns the weights and the cache. Rows 0..n-1 are in use; the engine decides which, and moves them.

    Called from one thread. Each method that computes raises MemoryRefusedError if memory runs out.
    """

    @property
    def width(self) -> int:
        """Width of the encoder's states, as in the model's manifest."""

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        """Return the encoder's states of each source: float32 arrays [source, width]."""

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        """Encode sources into the rows from `first_row` on, ready for their first step."""

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        """Decode one token for each of the rows 0..n-1, whose inputs are `rows`; with `only`, for that row alone.

        Log-probabilities cost time: unless `scored`, each is some other number, finite exactly where it would be.
        A step that raised may be repeated: it overwrites what it wrote before.
        """

    def move_row(self, source: int, target: int) -> None:
        """Copy the contents of row `source` over row `target`."""

    def clear_row(self, row: int) -> None:
        """Zero the contents of row `row`."""

    def rest(self) -> None:
        """Give back the memory that a burst of work has taken. No row is in use."""

    def memory(self) -> Memory:
        """Return the memory in use now."""

    def costs(self) -> Costs:
        """Return the memory that rows take in the caches."""

    def most_working(self) -> int:
        """Return the peak of the working memory in bytes; any thread may call it."""
