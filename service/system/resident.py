"""What of this process is resident, as the kernel counts it by kinds of memory. All of it is Linux's.

Two kinds add up to the kernel's figure: pages of files (programs, libraries, mapped weights) and anonymous pages (of
allocators, stacks and caches).
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
OWN = np.uint64(1 << 63 | 1 << 56)
"""Present, and nobody else's: the page of zeros that is read where nothing was written is everybody's."""


def anonymous_bytes(statm: Path = STATM) -> int:
    """Resident memory of no file; 0 where the system does not say."""
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
    """What was written of `length` bytes at `address`, which begins a page, and is resident; all where nobody says."""
    pages = -(-length // PAGE)
    try:
        with pagemap.open("rb", buffering=0) as table:
            table.seek(address // PAGE * ENTRY)
            entries = np.frombuffer(table.read(pages * ENTRY), np.uint64)
    except OSError:
        return length
    return int(np.count_nonzero(entries & OWN == OWN)) * PAGE
