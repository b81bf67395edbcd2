import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman.service.system.memory_limits import DeviceMemory, NvidiaDevices, memory_limit_bytes

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit(root: Path, membership: str, **files: str) -> float:
    (root / "membership").write_text(membership)
    for path, text in files.items():
        place = root / "cgroup" / path.replace("__", "/")
        place.mkdir(parents=True, exist_ok=True)
        (place / ("memory.limit_in_bytes" if path.startswith("memory") else "memory.max")).write_text(text)
    return memory_limit_bytes(root / "membership", root / "cgroup")


def test_without_groups_the_machine_is_the_bound(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "nowhere", tmp_path) == PHYSICAL


@pytest.mark.parametrize(("inner", "outer", "bound"), [("1000", "max", 1000), ("max", "2000", 2000), ("9", "8", 8)])
def test_the_smallest_group_is_the_bound(tmp_path: Path, inner: str, outer: str, bound: int) -> None:
    assert limit(tmp_path, "0::/a/b\n", a__b=inner, a=outer) == bound


def test_groups_of_version_1_count_too(tmp_path: Path) -> None:
    assert limit(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/a\n", memory__a="3000") == 3000


def test_a_group_without_a_bound_leaves_the_machine_s(tmp_path: Path) -> None:
    assert limit(tmp_path, "0::/a\n", a="max") == PHYSICAL
    assert limit(tmp_path, "3:memory:/a\n", memory__a=str(2**63 - 4096)) == PHYSICAL


class FakeNvml:
    """Two devices of 80 bytes, the second of which may be out of order; written as NVML writes."""

    def __init__(self, status: int = 0, second: int = 0) -> None:
        self._status = status
        self._second = second

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self._status

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, device: Any) -> int:  # noqa: N802
        device._obj.value = 100 + index.value
        return self._second if index.value else 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, memory: Any) -> int:  # noqa: N802
        number = device.value or 0
        numbers = (ctypes.c_ulonglong * 3)(80, 180 - number, number - 100)
        ctypes.memmove(memory, numbers, ctypes.sizeof(numbers))
        return 0


def test_devices_are_asked_one_by_one() -> None:
    assert list(NvidiaDevices(FakeNvml()).memory()) == [DeviceMemory(0, 0, 80), DeviceMemory(1, 1, 80)]


def test_a_device_that_does_not_answer_is_left_out() -> None:
    assert list(NvidiaDevices(FakeNvml(second=15)).memory()) == [DeviceMemory(0, 0, 80)]


def test_without_a_driver_there_are_no_devices() -> None:
    assert list(NvidiaDevices(FakeNvml(status=9)).memory()) == []
