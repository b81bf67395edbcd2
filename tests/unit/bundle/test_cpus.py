import os
from pathlib import Path

import pytest

from dragoman.bundle import cpus
from dragoman.bundle.cpus import allowed_cpus, cgroup_quota


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def quota(root: Path, membership: str, files: dict[str, str]) -> float | None:
    tree(root, {"membership": membership, **files})
    return cgroup_quota(root / "membership", root / "cgroup")


def test_no_groups_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "nowhere", tmp_path) is None
    assert quota(tmp_path, "0::/\n", {}) is None


def test_a_group_without_a_bound_has_no_quota(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/app\n", {"cgroup/app/cpu.max": "max 100000\n"}) is None


def test_the_quota_of_a_group(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/app\n", {"cgroup/app/cpu.max": "150000 100000\n"}) == 1.5


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {"cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "200000 100000", "cgroup/cpu.max": "400000 100000"}
    assert quota(tmp_path, "0::/a/b\n", files) == 2


@pytest.mark.parametrize("path", ["/docker/0123", "/../../docker/0123"])
def test_in_a_container_the_path_is_the_host_s_and_the_mount_is_the_group(tmp_path: Path, path: str) -> None:
    assert quota(tmp_path, f"0::{path}\n", {"cgroup/cpu.max": "50000 100000"}) == 0.5


def test_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {"cgroup/cpu/app/cpu.cfs_quota_us": "300000", "cgroup/cpu/app/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, "3:memory:/app\n2:cpu,cpuacct:/app\n0::/\n", files) == 3


def test_a_quota_of_minus_one_is_none(tmp_path: Path) -> None:
    files = {"cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, "2:cpu:/\n", files) is None


@pytest.mark.parametrize(
    ("affinity", "bound", "expected"), [(4, None, 4), (4, 1.5, 1), (4, 0.25, 1), (2, 8.0, 2), (4, 3.0, 3)]
)
def test_threads_fit_into_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, affinity: int, bound: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(cpus, "cgroup_quota", lambda *_: bound)
    assert allowed_cpus() == expected


def test_here_at_least_one_processor_is_allowed() -> None:
    assert 1 <= allowed_cpus() <= (os.cpu_count() or 1)
