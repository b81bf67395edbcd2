"""Cache memory: slots for rows, with a capacity that grows along a short ladder."""

import math
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.bundle.graphs import DType, padded_width
from dragoman.service.engine.memory_budget import Side
from dragoman.service.system.resident import touched_bytes

HUGE_PAGE = 2 * 2**20
"""Size of huge pages on most processors, in bytes."""


def ladder(limit: int) -> tuple[int, ...]:
    """Capacities from 16 upwards, alternately times 3/2 and 4/3; the last is the smallest width that holds `limit`.

    A step computes over the whole capacity, so the rungs are close; growth copies, so they are few.
    """
    steps = sorted({power * part // 2 for power in (16 << shift for shift in range(32)) for part in (2, 3)})
    return (*(capacity for capacity in steps if capacity < limit), padded_width(limit))


def rung(rungs: Sequence[int], needed: int) -> int:
    """Smallest capacity that holds `needed` positions. Raises ValueError if none does."""
    for capacity in rungs:
        if capacity >= needed:
            return capacity
    raise ValueError(f"{needed} positions are needed, the most is {rungs[-1]}")


class SlotCache:
    """Arrays [slots, heads, capacity, head width], one per name, that grow together.

    They are parts of one block of memory, so that one copy moves or clears a row in all of them. The block is mapped,
    not allocated: untouched pages are not resident, and freed pages return to the system at once. It requests huge
    pages: they are cheaper to touch and faster to read.

    Cells are zero until they are written: a cell beyond a row's length is multiplied by a weight of 0, and a NaN would
    survive that.
    """

    def __init__(self, names: Iterable[str], slots: int, heads: int, head_width: int, limit: int, dtype: DType) -> None:
        self._names = tuple(names)
        self._slots = slots
        self._heads = heads
        self._head_width = head_width
        self._dtype = dtype
        self._rungs = ladder(limit)
        self._renew(self._rungs[0])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Views of the block, by name; replaced whenever `fit` or `shrink` returns True."""
        return dict(zip(self._names, self._block, strict=True))

    @property
    def capacity(self) -> int:
        """Positions of each slot."""
        return int(self._block.shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._block.nbytes

    @property
    def resident_bytes(self) -> int:
        """Resident part of `nbytes`: the pages touched so far."""
        block = self._block
        return touched_bytes(block.ctypes.data, block.nbytes) if block.nbytes else 0

    @property
    def bytes_per_position(self) -> int:
        """Bytes of one position of one slot, in all arrays."""
        return self.nbytes // (self._slots * self.capacity)

    @property
    def side(self) -> Side:
        """Memory of its rows, for a budget."""
        return Side(self._rungs, self.bytes_per_position, len(self._names), self._slots, HUGE_PAGE)

    def shrink(self) -> bool:
        """Return to the lowest rung and discard all cells. True if the capacity was higher."""
        if self.capacity == self._rungs[0]:
            return False
        self._renew(self._rungs[0])
        return True

    def fit(self, positions: int, rows: int) -> bool:
        """Make room for `positions` in each slot: grow if needed, shrink if half the capacity suffices.

        The first `rows` slots keep their contents. True if the arrays were replaced.
        """
        capacity = rung(self._rungs, positions)
        if capacity <= self.capacity < 2 * capacity:
            return False
        held = min(self.capacity, capacity)
        block, memory = self._block, self._memory
        self._renew(capacity)
        for place in range(len(self._names)):
            self._block[place, :rows, :, :held] = block[place, :rows, :, :held]
            # Array by array, so that the old and the new block are never fully resident together.
            start, end = (block.nbytes * part // len(self._names) for part in (place, place + 1))
            _free_pages(memory, start, end)
        return True

    def move(self, source: int, target: int) -> None:
        """Copy the contents of slot `source` over slot `target`."""
        self._block[:, target] = self._block[:, source]

    def clear(self, slot: int) -> None:
        """Zero a slot."""
        self._block[:, slot] = 0.0

    def _renew(self, capacity: int) -> None:
        shape = (len(self._names), self._slots, self._heads, capacity, self._head_width)
        count = math.prod(shape)
        try:
            # At least one byte: a model that only embeds has no arrays.
            size = max(1, count * np.dtype(self._dtype).itemsize)
            if size > HUGE_PAGE:
                # The kernel aligns only mappings of whole huge pages.
                size = -(-size // HUGE_PAGE) * HUGE_PAGE
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot allocate {size} bytes for a cache of shape {shape}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                # The kernel may lack huge pages.
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        # The array keeps the mapping alive, until its last view is gone.
        self._block: NDArray[Any] = np.frombuffer(self._memory, self._dtype, count).reshape(shape)


def _free_pages(memory: mmap.mmap, start: int, end: int) -> None:
    """Return the whole pages between two offsets to the system."""
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        memory.madvise(mmap.MADV_DONTNEED, start, end - start)
