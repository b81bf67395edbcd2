"""Checks a live server's metrics against measurements by clients, the kernel and the container engine."""

import asyncio
import math
import statistics
import time
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import grpc

from deploy.traffic import SENTENCES
from dragoman.client import AsyncClient, Client, ClientError
from dragoman.service.telemetry.metrics import SECONDS
from dragoman.v1.names import SERVICE
from tests.deploy.prometheus_api import DIRECT, Prometheus
from tests.deploy.stack import Stack

CALLS = 60
"""Number of timed calls."""
SCRAPES = 5
"""The fastest one counts, since the machine may be busy."""
UNKNOWN_NAMES = 2000
"""Number of unknown languages, and of unknown methods."""

MAX_BYTES = 200_000
MAX_SECONDS = 0.05
MAX_NEW_SERIES = 10
MAX_MEMORY_DIFFERENCE = 0.05

QUANTILES = (0.5, 0.9)
TRANSLATE_BUCKETS = 'sum by (le) (grpc_server_handling_seconds_bucket{grpc_method="Translate"})'

RESIDENT = "import os; print(int(open('/proc/1/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE'))"
"""Prints the resident memory of the container's first process, as counted by the kernel."""


class CheckError(Exception):
    """A check failed; the message says which and how."""


@dataclass(frozen=True)
class Page:
    """One scrape of /metrics."""

    text: str
    seconds: float
    """Duration of the scrape."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.text.encode())

    @property
    def series(self) -> dict[str, float]:
        """The value of every series."""
        lines = (line.rpartition(" ") for line in self.text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


def scrape(address: str) -> Page:
    """Scrape the metrics at `address`."""
    begun = time.perf_counter()
    with DIRECT.open(address, timeout=10) as response:
        text = response.read().decode()
    return Page(text, time.perf_counter() - begun)


def calls_answered(address: str) -> str:
    """Translate and Embed give correct answers. Raises CheckError, ClientError."""
    with Client(address) as client:
        french = client.translate(["The cat sat on the mat."], to="fr").texts[0]
        vectors = client.embed(["The cat sat on the mat.", "A dog."]).embeddings
    lengths = [math.hypot(*vector.values) for vector in vectors]
    if "chat" not in french or not all(math.isclose(length, 1, abs_tol=1e-3) for length in lengths):
        raise CheckError(f"Translate gave {french!r}, Embed vectors of lengths {lengths}")
    return f"{french!r}, and {len(vectors)} vectors of {len(vectors[0].values)} numbers"


def latencies_agree(address: str, prometheus: Prometheus) -> str:
    """Clients and Prometheus agree on the latency of Translate to within one bucket. Raises CheckError.

    The server must not have answered a Translate call before.
    """
    durations = []
    with Client(address) as client:
        for number in range(CALLS):
            begun = time.perf_counter()
            client.translate([SENTENCES[number % len(SENTENCES)]])
            durations.append(time.perf_counter() - begun)
    _wait_for(prometheus, f'sum(grpc_server_handling_seconds_count{{grpc_method="Translate"}}) == {CALLS}')
    cuts = statistics.quantiles(durations, n=100, method="inclusive")
    found = []
    for quantile in QUANTILES:
        ours = cuts[round(quantile * 100) - 1]
        (theirs,) = prometheus.instant(f"histogram_quantile({quantile}, {TRANSLATE_BUCKETS})")
        value = theirs.samples[0][1]
        if abs(bisect_left(SECONDS, ours) - bisect_left(SECONDS, value)) > 1:
            raise CheckError(
                f"quantile {quantile} of Translate is {ours:.4f} s for the client, {value:.4f} s in Prometheus"
            )
        found.append(f"{quantile:g}: {ours * 1000:.1f} and {value * 1000:.1f} ms")
    return f"quantiles of {CALLS} calls, for the client and in Prometheus: {', '.join(found)}"


def unknown_names_add_no_series(address: str, metrics: str) -> str:
    """A scrape stays small and fast after requests with many unknown names. Raises CheckError."""
    before = scrape(metrics)
    asyncio.run(_send_unknown_names(address))
    pages = [scrape(metrics) for _ in range(SCRAPES)]
    size, seconds = pages[-1].size, min(page.seconds for page in pages)
    new = len(pages[-1].series) - len(before.series)
    result = (
        f"{size:,} bytes in {seconds * 1000:.0f} ms, {new} new series, "
        f"after {UNKNOWN_NAMES} unknown languages and methods"
    )
    if size > MAX_BYTES or seconds > MAX_SECONDS or new > MAX_NEW_SERIES:
        raise CheckError(result)
    return result


def memory_agrees(stack: Stack) -> str:
    """The server's metrics agree with the kernel on its memory and with the engine on its limit. Raises CheckError."""
    series = scrape(stack.metrics).series
    resident, kernel = series["process_resident_memory_bytes"], float(stack.python("server", RESIDENT))
    limit, engine_limit = series["dragoman_memory_limit_bytes"], float(stack.inspect("server")["HostConfig"]["Memory"])
    result = (
        f"resident {resident / 1e6:.1f} MB, for the kernel {kernel / 1e6:.1f}; "
        f"limit {limit / 1e6:.0f} MB, for the engine {engine_limit / 1e6:.0f}"
    )
    if abs(resident / kernel - 1) > MAX_MEMORY_DIFFERENCE or limit != engine_limit:
        raise CheckError(result)
    return result


async def _call_unknown_method(channel: grpc.aio.Channel, number: int) -> None:
    method: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(f"/{SERVICE}/Method{number}")
    await method(b"")


async def _send_unknown_names(address: str) -> None:
    """Request unknown languages and unknown methods."""
    async with AsyncClient(address) as client, grpc.aio.insecure_channel(address) as channel:
        for number in range(UNKNOWN_NAMES):
            try:
                await client.translate(["kite"], to=f"x-n{number}")
            except ClientError as error:
                if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
            try:
                await _call_unknown_method(channel, number)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise


def _wait_for(prometheus: Prometheus, expression: str, seconds: float = 30) -> None:
    """Wait until `expression` has a result. Raises CheckError."""
    end = time.monotonic() + seconds
    while not prometheus.instant(expression):
        if time.monotonic() > end:
            raise CheckError(f"after {seconds:g} s Prometheus has no result for {expression}")
        time.sleep(1)
