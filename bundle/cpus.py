"""How many processors this process may really use, which in a container is fewer than the host has."""

import os
from pathlib import Path

from dragoman.bundle.cgroups import MEMBERSHIP, MOUNTS, groups, words


def allowed_cpus() -> int:
    """Whole processors that affinity and cgroup quota leave to this process; at least 1."""
    quota = cgroup_quota(MEMBERSHIP, MOUNTS)
    allowed = _affinity()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_quota(membership: Path, mounts: Path) -> float | None:
    """The smallest quota, in processors, of the groups that this process is in; None if there is none."""
    quotas = [
        _quota_v2(group) if version == 2 else _quota_v1(group) for version, group in groups("cpu", membership, mounts)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota_v2(group: Path) -> float | None:
    found = words(group / "cpu.max")
    return None if len(found) != 2 or found[0] == "max" else int(found[0]) / int(found[1])


def _quota_v1(group: Path) -> float | None:
    quota, period = words(group / "cpu.cfs_quota_us"), words(group / "cpu.cfs_period_us")
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None
