"""What this process knows of itself."""

import ctypes
import os
import resource
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

STATM = Path("/proc/self/statm")

M_ARENA_MAX = -8
"""From glibc's malloc.h."""

ARENAS = 2

NICENESS = 5
"""Of threads that compute, above what the process has: others then get three times as much of a processor, and soon."""
MIN_PRIORITY = 19


def own_version() -> str:
    """Dragoman's version; "unknown" where it runs from a source tree that was not installed."""
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "unknown"


def keep_memory_together() -> None:
    """Let all threads allocate from two arenas; to be called before there are any threads.

    With an arena for each thread, what one engine frees lies among what others hold, and neither serves the next engine
    nor goes back to the system. Nothing is done where the C library is not glibc.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        tune(M_ARENA_MAX, ARENAS)


def give_back_memory() -> None:
    """Return to the system what this process has freed: the allocator keeps it, and after a burst that may be much.

    Takes up to some ten milliseconds. Nothing is done where the C library is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def give_way() -> None:
    """Let the thread that calls this have less of a processor than others of the process that want it.

    So calls are taken in, refused and answered in time by a process that computes all the time, and health is told.
    Nothing is done where threads have no priority of their own.
    """
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(MIN_PRIORITY, os.getpriority(os.PRIO_PROCESS, own) + NICENESS))


def resident_memory_bytes() -> int:
    """Memory of this process that is resident now; where the system does not say, the most there ever was."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
