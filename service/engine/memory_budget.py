"""What the rows of a batch take, and whether that is within bounds. Pure arithmetic."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    """One of a runner's two caches: of sources, or of outputs."""

    rungs: tuple[int, ...]
    """The capacities that it may have."""
    position_bytes: int
    """Of one position of one row, in all arrays."""
    arrays: int
    """Moved one by one where the capacity changes."""
    slots: int
    """Most rows."""
    page_bytes: int = 1
    """In which the kernel may give memory where there is more than one page; the first array begins one."""

    def held_bytes(self, rows: int, positions: int) -> float:
        """The most that is resident for `rows` of which the longest needs so many positions, also while it is moved."""
        needed = next((rung for rung in self.rungs if rung >= positions), self.rungs[-1])
        # A cache shrinks only where half of it would do.
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
    """What a runner's rows take in its caches."""

    sources: Side
    outputs: Side

    def cache_bytes(self, rows: int, source: int, output: int) -> float:
        """Of `rows` whose longest source and longest output have so many tokens."""
        return self.sources.held_bytes(rows, source) + self.outputs.held_bytes(rows, output)


@dataclass(frozen=True)
class MemoryBudget:
    """A bound on what the batch of one runner takes."""

    limit: float
    """Bytes."""
    costs: Costs
    working: Callable[[], int]
    """The most bytes that runs have taken so far."""

    def needed(self, rows: int, source: int, output: int) -> float:
        """Bytes for `rows` whose longest source and longest output have so many tokens."""
        return self.costs.cache_bytes(rows, source, output) + self.working()

    def holds(self, rows: int, source: int, output: int) -> bool:
        """Whether such a batch is within the bound."""
        return self.needed(rows, source, output) <= self.limit
