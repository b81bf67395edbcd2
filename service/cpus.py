"""How many processors this process may really use, which in a container is fewer than the host has."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def allowed_cpus() -> int:
    """Whole processors that affinity and cgroup quota leave to this process; at least 1."""
    quota = cgroup_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    allowed = _affinity()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_quota(membership: Path, mounts: Path) -> float | None:
    """The smallest quota, in processors, of the groups that this process is in; None if there is none.

    `membership` is /proc/self/cgroup and `mounts` where the groups are mounted, of version 1 or 2. A group's
    quota holds for everything below it, so every group up to the root counts.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [_quota_v2(group) for group in _upward(mounts, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(group) for group in _upward(mounts / "cpu", path)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _upward(mount: Path, path: str) -> Iterator[Path]:
    """The group at `path`, and all that hold it. Inside a container it may be a path of the host, and not exist."""
    inner = PurePosixPath(path).relative_to("/")
    if ".." not in inner.parts:
        yield mount / inner
        yield from (mount / outer for outer in inner.parents)
    else:
        yield mount


def _quota_v2(group: Path) -> float | None:
    words = _words(group / "cpu.max")
    return None if len(words) != 2 or words[0] == "max" else int(words[0]) / int(words[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
