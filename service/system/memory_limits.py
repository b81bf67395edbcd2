"""Bounds on memory: the limit of this process, and the memory of NVIDIA devices."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

from dragoman.bundle.cgroups import MEMBERSHIP, MOUNTS, groups, words


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device, in bytes; `used` includes the use by other processes."""

    index: int
    used: int
    total: int


def memory_limit_bytes(membership: Path = MEMBERSHIP, mounts: Path = MOUNTS) -> float:
    """The smallest bound on the memory of this process: a control group's limit, or the machine's memory.

    Infinite where the system gives neither.
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
    """Memory of the machine's NVIDIA devices, from NVML; no devices without a driver."""

    def __init__(self, nvml: Any = pynvml) -> None:
        """Initializes `nvml`, the module pynvml, once."""
        self._nvml = nvml
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            # No driver, which is no fault: most servers run without a GPU.
            self._ready = False
        else:
            self._ready = True

    def memory(self) -> Sequence[DeviceMemory]:
        """Current memory of each device, in order of index; devices that do not answer are left out."""
        if not self._ready:
            return ()
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError:
            return ()
        found = map(self._memory, range(count))
        return tuple(memory for memory in found if memory is not None)

    def _memory(self, index: int) -> DeviceMemory | None:
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._nvml.nvmlDeviceGetHandleByIndex(index))
        except self._nvml.NVMLError:
            return None
        return DeviceMemory(index, memory.used, memory.total)
