"""What the kernel says is resident, by kinds."""

import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from dragoman.service.system.process import resident_memory_bytes
from dragoman.service.system.resident import PAGE, anonymous_bytes, mapped_bytes, touched_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")

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


def test_pages_of_files_are_told_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "smaps").write_text(SMAPS)
    assert mapped_bytes(tmp_path / "smaps") == {"/opt/a file": 6 * 1024}


def test_a_mapped_file_counts_as_far_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * PAGES * PAGE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped_bytes().get(str(path), 0) == 0
        assert sum(mapped[:: mmap.PAGESIZE])
        assert mapped_bytes()[str(path)] == PAGES * PAGE


def test_only_what_was_touched_is_resident() -> None:
    memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block = np.frombuffer(memory, np.uint8)
    assert touched_bytes(block.ctypes.data, block.nbytes) == 0
    assert not block.any(), "reading takes no memory"
    assert touched_bytes(block.ctypes.data, block.nbytes) == 0
    block[: 3 * PAGE] = 1
    assert touched_bytes(block.ctypes.data, block.nbytes) == 3 * PAGE


def test_what_is_written_is_anonymous() -> None:
    before = anonymous_bytes()
    memory = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(memory, np.uint8)[:] = 1
    assert 32 * 2**20 < anonymous_bytes() - before <= resident_memory_bytes() - before


def test_where_the_system_does_not_say_all_that_is_reserved_counts(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert touched_bytes(0, 12345, nowhere) == 12345
    assert anonymous_bytes(nowhere) == 0
    assert mapped_bytes(nowhere) == {}
    assert os.sysconf("SC_PAGE_SIZE") == PAGE
