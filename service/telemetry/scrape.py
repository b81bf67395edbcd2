"""Work done at a scrape, or put off until then."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman.service.system.memory_limits import DeviceMemory

MAX_PENDING = 64
"""Counts that are put off; one more settles all of them, where no scrape came before."""

DEVICE_MEMORY_KINDS = ("used", "total")


class DeferredCounts:
    """Counts that are put off and done together, at the latest before a scrape.

    Between two runs of the model none of this code is in the processor's caches: done together, each count costs a
    tenth.
    """

    def __init__(self, before_scrape: list[Callable[[], None]]) -> None:
        """Adds its `settle` to `before_scrape`, the functions that each scrape calls first."""
        self._pending: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        before_scrape.append(self.settle)

    def add(self, count: Callable[..., None], *arguments: Any) -> None:
        """Call `count` with `arguments`, later."""
        self._pending.append((count, arguments))
        if len(self._pending) >= MAX_PENDING:
            self.settle()

    def settle(self) -> None:
        """Do all counts that were put off; any thread may call it."""
        while self._pending:
            try:
                count, arguments = self._pending.popleft()
            except IndexError:
                # Another thread was faster.
                return
            count(*arguments)


class ScrapeHooks(Collector):
    """Has no series, but calls functions at each scrape.

    Registered first, because a registry collects in the order of registration.
    """

    def __init__(self, hooks: Sequence[Callable[[], None]]) -> None:
        self._hooks = hooks

    def describe(self) -> Iterator[Metric]:
        """Part of Collector."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Part of Collector."""
        for hook in self._hooks:
            hook()
        return iter(())


class DeviceMemoryCollector(Collector):
    """One gauge, with a series for each device present and none for a device that is absent."""

    def __init__(
        self, name: str, help: str, labels: Sequence[str], devices: Callable[[], Sequence[DeviceMemory]]
    ) -> None:
        """`labels` are two: a device's index, and one of DEVICE_MEMORY_KINDS."""
        self._name = name
        self._help = help
        self._labels = labels
        self._devices = devices

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Part of Collector: the name, without a query to the devices."""
        yield GaugeMetricFamily(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Part of Collector."""
        (gauge,) = self.describe()
        for device in self._devices():
            for kind, number in zip(DEVICE_MEMORY_KINDS, (device.used, device.total), strict=True):
                gauge.add_metric((str(device.index), kind), number)
        if gauge.samples:
            yield gauge
