"""The processor as this process sees it: how many CPUs it may use, and which instructions they have."""

import os
from pathlib import Path

from dragoman.bundle.cgroups import MEMBERSHIP, MOUNTS, groups, words


def allowed_cpus() -> int:
    """Whole CPUs that affinity and cgroup quota leave to this process, at least 1.

    A container usually has fewer than its host. Libraries that choose a number of threads by themselves count the
    host's, so every default in this project comes from here.
    """
    quota = cgroup_quota(MEMBERSHIP, MOUNTS)
    allowed = _affinity()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cgroup_quota(membership: Path, mounts: Path) -> float | None:
    """The smallest quota, in CPUs, of the groups that this process is in; None without a quota."""
    quotas = [
        _quota_v2(group) if version == 2 else _quota_v1(group) for version, group in groups("cpu", membership, mounts)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def processor_flags() -> frozenset[str]:
    """Instruction-set flags of the first processor, such as avx512_vnni; empty where the kernel lists none."""
    info = Path("/proc/cpuinfo")
    if not info.is_file():
        return frozenset()
    for line in info.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


def has_bfloat16() -> bool:
    """Whether matrix products in bfloat16 run in hardware, which makes them faster than in float32."""
    return bool(processor_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


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
