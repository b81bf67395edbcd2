"""What metrics cost, and whether they tell the truth.

    python -m benchmarks.metrics BUNDLE

Cost: the engine decodes the same sentences with the observer that counts, and with one that looks away, in turns. On a
busy machine the difference drowns in the noise; so the processor time that the counting itself takes is measured too,
less what measuring takes, as a share of all that the process takes.

Truth: a real server is called by clients that note how long each call takes, and is then asked for 2,000 languages and
2,000 methods that it does not have; a scrape is held against the clients' clocks, and against what the kernel says of
the process.

Ends with status 1 where something is beyond its bound.
"""

import asyncio
import random
import statistics
import string
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec

import click
import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.sentences import DATA
from benchmarks.server import ServerProcess, server_process
from benchmarks.timing import LEAST_ROUNDS, take_turns
from dragoman.export.bundle import TOKENIZER_FOLDER, open_bundle
from dragoman.model.tokenizer import SentencePieceTokenizer
from dragoman.model.training.corpus import read_pairs
from dragoman.service.client import AsyncClient, ClientError
from dragoman.service.engine.lane import Cause, Observer, Run
from dragoman.service.engine.offline import Offline, Silent
from dragoman.service.engine.ort_runner import OrtRunner
from dragoman.service.engine.sequence import Sequence as EngineSequence
from dragoman.service.metrics import SECONDS, Metrics, ModelMetrics
from dragoman.service.servicer import SERVICE

STRANGERS = 2000
"""Languages, and methods, that the server does not have."""
QUANTILES = (0.5, 0.9, 0.95, 0.99)
SCRAPES = 21
TIMEOUT_SECONDS = 600.0

MOST_SHARE = 0.01
"""Of the processor time, for counting."""
MOST_SCRAPE_SECONDS = 0.05
MOST_SCRAPE_BYTES = 200_000
MOST_MEMORY_DIFFERENCE = 0.05
"""Between the metric and the kernel's own figure."""

P = ParamSpec("P")


@dataclass(frozen=True)
class Cost:
    """What counting takes."""

    share: float
    """Of the processor time."""
    tokens_per_second: float
    silent_tokens_per_second: float
    """By medians."""


@dataclass(frozen=True)
class Scrape:
    """What a scrape is, and what it says."""

    seconds: float
    """By the median."""
    size_bytes: int
    more_series: int
    """Than before anybody asked for what is not there."""
    quantiles: tuple[tuple[float, float, float], ...]
    """Which one, by the clients' clocks, and by the histogram; in seconds."""
    resident_bytes: float
    kernel_bytes: float

    def faults(self) -> list[str]:
        """What is beyond its bound, in words."""
        found = []
        if self.seconds > MOST_SCRAPE_SECONDS:
            found.append(f"a scrape takes {self.seconds * 1000:.1f} ms, may take {MOST_SCRAPE_SECONDS * 1000:.0f}")
        if self.size_bytes > MOST_SCRAPE_BYTES:
            found.append(f"a scrape has {self.size_bytes} bytes, may have {MOST_SCRAPE_BYTES}")
        if self.more_series:
            found.append(f"callers made {self.more_series} series")
        for quantile, clients, ours in self.quantiles:
            if abs(bucket_of(clients) - bucket_of(ours)) > 1:
                found.append(f"p{quantile * 100:g} is {clients:.4f} s by the clients, {ours:.4f} s by the histogram")
        if abs(self.resident_bytes / self.kernel_bytes - 1) > MOST_MEMORY_DIFFERENCE:
            found.append(f"memory is {self.resident_bytes:.0f} bytes, by the kernel {self.kernel_bytes:.0f}")
        return found


class Timed:
    """An observer that notes the processor time that another takes."""

    def __init__(self, inner: Observer) -> None:
        self.seconds = 0.0
        self.encoded = self._timed(inner.encoded)
        self.stepped = self._timed(inner.stepped)
        self.failed: Callable[[Run, Cause], None] = self._timed(inner.failed)
        self.wasted = self._timed(inner.wasted)
        self.finished: Callable[[EngineSequence], None] = self._timed(inner.finished)

    def _timed(self, call: Callable[P, None]) -> Callable[P, None]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> None:
            started = time.thread_time()
            call(*args, **kwargs)
            self.seconds += time.thread_time() - started

        return timed


def bucket_of(seconds: float) -> int:
    """In which bucket of the histograms a time lies."""
    return bisect_left(SECONDS, seconds)


