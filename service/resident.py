"""What of this process is resident, as the kernel counts it by kinds of memory. All of it is Linux's.

Three kinds add up to the kernel's figure: pages of files (programs, libraries, mapped weights), anonymous pages (what
allocators and stacks have) and shared ones, which here are the caches alone (`engine/cache.py`).
"""

import mmap
from pathlib import Path

import numpy as np

STATM = Path("/proc/self/statm")
SMAPS = Path("/proc/self/smaps")
PAGEMAP = Path("/proc/self/pagemap")

PAGE = mmap.PAGESIZE

ENTRY = 8
"""Bytes of a page's entry in PAGEMAP."""
PRESENT = np.uint64(1 << 63)

SHARED = "/dev/zero"
"""What a mapping of shared memory without a file is said to be of."""


def anonymous_bytes(statm: Path = STATM) -> int:
    """Resident memory of allocators and stacks, caches not counted; 0 where the system does not say."""
    try:
        fields = statm.read_text().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * PAGE


def mapped_bytes(smaps: Path = SMAPS) -> dict[str, int]:
    """Resident memory of each mapped file, by its path as the kernel has it; none where the system does not say.

    Pages that were written to are anonymous, and not counted. Takes some milliseconds.
    """
    found: dict[str, int] = {}
    path = ""
    try:
        with smaps.open() as lines:
            for line in lines:
                if line[0] in "0123456789abcdef":
                    name = line.split(maxsplit=5)[5:]
                    path = name[0].rstrip() if name and name[0].startswith("/") else ""
                    if path.startswith(SHARED):
                        path = ""
                elif path and line.startswith("Rss:"):
                    found[path] = found.get(path, 0) + _bytes(line)
                elif path and line.startswith("Anonymous:"):
                    found[path] -= _bytes(line)
    except OSError:
        return {}
    return found


def _bytes(line: str) -> int:
    return int(line.split()[1]) * 1024


def touched_bytes(address: int, length: int, pagemap: Path = PAGEMAP) -> int:
    """What is resident of `length` bytes at `address`, which begins a page; all where the system does not say."""
    pages = -(-length // PAGE)
    try:
        with pagemap.open("rb", buffering=0) as table:
            table.seek(address // PAGE * ENTRY)
            entries = np.frombuffer(table.read(pages * ENTRY), np.uint64)
    except OSError:
        return length
    return int(np.count_nonzero(entries & PRESENT)) * PAGE
