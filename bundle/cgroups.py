"""The control groups of this process, through which a container bounds its CPUs and memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNTS = Path("/sys/fs/cgroup")

Controller = Literal["cpu", "memory"]
Version = Literal[1, 2]


def groups(
    controller: Controller, membership: Path = MEMBERSHIP, mounts: Path = MOUNTS
) -> Iterator[tuple[Version, Path]]:
    """Every group that bounds this process for `controller`, with the cgroup version of its files.

    `membership` is /proc/self/cgroup, and `mounts` is the mount point of the groups. A bound holds for the whole
    subtree of its group, so every group up to the root counts.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from ((2, group) for group in _upward(mounts, path))
        elif controller in controllers.split(","):
            yield from ((1, group) for group in _upward(mounts / controller, path))


def words(path: Path) -> list[str]:
    """The words of a group's file; empty if it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def _upward(mount: Path, path: str) -> Iterator[Path]:
    """The group at `path` and its ancestors. Inside a container, `path` may be the host's, and not exist."""
    inner = PurePosixPath(path).relative_to("/")
    if ".." not in inner.parts:
        yield mount / inner
        yield from (mount / outer for outer in inner.parents)
    else:
        yield mount
