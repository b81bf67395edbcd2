"""What the engine asks of whatever computes: the seam between bookkeeping and arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dragoman.service.engine.memory_budget import Costs
from dragoman.service.engine.step import Step


class MemoryRefusedError(Exception):
    """There is not the memory for a run of so many rows; one of fewer rows may fit."""


class RowInput(NamedTuple):
    """What one row feeds to a step. A tuple, since each row makes one at each step."""

    token: int
    """Of its prompt, then of its output."""
    position: int
    """How many tokens came before that one in the row."""


@dataclass(frozen=True)
class Memory:
    """What a runner holds, in bytes where nothing else is said."""

    weights: int
    cache_reserved: int
    """Allocated for rows, in use or not."""
    cache_resident: int
    """The part of it that rows have touched, now or before: the rest takes no memory yet."""
    cache_used: int
    """The part of it that holds tokens of running rows."""
    buffers: int
    """Everything else that it allocated for inputs and outputs."""
    working: int
    """What runs have taken since memory was last given back."""
    source_positions: int
    """Tokens of a source that each row has room for now."""
    output_positions: int
    """Tokens of an output that each row has room for now."""


class Runner(Protocol):
    """Owns the weights and the cache. Rows 0..n-1 are in use; the engine says which, and moves them.

    Called from one thread. Whatever computes raises MemoryRefusedError where memory is refused.
    """

    @property
    def width(self) -> int:
        """How many numbers the encoder gives for each token, as the model's manifest has it."""

    def embed(self, sources: Sequence[Sequence[int]]) -> list[Any]:
        """The encoder's states of each source: float32 arrays [source, width]."""

    def insert(self, sources: Sequence[Sequence[int]], first_row: int) -> None:
        """Encode sources into rows `first_row` and on, ready for their first step."""

    def step(self, rows: Sequence[RowInput], only: int | None = None, scored: bool = True) -> list[Step]:
        """Decode one token for each of the rows 0..n-1, whose inputs are `rows`; with `only` for that row alone.

        Log-probabilities cost time: unless `scored`, some other number stands for each, as finite as it would be.
        A step that raised may be asked for once more: what it wrote before is written again.
        """

    def move_row(self, source: int, target: int) -> None:
        """Copy everything that row `source` holds over row `target`."""

    def clear_row(self, row: int) -> None:
        """Zero everything that row `row` holds."""

    def rest(self) -> None:
        """No row is in use: give back what a burst of work has taken."""

    def memory(self) -> Memory:
        """What is held now."""

    def costs(self) -> Costs:
        """What rows take in the caches."""

    def most_working(self) -> int:
        """The most bytes that runs have taken so far; any thread may call it."""
