"""Files that may be replaced while the server runs: what they say is read anew where they have changed."""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

Stamp = tuple[tuple[int, int, int] | None, ...]

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What `read` makes of the files `paths`; any thread may ask for it.

    Files that are half written, or do not fit each other, leave what was read before, and are told of in the log once.
    """

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """`what` is how the log names it. Raises what `read` raises: OSError or ValueError."""
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._value = read()

    def current(self) -> T:
        """What the files say now, or last said when they were in order."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._renew(stamp)
            return self._value

    def _renew(self, stamp: Stamp) -> None:
        try:
            value = self._read()
        except (OSError, ValueError) as error:
            log.error("%s not read anew, those before stay: %s", self._what, error)
            self._stamp = stamp
            return
        if self._look() != stamp:
            # Written meanwhile: the next one who asks tries again.
            return
        self._value, self._stamp = value, stamp
        log.info("%s read anew", self._what)

    def _look(self) -> Stamp:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
