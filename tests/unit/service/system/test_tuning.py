import os
import subprocess
import sys
import threading

import pytest

from dragoman.service.system.tuning import MAX_NICENESS, NICENESS, lower_thread_priority
from tests.support.harness import PATIENCE_SECONDS

ALLOCATING_THREADS = """
import ctypes, re, sys, threading
from dragoman.service.system.tuning import limit_malloc_arenas

if sys.argv[1] == "limited":
    limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
gate = threading.Barrier(9)

def allocate():
    libc.malloc(100)
    gate.wait()
    gate.wait()

for _ in range(8):
    threading.Thread(target=allocate, daemon=True).start()
gate.wait()
libc.malloc_stats()
gate.wait()
"""


def arenas(mode: str) -> int:
    """Number of arenas after eight threads have allocated at the same time."""
    run = subprocess.run([sys.executable, "-c", ALLOCATING_THREADS, mode], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stderr.count("Arena ")


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has arenas")
def test_threads_share_two_arenas() -> None:
    assert arenas("limited") == 2
    assert arenas("unlimited") > 2, "without more arenas the limit does nothing"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux threads have a priority of their own")
def test_lower_priority_applies_to_the_calling_thread_alone() -> None:
    found: list[int] = []

    def compute() -> None:
        lower_thread_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [min(MAX_NICENESS, before + NICENESS)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
