"""Working memory of a model's runs: its size, and its return to the system.

Both graphs of a model use one arena, which a run larger than all before it extends. The growth is the difference of the
kernel's counts before and after. Smaller runs are not measured, since that takes time. Memory that other threads take
meanwhile is included until memory is given back.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dragoman.service.system.resident import anonymous_bytes
from dragoman.service.system.tuning import trim_malloc

GIVE_BACK_SECONDS = 10.0
"""Interval at which memory is given back under constant load, so that one large run does not keep it for ever."""

PATIENCE_SECONDS = 1.0
"""Maximum time to wait for a measured run."""

Size = tuple[int, ...]
"""Quantities that a run's memory grows with; a run is larger if any of them is."""


class WorkingMemory:
    """Working memory of one model, in all its lanes. Any thread may call it."""

    def __init__(
        self,
        anonymous: Callable[[], int] = anonymous_bytes,
        give_back: Callable[[], None] = trim_malloc,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`anonymous` counts resident bytes, and `give_back` returns the allocator's free memory to the system."""
        self._anonymous = anonymous
        self._give_back = give_back
        self._clock = clock
        self._largest: dict[str, Size] = {}
        """Largest size so far of each graph's runs, since memory was last given back."""
        self._measuring = threading.Lock()
        self._given_back = clock()
        self.nbytes = 0
        """Growth of the process by runs since memory was last given back."""
        self.most_bytes = 0
        """Peak of `nbytes`."""

    @contextmanager
    def run(self, graph: str, size: Size, caches: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Measure a run of `graph` if it is the largest so far and no other is being measured.

        `caches` counts the resident bytes of the caches that the run may touch: they are not working memory.
        """
        largest = self._largest.get(graph, (0,) * len(size))
        if all(new <= old for new, old in zip(size, largest, strict=True)):
            yield
            return
        # A measured run of another thread includes the growth by this one.
        if not self._measuring.acquire(blocking=False):
            yield
            return
        try:
            before = self._anonymous() - caches()
            yield
            self.nbytes = max(0, self.nbytes + self._anonymous() - caches() - before)
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self._largest[graph] = tuple(map(max, size, largest))
        finally:
            self._measuring.release()

    def give_back(self, shrink: Callable[[], None] = lambda: None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Return unused memory to the system; takes up to some ten milliseconds.

        `shrink` returns the runtime's unused memory to the allocator. Does nothing if a run of another thread is being
        measured for longer than `patience_seconds`.
        """
        if not self._measuring.acquire(timeout=patience_seconds):
            return
        try:
            shrink()
            self._give_back()
            self.nbytes = 0
            self._largest.clear()
            self._given_back = self._clock()
        finally:
            self._measuring.release()

    def refresh(self, shrink: Callable[[], None]) -> None:
        """Give memory back if that is due and no run is being measured. Called between two runs."""
        if self._clock() - self._given_back >= GIVE_BACK_SECONDS:
            self.give_back(shrink, patience_seconds=0)
