"""Settings of the allocator, the scheduler and the garbage collector that look odd and were measured.

Each figure stands beside its setting, so that one can be taken out and measured again. Two more must live elsewhere:

- `clear_traceback` in `service/rpc/message_parsing.py` breaks the cycles that an aborted call leaves. At five times the
  load, the search for such cycles took a seventh of the event loop's time.
- Deferred counting in `service/telemetry/scrape.py`: the engine's and the calls' figures are counted in batches of
  `MAX_PENDING` (64), or at a scrape.
"""

import ctypes
import os
import sys
import threading
from typing import Any

M_ARENA_MAX = -8
"""Source: glibc's malloc.h."""

MALLOC_ARENAS = 2
"""Arenas shared by all threads. After 20 replacements of the shipped model the process held 142 to 152 MiB with two
arenas, and 194 to 258 MiB with glibc's default of one per thread."""

NICENESS = 5
"""Added to the niceness of compute threads; other threads then get three times as much of a processor.

Measured on one processor at five times the load, together with refusals before tokenizing. Without both, two thirds of
the capacity were left, and 1 % of the refusals took longer than 60 to 140 ms."""

MAX_NICENESS = 19
"""Lowest priority that Linux knows."""

GC_THRESHOLD = 10_000
"""New objects before Python searches the youngest generation for cycles; its default is 700. Reference counting frees
nearly all that calls leave; at the default, the searches cost a tenth."""


def limit_malloc_arenas() -> None:
    """Make all threads share `MALLOC_ARENAS` arenas. Call it before any thread is started.

    With an arena per thread, memory freed by one engine lies scattered among memory still in use. The next engine
    cannot reuse it, and it never returns to the system. No-op without glibc.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        mallopt(M_ARENA_MAX, MALLOC_ARENAS)


def trim_malloc() -> None:
    """Return freed memory to the system: glibc keeps it, which after a burst may be much.

    Takes up to some ten milliseconds. No-op without glibc.
    """
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def lower_thread_priority() -> None:
    """Raise the niceness of the calling thread by `NICENESS`, up to the system's limit.

    The event loop then takes calls, refuses them and answers health checks in time while the model computes.
    No-op where threads have no priority of their own.
    """
    if sys.platform == "linux":
        # psutil sets the niceness of processes only. On Linux a thread's id is accepted in place of a process's.
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, min(MAX_NICENESS, niceness))


def _glibc(function: str) -> Any:
    """The C library's `function`; None where the library has none of that name."""
    return getattr(ctypes.CDLL(None), function, None) if sys.platform == "linux" else None
