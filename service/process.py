"""What this process knows of itself."""

import os
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

STATM = Path("/proc/self/statm")


def own_version() -> str:
    """Dragoman's version; "unknown" where it runs from a source tree that was not installed."""
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "unknown"


def resident_memory_bytes() -> int:
    """Memory of this process that is resident now; where the system does not say, the most there ever was."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