def histogram_quantile(quantile: float, buckets: Sequence[tuple[float, float]]) -> float:
    """As Prometheus reads it off `buckets`, each an upper bound and how many are not above it, in their order."""
    rank = quantile * buckets[-1][1]
    lower = below = 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return lower if bound == float("inf") else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def measure_cost(bundle_folder: Path, texts: Sequence[str], rows: int, rounds: int) -> Cost:
    """Decode `texts` with metrics and without, in turns, on one thread."""
    bundle = open_bundle(bundle_folder)
    tokenizer = SentencePieceTokenizer(bundle.path(TOKENIZER_FOLDER))
    sources = [tokenizer.encode(text) for text in texts]
    runner = OrtRunner(bundle, provider="cpu", threads=1, max_rows=rows)
    counting = ModelMetrics(Metrics(CollectorRegistry()), "m", ("fr",))
    tokens: list[int] = []

    def decode(observer: Observer) -> None:
        with Offline([runner], bundle.manifest.decoding, rows, observer=observer) as engine:
            tokens.append(sum(len(sequence.tokens) for sequence in engine.run(sources)))

    def share(observer: Observer) -> float:
        timed, before = Timed(observer), time.process_time()
        decode(timed)
        return timed.seconds / (time.process_time() - before)

    decode(Silent())
    seconds = take_turns({"counting": lambda: decode(counting), "silent": lambda: decode(Silent())}, rounds)
    with_metrics, without = (tokens[0] / statistics.median(seconds[each]) for each in ("counting", "silent"))
    shares = [share(counting) - share(Silent()) for _ in range(rounds)]
    return Cost(statistics.median(shares), with_metrics, without)


async def call_all(address: str, texts: Sequence[str], clients: int) -> list[float]:
    """Translate each text in a call of its own; the seconds that each call took."""
    left, seconds = iter(texts), []

    async def client() -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS) as connection:
            for text in left:
                started = time.perf_counter()
                await connection.translate([text])
                seconds.append(time.perf_counter() - started)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return seconds


async def ask_for_strangers(address: str, rng: random.Random) -> None:
    """Ask for what the server does not have."""
    async with AsyncClient(address) as client, grpc.aio.insecure_channel(address) as channel:
        for _ in range(STRANGERS):
            word = "".join(rng.choices(string.ascii_lowercase, k=9))
            with suppress(ClientError):
                await client.translate(["kite"], to=word)
            stranger: Any = channel.unary_unary(f"/{SERVICE}/{word}")
            with suppress(grpc.aio.AioRpcError):
                await stranger(b"")


def measure_scrape(server: ServerProcess, texts: Sequence[str], clients: int) -> Scrape:
    """Call the server, then bring strangers, then scrape."""
    seconds = asyncio.run(call_all(server.address, texts, clients))
    page = server.metrics()
    before = page.count("\n")
    asyncio.run(ask_for_strangers(server.address, random.Random(0)))
    taken = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        later = server.metrics()
        taken.append(time.perf_counter() - started)
    kernel_bytes = server.resident_bytes()
    ranked, buckets = statistics.quantiles(seconds, n=1000, method="inclusive"), _translate_buckets(page)
    return Scrape(
        seconds=statistics.median(taken),
        size_bytes=len(later.encode()),
        more_series=later.count("\n") - before,
        quantiles=tuple(
            (each, ranked[round(each * 1000) - 1], histogram_quantile(each, buckets)) for each in QUANTILES
        ),
        resident_bytes=server.metric("process_resident_memory_bytes"),
        kernel_bytes=kernel_bytes,
    )


def _translate_buckets(page: str) -> list[tuple[float, float]]:
    return [
        (float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "grpc_server_handling_seconds_bucket" and sample.labels["grpc_method"] == "Translate"
    ]


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--texts", type=click.IntRange(100), default=400, show_default=True)
@click.option("--rows", type=click.IntRange(1), default=32, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=LEAST_ROUNDS, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, texts: int, rows: int, clients: int, rounds: int, data: Path) -> None:
    """Measure what the metrics of a server of BUNDLE cost, and how true they are. About a minute."""
    sentences = [pair.source for pair in read_pairs(data)][:texts]
    cost = measure_cost(bundle, sentences, rows, rounds)
    click.echo(
        f"counting takes {cost.share:.2%} of the processor time; {cost.tokens_per_second:.0f} tokens/s with metrics, "
        f"{cost.silent_tokens_per_second:.0f} without"
    )
    with server_process(bundle) as server:
        scrape = measure_scrape(server, sentences, clients)
    click.echo(
        f"after {STRANGERS} strange languages and as many methods, a scrape takes {scrape.seconds * 1000:.1f} ms and "
        f"has {scrape.size_bytes} bytes, {scrape.more_series} series more than before"
    )
    for quantile, asked, ours in scrape.quantiles:
        click.echo(
            f"p{quantile * 100:g} of Translate: {asked * 1000:.1f} ms by the clients, {ours * 1000:.1f} ms by it"
        )
    click.echo(f"resident memory: {scrape.resident_bytes:.0f} bytes, by the kernel {scrape.kernel_bytes:.0f}")
    faults = scrape.faults()
    if cost.share > MOST_SHARE:
        faults.append(f"counting takes {cost.share:.2%} of the processor time, may take {MOST_SHARE:.0%}")
    if faults:
        raise click.ClickException("; ".join(faults))


if __name__ == "__main__":
    main()
