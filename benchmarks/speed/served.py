"""Sentences per second over gRPC against CTranslate2 offline, and the latency of one word behind long texts.

    make bench-served

A real server has a processor of its own and one thread; the clients run on another processor. Each client sends one
sentence per call, in a closed loop. CTranslate2 also has the server's processor and one thread. It translates the same
file in one call, sorted by length, from token ids to token ids: it does not tokenize, answer calls or handle arrivals.
Rounds are interleaved; while one side runs, the other is idle.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import click

from benchmarks.measured_models import Measured, shipped
from benchmarks.options import finish, output_options
from benchmarks.server_process import ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from benchmarks.timing import Speed, ratio, speed, take_turns
from dragoman.bundle.manifest import open_bundle
from dragoman.client import AsyncClient, Client
from dragoman.model.training.corpus import read_pairs

PEER = "ctranslate2"
PEER_BATCHES = (16, 32, 64, 128)
"""Batch sizes tried before the measurement; the peer runs with the fastest."""

LONG_TEXTS = 32
SENTENCES_PER_LONG_TEXT = 12
WORD = "Help"
TIMEOUT_SECONDS = 600.0
POLL_SECONDS = 0.1

FULL_STEPS = 2
"""Steps to wait for: if the first was already running, the second has every row."""


@dataclass(frozen=True)
class Rate:
    """One line of the table."""

    clients: int
    sentences_per_second: float
    spread: float
    peer_sentences_per_second: float
    peer_spread: float
    ratio: float


@dataclass(frozen=True)
class OneWord:
    """Median latency of a request of one word."""

    word: str
    long_texts: int
    idle_seconds: float
    """Latency on an idle server."""
    busy_seconds: float
    """Latency on a server whose running batch holds `long_texts` long texts."""
    step_seconds: float
    """Mean duration of a step of that batch."""
    more_steps: float
    """Difference of the two latencies, in steps."""

    @property
    def bound_seconds(self) -> float:
        """Bound of the busy latency: twice the idle latency plus three steps."""
        return 2 * self.idle_seconds + 3 * self.step_seconds


async def closed_loop(address: str, texts: Sequence[str], clients: int) -> list[str]:
    """Translate `texts` with `clients` concurrent closed-loop clients; translations keep the order of `texts`."""
    translations = [""] * len(texts)
    pending = iter(range(len(texts)))

    async def client() -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            for index in pending:
                result = await connection.translate([texts[index]], truncate=True, scores=False)
                translations[index] = result.translations[0].text

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return translations


def measure_word(server: ServerProcess, texts: Sequence[str], tries: int) -> OneWord:
    """Send one word `tries` times to the idle server, and `tries` times into a batch of long texts."""
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        long_texts = _long_texts(client, texts)
        idle = [_timed(client) for _ in range(tries)]
    steps = _step_figures(server)
    busy = [asyncio.run(_word_latency(server, long_texts)) for _ in range(tries)]
    seconds, count = (after - before for after, before in zip(_step_figures(server), steps, strict=True))
    idle_seconds, busy_seconds, step = statistics.median(idle), statistics.median(busy), seconds / count
    return OneWord(WORD, len(long_texts), idle_seconds, busy_seconds, step, (busy_seconds - idle_seconds) / step)


def _long_texts(client: Client, texts: Sequence[str]) -> list[str]:
    """Long texts with long translations: of twice as many candidates, the half with the longest translations."""
    starts = [number * len(texts) // (2 * LONG_TEXTS) for number in range(2 * LONG_TEXTS)]
    joined = [" ".join(islice(cycle(texts), start, start + SENTENCES_PER_LONG_TEXT)) for start in starts]
    translations = client.translate(joined, truncate=True).translations
    order = sorted(range(len(joined)), key=lambda index: -translations[index].output_tokens)
    return [joined[index] for index in order[:LONG_TEXTS]]


def _timed(client: Client) -> float:
    started = time.perf_counter()
    client.translate([WORD])
    return time.perf_counter() - started


async def _word_latency(server: ServerProcess, long_texts: Sequence[str]) -> float:
    """Latency of one word, sent once all of `long_texts` are rows of the batch; these are then cancelled."""
    async with AsyncClient(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        running = [asyncio.create_task(client.translate([text], truncate=True)) for text in long_texts]
        await _until_rows(server, len(long_texts))
        await _until_stepped(server)
        started = time.perf_counter()
        await client.translate([WORD])
        seconds = time.perf_counter() - started
        ended = sum(task.done() for task in running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await _until_rows(server, 0)
    if ended:
        raise click.ClickException(
            f"{ended} of {len(long_texts)} long texts ended before the word was answered; longer texts are needed"
        )
    return seconds


async def _until_rows(server: ServerProcess, rows: int) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        # The server is another process, so its metrics have to be polled.
        while await asyncio.to_thread(server.metric, "dragoman_active_rows") != rows:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


async def _until_stepped(server: ServerProcess) -> None:
    """Wait until all rows have been decoded together: the last admitted may still be in encoding."""
    _, before = _step_figures(server)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (await asyncio.to_thread(_step_figures, server))[1] < before + FULL_STEPS:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


def _step_figures(server: ServerProcess) -> tuple[float, float]:
    """Total seconds and number of steps so far."""
    return server.metric("dragoman_step_seconds_sum"), server.metric("dragoman_step_seconds_count")


class Peer:
    """CTranslate2 on one processor: translates token ids to token ids in one call."""

    def __init__(self, folder: Path, measured: Measured, sources: Sequence[Sequence[int]], cpu: int) -> None:
        from benchmarks.speed.ctranslate import CTranslate2, convert

        convert(measured.model, measured.rules, folder)
        self._cpus = {cpu}
        with pinned(self._cpus):
            self._contender = CTranslate2(folder, measured.rules, "int8", threads=1)
        self._sources, self._max_tokens = sources, measured.rules.max_output_tokens
        self.batch = self._best_batch()

    def __call__(self) -> list[list[int]]:
        """Outputs in the order of the sources."""
        with pinned(self._cpus):
            return self._contender.outputs(self._sources, self._max_tokens, self.batch)

    def _best_batch(self) -> int:
        seconds = {}
        for self.batch in PEER_BATCHES:
            started = time.perf_counter()
            self()
            seconds[self.batch] = time.perf_counter() - started
        return min(seconds, key=lambda batch: seconds[batch])


def two_cpus() -> tuple[int, int]:
    """Processors of the server and of its clients. Raises ClickException if only one is available."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise click.ClickException("two processors are needed, one for the server and one for its clients")
    return found[0], found[1]


