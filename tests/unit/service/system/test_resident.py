"""Resident memory of this process, by kind."""

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from dragoman.service.system.resident import (
    PAGE,
    anonymous_bytes,
    mapped_bytes,
    resident_memory_bytes,
    touched_bytes,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives the split")

PAGES = 256

SMAPS = """\
55d0-55e0 r--p 00000000 fe:00 260386                     /opt/a file
Rss:                   8 kB
Anonymous:             4 kB
VmFlags: rd mr mw me
55e0-55f0 rw-p 00001000 fe:00 260386                     /opt/a file
Rss:                   2 kB
Anonymous:             0 kB
7f00-7f10 rw-p 00000000 00:00 0
Rss:                 100 kB
Anonymous:           100 kB
7f40-7f50 rw-p 00000000 00:00 0                          [heap]
Rss:                  50 kB
Anonymous:            50 kB
"""


def test_file_pages_are_summed_by_path(tmp_path: Path) -> None:
    (tmp_path / "smaps").write_text(SMAPS)
    assert mapped_bytes(tmp_path / "smaps") == {"/opt/a file": 6 * 1024}


def test_a_mapped_file_counts_as_far_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * PAGES * PAGE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped_bytes().get(str(path), 0) == 0
        assert sum(mapped[:: mmap.PAGESIZE])
        assert mapped_bytes()[str(path)] == PAGES * PAGE


def test_only_written_pages_are_touched() -> None:
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = np.frombuffer(memory, np.uint8)
    assert touched_bytes(block.ctypes.data, block.nbytes) == 0
    assert not block.any(), "reading takes no memory"
    assert touched_bytes(block.ctypes.data, block.nbytes) == 0
    block[: 3 * PAGE] = 1
    assert touched_bytes(block.ctypes.data, block.nbytes) == 3 * PAGE


def test_written_memory_is_anonymous() -> None:
    before = anonymous_bytes()
    memory = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(memory, np.uint8)[:] = 1
    assert 32 * 2**20 < anonymous_bytes() - before <= resident_memory_bytes() - before


def test_the_total_is_the_kernels_figure() -> None:
    kernel = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    assert resident_memory_bytes() == pytest.approx(kernel, rel=0.05)


def test_without_the_systems_figures_reserved_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise psutil.AccessDenied

    nowhere = tmp_path / "nowhere"
    monkeypatch.setattr(psutil, "Process", missing)
    assert touched_bytes(0, 12345, nowhere) == 12345
    assert anonymous_bytes() == 0
    assert resident_memory_bytes() > PAGE, "the peak"
    assert mapped_bytes(nowhere) == {}
    assert os.sysconf("SC_PAGE_SIZE") == PAGE
