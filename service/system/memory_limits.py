"""How much memory this process may use, and what NVIDIA devices have."""

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.bundle.cgroups import MEMBERSHIP, MOUNTS, groups, words

NVML = "libnvidia-ml.so.1"
"""NVIDIA's management library; it comes with the driver."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of one device, in bytes; what other processes use is counted too."""

    index: int
    used: int
    total: int


def memory_limit_bytes(membership: Path = MEMBERSHIP, mounts: Path = MOUNTS) -> float:
    """The smallest bound on this process's memory: of its control groups, or what the machine has.

    Infinite where the system says neither.
    """
    bounds = [_machine_bytes()]
    for version, group in groups("memory", membership, mounts):
        found = words(group / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if found and found[0] != "max":
            bounds.append(int(found[0]))
    return min(bounds)


def _machine_bytes() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return math.inf


class NvidiaDevices:
    """Every NVIDIA device of the machine, as NVML tells of it; none where there is no driver."""

    def __init__(self, library: Any = None) -> None:
        """`library` is NVML, opened; None looks for it."""
        self._library = library or _opened(NVML)
        if self._library is not None and self._library.nvmlInit_v2() != 0:
            self._library = None

    def memory(self) -> Sequence[DeviceMemory]:
        """What each device has now; one that does not answer is left out."""
        if self._library is None:
            return ()
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        found = (self._memory(index) for index in range(count.value))
        return tuple(each for each in found if each is not None)

    def _memory(self, index: int) -> DeviceMemory | None:
        device, memory = ctypes.c_void_p(), _NvmlMemory()
        if self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
            return None
        if self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) != 0:
            return None
        return DeviceMemory(index, memory.used, memory.total)


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _opened(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
