import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # type: ignore[import-untyped]
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


def test_without_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "nowhere", tmp_path) == PHYSICAL


@pytest.mark.parametrize(("inner", "outer", "bound"), [("1000", "max", 1000), ("max", "2000", 2000), ("9", "8", 8)])
def test_the_smallest_group_limit_applies(tmp_path: Path, inner: str, outer: str, bound: int) -> None:
    assert limit(tmp_path, "0::/a/b\n", a__b=inner, a=outer) == bound


def test_groups_of_version_1_count_too(tmp_path: Path) -> None:
    assert limit(tmp_path, "4:cpu,cpuacct:/x\n3:memory:/a\n", memory__a="3000") == 3000


def test_a_group_without_a_limit_leaves_that_of_the_machine(tmp_path: Path) -> None:
    assert limit(tmp_path, "0::/a\n", a="max") == PHYSICAL
    assert limit(tmp_path, "3:memory:/a\n", memory__a=str(2**63 - 4096)) == PHYSICAL


class FakeNvml:
    """The module pynvml with two devices of 80 bytes; any of its functions may fail."""

    class NVMLError(Exception):
        pass

    def __init__(self, driver: bool = True, counts: bool = True, second: bool = True) -> None:
        self._driver = driver
        self._counts = counts
        self._second = second
        self.inits = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        if not self._driver:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self._counts:
            raise self.NVMLError("Unknown Error")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return 100 + index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if handle == 101 and not self._second:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=80, free=180 - handle, used=handle - 100)


def test_each_device_is_read() -> None:
    assert list(NvidiaDevices(FakeNvml()).memory()) == [DeviceMemory(0, 0, 80), DeviceMemory(1, 1, 80)]


def test_a_device_that_does_not_answer_is_left_out() -> None:
    assert list(NvidiaDevices(FakeNvml(second=False)).memory()) == [DeviceMemory(0, 0, 80)]


@pytest.mark.parametrize("nvml", [FakeNvml(driver=False), FakeNvml(counts=False)], ids=["no driver", "no count"])
def test_without_an_answer_there_are_no_devices(nvml: FakeNvml) -> None:
    assert list(NvidiaDevices(nvml).memory()) == []


@pytest.mark.parametrize("driver", [True, False])
def test_nvml_is_initialized_once(driver: bool) -> None:
    nvml = FakeNvml(driver=driver)
    devices = NvidiaDevices(nvml)
    for _ in range(3):
        devices.memory()
    assert nvml.inits == 1


def test_a_missing_driver_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def missing(name: str, *more: Any) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", missing)
    assert list(NvidiaDevices().memory()) == []
    assert capfd.readouterr() == ("", "")
    assert not caplog.records
