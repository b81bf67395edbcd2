"""Files that may be replaced while the server runs: detecting a change, and reloading after one."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

FileStamp = tuple[int, int, int]
"""Inode, size in bytes and time of the last change in nanoseconds: one of them differs after a change."""

Stamp = tuple[tuple[str, FileStamp | None], ...]
"""Names of several files, each with its stamp; None for one that does not exist."""

T = TypeVar("T")


def file_stamp(path: Path) -> FileStamp | None:
    """The current stamp of `path`; None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def folder_stamp(folder: Path) -> Stamp:
    """The current stamps of all regular files below `folder`, by relative path; empty if it cannot be listed."""
    try:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError:
        # A folder was removed while it was being listed.
        return ()
    return tuple((str(path.relative_to(folder)), file_stamp(path)) for path in files)


class WatchedFiles(Generic[T]):
    """The value that `read` makes of the files `paths`, reloaded after a change. Any thread may ask for it.

    Files that are half written, or do not fit each other, leave the previous value in place, with one error in the log.
    """

    def __init__(self, name: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """`name` stands for the files in the log. Raises what `read` raises: OSError or ValueError."""
        self._name = name
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._current_stamp()
        self._value = read()

    def current(self) -> T:
        """The value of the files as they are, or as they last were when they could be read."""
        with self._lock:
            stamp = self._current_stamp()
            if stamp != self._stamp:
                self._reload(stamp)
            return self._value

    def _reload(self, stamp: Stamp) -> None:
        try:
            value = self._read()
        except (OSError, ValueError) as error:
            log.error("could not reload %s; keeping the previous version: %s", self._name, error)
            self._stamp = stamp
            return
        if self._current_stamp() != stamp:
            # Changed while being read: the next call tries again.
            return
        self._value, self._stamp = value, stamp
        log.info("reloaded %s", self._name)

    def _current_stamp(self) -> Stamp:
        return tuple((str(path), file_stamp(path)) for path in self._paths)
