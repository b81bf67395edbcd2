"""What must be true of a live server's metrics, seen from outside."""

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
"""Whose time is taken."""
SCRAPES = 5
"""The fastest of them counts: the machine may be busy with others."""
STRANGERS = 2000
"""Languages that there are none of, and as many such methods."""

MAX_BYTES = 200_000
MAX_SECONDS = 0.05
MAX_NEW_SERIES = 10
MAX_MEMORY_DIFFERENCE = 0.05

QUANTILES = (0.5, 0.9)
TRANSLATE_BUCKETS = 'sum by (le) (grpc_server_handling_seconds_bucket{grpc_method="Translate"})'

RESIDENT = "import os; print(int(open('/proc/1/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE'))"
"""Prints the memory of the container's first process that is resident, as the kernel sees it."""


class WrongError(Exception):
    """Something is not as it must be; the message says what."""


@dataclass(frozen=True)
class Page:
    """One scrape."""

    text: str
    seconds: float

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.text.encode())

    @property
    def series(self) -> dict[str, float]:
        """The value of every series."""
        lines = (line.rpartition(" ") for line in self.text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}


def scrape(address: str) -> Page:
    """The metrics now."""
    begun = time.perf_counter()
    with DIRECT.open(address, timeout=10) as answer:
        text = answer.read().decode()
    return Page(text, time.perf_counter() - begun)


def calls_answered(address: str) -> str:
    """Translate and Embed give what they should. Raises WrongError, ClientError."""
    with Client(address) as client:
        french = client.translate(["The cat sat on the mat."], to="fr").texts[0]
        vectors = client.embed(["The cat sat on the mat.", "A dog."]).embeddings
    lengths = [math.hypot(*vector.values) for vector in vectors]
    if "chat" not in french or not all(math.isclose(length, 1, abs_tol=1e-3) for length in lengths):
        raise WrongError(f"Translate gave {french!r}, Embed vectors of lengths {lengths}")
    return f"{french!r}, and {len(vectors)} vectors of {len(vectors[0].values)} numbers"


def latencies_agree(address: str, prometheus: Prometheus) -> str:
    """Callers and Prometheus see the same times of Translate, to a bucket. Raises WrongError.

    No call of Translate may have been answered before.
    """
    seen = []
    with Client(address) as client:
        for number in range(CALLS):
            begun = time.perf_counter()
            client.translate([SENTENCES[number % len(SENTENCES)]])
            seen.append(time.perf_counter() - begun)
    _wait_for(prometheus, f'sum(grpc_server_handling_seconds_count{{grpc_method="Translate"}}) == {CALLS}')
    cuts = statistics.quantiles(seen, n=100, method="inclusive")
    said = []
    for quantile in QUANTILES:
        ours = cuts[round(quantile * 100) - 1]
        (theirs,) = prometheus.instant(f"histogram_quantile({quantile}, {TRANSLATE_BUCKETS})")
        value = theirs.samples[0][1]
        if abs(bisect_left(SECONDS, ours) - bisect_left(SECONDS, value)) > 1:
            raise WrongError(
                f"quantile {quantile} of Translate is {ours:.4f} s for callers, {value:.4f} s in Prometheus"
            )
        said.append(f"{quantile:g}: {ours * 1000:.1f} and {value * 1000:.1f} ms")
    return f"quantiles of {CALLS} calls, for callers and in Prometheus: {', '.join(said)}"


def strangers_make_no_series(address: str, metrics: str) -> str:
    """A scrape stays small and quick, whatever callers ask for. Raises WrongError."""
    before = scrape(metrics)
    asyncio.run(_strangers(address))
    pages = [scrape(metrics) for _ in range(SCRAPES)]
    size, seconds = pages[-1].size, min(page.seconds for page in pages)
    new = len(pages[-1].series) - len(before.series)
    said = f"{size:,} bytes in {seconds * 1000:.0f} ms, {new} series more, after {STRANGERS} languages and methods"
    if size > MAX_BYTES or seconds > MAX_SECONDS or new > MAX_NEW_SERIES:
        raise WrongError(said)
    return said


def memory_agrees(stack: Stack) -> str:
    """The server's memory and its bound are what the kernel and the engine say. Raises WrongError."""
    series = scrape(stack.metrics).series
    resident, kernel = series["process_resident_memory_bytes"], float(stack.python("server", RESIDENT))
    bound, set_bound = series["dragoman_memory_limit_bytes"], float(stack.inspect("server")["HostConfig"]["Memory"])
    said = (
        f"resident {resident / 1e6:.1f} MB, for the kernel {kernel / 1e6:.1f}; "
        f"bound {bound / 1e6:.0f} MB, for the engine {set_bound / 1e6:.0f}"
    )
    if abs(resident / kernel - 1) > MAX_MEMORY_DIFFERENCE or bound != set_bound:
        raise WrongError(said)
    return said


async def _strange_method(channel: grpc.aio.Channel, number: int) -> None:
    method: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(f"/{SERVICE}/Method{number}")
    await method(b"")


async def _strangers(address: str) -> None:
    """Ask for languages and methods that there are none of."""
    async with AsyncClient(address) as client, grpc.aio.insecure_channel(address) as channel:
        for number in range(STRANGERS):
            try:
                await client.translate(["kite"], to=f"x-n{number}")
            except ClientError as error:
                if error.code is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
            try:
                await _strange_method(channel, number)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise


def _wait_for(prometheus: Prometheus, expression: str, seconds: float = 30) -> None:
    """Wait until `expression` has an answer. Raises WrongError."""
    end = time.monotonic() + seconds
    while not prometheus.instant(expression):
        if time.monotonic() > end:
            raise WrongError(f"after {seconds:g} s Prometheus has nothing for {expression}")
        time.sleep(1)
