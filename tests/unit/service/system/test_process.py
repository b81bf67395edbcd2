import subprocess
import sys

import pytest

MANY_ARENAS = """
import ctypes, re, sys, threading
from dragoman.service.system.process import keep_memory_together

if sys.argv[1] == "together":
    keep_memory_together()
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


def arenas(way: str) -> int:
    """How many arenas eight threads make that allocate at the same time."""
    run = subprocess.run([sys.executable, "-c", MANY_ARENAS, way], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stderr.count("Arena ")


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has arenas")
def test_threads_share_two_arenas() -> None:
    assert arenas("together") == 2
    assert arenas("apart") > 2, "or there is nothing to keep together"
