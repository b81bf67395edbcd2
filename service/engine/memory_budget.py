"""Memory that the rows of a batch take, and its bound. Pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    """One of a runner's two caches: for sources, or for outputs."""

    rungs: tuple[int, ...]
    """Possible capacities, in positions."""
    position_bytes: int
    """Bytes of one position of one row, in all arrays."""
    arrays: int
    """Number of arrays; they are moved one by one on a change of capacity."""
    slots: int
    """Maximum number of rows."""
    page_bytes: int = 1
    """Granularity of resident memory in caches larger than one page; the first array is aligned to it."""

    def held_bytes(self, rows: int, positions: int) -> float:
        """Peak resident bytes of `rows` whose longest needs `positions`, a change of capacity included."""
        needed = next((rung for rung in self.rungs if rung >= positions), self.rungs[-1])
        # A cache shrinks only to a capacity of half or less.
        row = max(rung for rung in self.rungs if rung < 2 * needed) * self.position_bytes
        if not self.arrays:
            return 0.0
        whole = self.slots * row
        page = self.page_bytes if whole > self.page_bytes else 1
        starts = (place * whole // self.arrays for place in range(self.arrays))
        used = rows * row // self.arrays
        pages = sum(-(-(start + used) // page) - start // page for start in starts)
        return min(whole, pages * page) * (1 + 1 / self.arrays)


@dataclass(frozen=True)
class Costs:
    """Memory that a runner's rows take in its caches."""

    sources: Side
    outputs: Side

    def cache_bytes(self, rows: int, source: int, output: int) -> float:
        """Bytes of `rows` whose longest source and longest output have so many tokens."""
        return self.sources.held_bytes(rows, source) + self.outputs.held_bytes(rows, output)


@dataclass(frozen=True)
class MemoryBudget:
    """Upper bound of the memory of one runner's batch."""

    limit: float
    """In bytes."""
    costs: Costs
    working: Callable[[], int]
    """Returns the peak of the working memory in bytes."""

    def needed(self, rows: int, source: int, output: int) -> float:
        """Bytes for `rows` whose longest source and longest output have so many tokens."""
        return self.costs.cache_bytes(rows, source, output) + self.working()

    def holds(self, rows: int, source: int, output: int) -> bool:
        """Whether such a batch is within the limit."""
        return self.needed(rows, source, output) <= self.limit
