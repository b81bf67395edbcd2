"""The working memory of the model's runs: what is kept from one for the next, and when it goes back to the system.

Both graphs of a model take it from one arena. A run that is larger than all before it makes that larger; by how much
is what the kernel counts before and after. Other runs are not looked at, since that takes time. What other threads take
in the meantime is counted too, until memory is given back.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dragoman.service.system.resident import anonymous_bytes
from dragoman.service.system.tuning import trim_malloc

GIVE_BACK_SECONDS = 10.0
"""How often memory is given back where the models never rest: what one large run took is not kept for ever."""

PATIENCE_SECONDS = 1.0
"""How long a run that is looked at is waited for."""

Size = tuple[int, ...]
"""What a run's memory grows with; any of it that is larger makes a run larger."""


class WorkingMemory:
    """Of one model, in all its lanes. Any thread may call it."""

    def __init__(
        self,
        anonymous: Callable[[], int] = anonymous_bytes,
        give_back: Callable[[], None] = trim_malloc,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`anonymous` counts resident memory, `give_back` returns to the system what is free."""
        self._anonymous = anonymous
        self._give_back = give_back
        self._clock = clock
        self._largest: dict[str, Size] = {}
        """Of each graph, since memory was last given back."""
        self._looking = threading.Lock()
        self._given_back = clock()
        self.nbytes = 0
        """By how much runs have grown the process since memory was last given back."""
        self.most_bytes = 0
        """The most that this ever was."""

    @contextmanager
    def run(self, graph: str, size: Size, caches: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """A run of `graph`: looked at where it is the largest so far, and no other is looked at.

        `caches` counts what is resident of the caches that it may touch, which is not this memory.
        """
        largest = self._largest.get(graph, (0,) * len(size))
        if all(new <= old for new, old in zip(size, largest, strict=True)):
            yield
            return
        # Another thread that is in a run counts what this one takes, too.
        if not self._looking.acquire(blocking=False):
            yield
            return
        try:
            before = self._anonymous() - caches()
            yield
            self.nbytes = max(0, self.nbytes + self._anonymous() - caches() - before)
            self.most_bytes = max(self.most_bytes, self.nbytes)
            self._largest[graph] = tuple(map(max, size, largest))
        finally:
            self._looking.release()

    def give_back(self, shrink: Callable[[], None] = lambda: None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Return to the system what no run uses; takes up to some ten milliseconds.

        `shrink` returns to the allocator what the runtime keeps. Nothing is done where another thread's run is looked
        at for longer than `patience_seconds`.
        """
        if not self._looking.acquire(timeout=patience_seconds):
            return
        try:
            shrink()
            self._give_back()
            self.nbytes = 0
            self._largest.clear()
            self._given_back = self._clock()
        finally:
            self._looking.release()

    def refresh(self, shrink: Callable[[], None]) -> None:
        """Between two runs: give back where that has not been done for a while, and nobody need be waited for."""
        if self._clock() - self._given_back >= GIVE_BACK_SECONDS:
            self.give_back(shrink, patience_seconds=0)
