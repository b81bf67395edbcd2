"""The number of CPUs that a process may use, and the defaults that follow it."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from dragoman.bundle import cpus
from dragoman.bundle.cpus import allowed_cpus, cgroup_quota
from dragoman.export import command as export_command
from dragoman.model.training import command as train_command
from tests.golden.shipped import ROOT
from tests.support.tiny import tiny_checkpoint

COUNTERS = ("cpu_count", "process_cpu_count", "sched_getaffinity")


def write_groups(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Write cgroup files below `root`; returns the paths of the membership file and of the mount."""
    for name, content in {"membership": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root / "membership", root / "cgroup"


def quota(root: Path, membership: str, files: dict[str, str]) -> float | None:
    return cgroup_quota(*write_groups(root, membership, files))


def test_without_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path / "nowhere", tmp_path) is None
    assert quota(tmp_path, "0::/\n", {}) is None


def test_a_group_with_quota_max_has_no_quota(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/app\n", {"cgroup/app/cpu.max": "max 100000\n"}) is None


def test_the_quota_of_a_group_is_read(tmp_path: Path) -> None:
    assert quota(tmp_path, "0::/app\n", {"cgroup/app/cpu.max": "150000 100000\n"}) == 1.5


def test_the_smallest_quota_of_all_ancestors_counts(tmp_path: Path) -> None:
    files = {"cgroup/a/b/cpu.max": "max 100000", "cgroup/a/cpu.max": "200000 100000", "cgroup/cpu.max": "400000 100000"}
    assert quota(tmp_path, "0::/a/b\n", files) == 2


@pytest.mark.parametrize("path", ["/docker/0123", "/../../docker/0123"])
def test_in_a_container_the_quota_is_read_from_the_mount(tmp_path: Path, path: str) -> None:
    assert quota(tmp_path, f"0::{path}\n", {"cgroup/cpu.max": "50000 100000"}) == 0.5


def test_the_quota_of_a_version_1_group_is_read(tmp_path: Path) -> None:
    files = {"cgroup/cpu/app/cpu.cfs_quota_us": "300000", "cgroup/cpu/app/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, "3:memory:/app\n2:cpu,cpuacct:/app\n0::/\n", files) == 3


def test_a_quota_of_minus_one_means_no_quota(tmp_path: Path) -> None:
    files = {"cgroup/cpu/cpu.cfs_quota_us": "-1", "cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert quota(tmp_path, "2:cpu:/\n", files) is None


@pytest.mark.parametrize(
    ("affinity", "bound", "expected"), [(4, None, 4), (4, 1.5, 1), (4, 0.25, 1), (2, 8.0, 2), (4, 3.0, 3)]
)
def test_allowed_cpus_are_bounded_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, affinity: int, bound: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    monkeypatch.setattr(cpus, "cgroup_quota", lambda *_: bound)
    assert allowed_cpus() == expected


def test_at_least_one_cpu_is_allowed() -> None:
    assert 1 <= allowed_cpus() <= (os.cpu_count() or 1)


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a quota of 3 CPUs on a host with 64."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    membership, mounts = write_groups(tmp_path, "0::/\n", {"cgroup/cpu.max": "300000 100000\n"})
    monkeypatch.setattr(cpus, "MEMBERSHIP", membership)
    monkeypatch.setattr(cpus, "MOUNTS", mounts)


class StartedError(Exception):
    """Raised in place of the work of a command."""


def start(command: click.Command, module: ModuleType, work: str, *arguments: str) -> tuple[int, list[Any]]:
    """Run a command up to its function `work`; returns the number of PyTorch's threads, and the arguments of `work`."""
    threads: list[int] = []
    given: list[Any] = []

    def stop(*values: Any, **_: Any) -> None:
        given.extend(values)
        raise StartedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "set_num_threads", threads.append)
        patch.setattr(module, work, stop)
        run = CliRunner().invoke(command, arguments)
    assert isinstance(run.exception, StartedError), run.output
    (count,) = threads
    return count, given


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize(("options", "expected"), [((), 3), (("--threads", "5"), 5)])
def test_export_uses_the_quota_unless_told_otherwise(options: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    torch_threads, (_, _, export_options, _) = start(
        export_command.export, export_command, "export_checkpoint", *options, str(tmp_path), str(tmp_path / "bundle")
    )
    assert torch_threads == export_options.threads == expected


@pytest.mark.usefixtures("container")
@pytest.mark.parametrize(("options", "expected"), [((), 3), (("--threads", "5"), 5)])
def test_train_uses_the_quota_unless_told_otherwise(options: tuple[str, ...], expected: int, tmp_path: Path) -> None:
    tsv = tmp_path / "pairs.tsv"
    tsv.write_text("toy\tA kite.\tUn cerf-volant.\n")
    before = tmp_path / "before"
    tiny_checkpoint(before)
    arguments = ("--steps", "1", "--from", str(before), *options, str(tsv), str(tsv), str(tmp_path / "out"))
    torch_threads, (_, _, _, threads) = start(train_command.train, train_command, "_run", *arguments)
    assert torch_threads == threads == expected


def test_no_other_code_counts_processors() -> None:
    """Every default number of threads comes from `allowed_cpus`; pinning in benchmarks needs the affinity itself."""
    sources = [
        path for part in ("bundle", "client", "export", "model", "service") for path in (ROOT / part).rglob("*.py")
    ]
    counting = [path for path in sources if any(name in path.read_text() for name in COUNTERS)]
    assert counting == [ROOT / "bundle" / "cpus.py"]


@pytest.mark.parametrize(
    ("part", "call", "setting"),
    [
        ("export", "torch.", "torch.set_num_threads(threads)"),
        ("model", "torch.", "torch.set_num_threads(threads)"),
        ("bundle", "InferenceSession(", "intra_op_num_threads = threads"),
        ("service", "InferenceSession(", "intra_op_num_threads = threads"),
    ],
)
def test_no_library_chooses_its_threads(part: str, call: str, setting: str) -> None:
    texts = [path.read_text() for path in (ROOT / part).rglob("*.py")]
    assert any(call in text for text in texts)
    assert sum(text.count(setting) for text in texts) == 1
    if call == "InferenceSession(":
        assert sum(text.count(call) for text in texts) == 1, (
            "each session is opened by the function that sets its threads"
        )
