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
"""Of most processors."""


def ladder(limit: int) -> tuple[int, ...]:
    """Capacities from 16 on, by halves and doubles; the last is the smallest width that holds `limit`.

    A step works over the whole capacity, so the rungs are close; growing copies, so they are few.
    """
    steps = sorted({power * part // 2 for power in (16 << shift for shift in range(32)) for part in (2, 3)})
    return (*(capacity for capacity in steps if capacity < limit), padded_width(limit))


def rung(rungs: Sequence[int], needed: int) -> int:
    """The smallest capacity that holds `needed` positions. Raises ValueError where none does."""
    for capacity in rungs:
        if capacity >= needed:
            return capacity
    raise ValueError(f"{needed} positions are needed, the most is {rungs[-1]}")


class SlotCache:
    """Arrays [slots, heads, capacity, head], one a name, that grow together.

    They are parts of one block of memory, so that a row is moved or cleared in all of them at once. The block is
    mapped, and not the allocator's: what was never touched is not resident, and what is let go is the system's at once.
    Where the system has huge pages for those that ask, it has them: touching them is cheaper, and reading is faster.

    Cells are zero until they are written: a cell beyond a row's length is multiplied by a weight of 0, which a NaN
    would survive.
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
        """Views of the block, by name; they are others after `fit` and `shrink` have said True."""
        return dict(zip(self._names, self._block, strict=True))

    @property
    def capacity(self) -> int:
        """Positions that each slot holds."""
        return int(self._block.shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._block.nbytes

    @property
    def resident_bytes(self) -> int:
        """The part of them that was touched, and is resident."""
        block = self._block
        return touched_bytes(block.ctypes.data, block.nbytes) if block.nbytes else 0

    @property
    def bytes_per_position(self) -> int:
        """Bytes that one position of one slot takes in all arrays."""
        return self.nbytes // (self._slots * self.capacity)

    @property
    def side(self) -> Side:
        """What its rows take, for a budget."""
        return Side(self._rungs, self.bytes_per_position, len(self._names), self._slots, HUGE_PAGE)

    def shrink(self) -> bool:
        """Fall back to the lowest rung, where nothing is held any more. True if it was on a higher one."""
        if self.capacity == self._rungs[0]:
            return False
        self._renew(self._rungs[0])
        return True

    def fit(self, positions: int, rows: int) -> bool:
        """Hold `positions` in each slot: grow as soon as they are more, shrink when half as many would do.

        The first `rows` slots keep what they hold. True if the arrays are others than before.
        """
        capacity = rung(self._rungs, positions)
        if capacity <= self.capacity < 2 * capacity:
            return False
        held = min(self.capacity, capacity)
        block, memory = self._block, self._memory
        self._renew(capacity)
        for place in range(len(self._names)):
            self._block[place, :rows, :, :held] = block[place, :rows, :, :held]
            # Array by array, so that the old block and the new one are never resident together.
            _let_go(memory, block.nbytes * place // len(self._names), block.nbytes * (place + 1) // len(self._names))
        return True

    def move(self, source: int, target: int) -> None:
        """Copy all that slot `source` holds over slot `target`."""
        self._block[:, target] = self._block[:, source]

    def clear(self, slot: int) -> None:
        """Zero a slot."""
        self._block[:, slot] = 0.0

    def _renew(self, capacity: int) -> None:
        shape = (len(self._names), self._slots, self._heads, capacity, self._head_width)
        count = math.prod(shape)
        try:
            # At least a byte: a model that only embeds has no arrays.
            size = max(1, count * np.dtype(self._dtype).itemsize)
            if size > HUGE_PAGE:
                # What is a multiple of them begins with one.
                size = -(-size // HUGE_PAGE) * HUGE_PAGE
            self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no memory for a cache of {shape}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                # The kernel may have been built without.
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        # The array keeps the mapping, and the last view of it ends both.
        self._block: NDArray[Any] = np.frombuffer(self._memory, self._dtype, count).reshape(shape)


def _let_go(memory: mmap.mmap, start: int, end: int) -> None:
    """Give the pages back that lie between two bytes, where the system can."""
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if start < end:
        memory.madvise(mmap.MADV_DONTNEED, start, end - start)