def rates_of(clients: Sequence[int], speeds: dict[str, Speed]) -> Iterator[Rate]:
    """Lines of the table; `speeds` has the peer by name and the server by number of clients."""
    peer = speeds[PEER]
    for count in clients:
        ours = speeds[str(count)]
        yield Rate(count, ours.per_second, ours.spread, peer.per_second, peer.spread, ratio(ours, peer))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
@click.option("--sentences", type=click.IntRange(1), default=1000, show_default=True, help="Sentences of the file.")
@click.option("--clients", type=click.IntRange(1), multiple=True, default=(1, 8, 32, 64), show_default=True)
@click.option(
    "--max-rows", type=click.IntRange(LONG_TEXTS + 1), default=64, show_default=True, help="Row limit of the server."
)
@click.option(
    "--tries", type=click.IntRange(1), default=15, show_default=True, help="Number of times one word is sent."
)
@output_options
def main(
    bundle: Path,
    data: Path,
    sentences: int,
    clients: Sequence[int],
    max_rows: int,
    tries: int,
    rounds: int,
    work: Path,
    output: Path,
) -> None:
    """Serve BUNDLE, the shipped model in int8, and replace the section "served" of OUTPUT/latest.json.

    About 5 minutes on two quiet cores.
    """
    server_cpu, client_cpu = two_cpus()
    measured = shipped()
    tokenizer = measured.tokenizer
    manifest = open_bundle(bundle).manifest
    if tokenizer is None or manifest.precision != "int8":
        raise click.ClickException(f"{bundle} is {manifest.precision}, must be int8 like the peer")
    texts = [pair.source for pair in read_pairs(data)[:sentences]]
    sources = [tokenizer.encode(text) for text in texts]
    options = ("--threads-per-lane", "1", "--max-rows", str(max_rows))
    with pinned({client_cpu}), server_process(bundle, *options, cpus={server_cpu}) as server:
        word = measure_word(server, texts, tries)
        peer = Peer(work / "served" / PEER, measured, sources, server_cpu)
        translations = asyncio.run(closed_loop(server.address, texts, LONG_TEXTS))
        equal = sum(text == tokenizer.decode(tokens) for text, tokens in zip(translations, peer(), strict=True))
        runs = {str(count): partial(_serve, server.address, texts, count) for count in clients}
        seconds = take_turns({PEER: peer, **runs}, rounds)
    speeds = {name: speed(times, len(texts)) for name, times in seconds.items()}
    figures = {
        "model": manifest.name,
        "precision": manifest.precision,
        "threads": 1,
        "max_rows": max_rows,
        "sentences": len(texts),
        "peer": PEER,
        "peer_batch": peer.batch,
        "equal_translations": equal,
        "rates": [asdict(rate) for rate in rates_of(clients, speeds)],
        "one_word": asdict(word),
    }
    finish(output, "served", figures, "make bench-served", rounds)
    verdict = "within" if word.busy_seconds <= word.bound_seconds else "BEYOND"
    click.echo(f"One word: {verdict} its bound of {word.bound_seconds * 1000:.1f} ms. {equal} translations are equal.")


def _serve(address: str, texts: Sequence[str], clients: int) -> list[str]:
    return asyncio.run(closed_loop(address, texts, clients))


if __name__ == "__main__":
    main()
