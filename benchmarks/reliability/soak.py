"""Memory growth of a server over many requests of all lengths, and its idle processor use.

    python -m benchmarks.reliability.soak BUNDLE --requests 20000

Clients in a closed loop translate texts from one word to the model's maximum length, and embed some of them, on a real
server process. Resident memory is measured after each quarter of the requests. The exit status is 1 if memory after the
last quarter is more than 3 % above that after the first, or if the idle server uses 2 % of a processor or more.
"""

import asyncio
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import click
from tqdm import tqdm

from benchmarks.reliability.scenario import bundle_argument, data_option, finish, sentences_of
from benchmarks.server_process import ServerProcess, server_process
from dragoman.bundle.manifest import TOKENIZER_FOLDER, open_bundle
from dragoman.bundle.tokenizers import open_tokenizer
from dragoman.client import AsyncClient

QUARTERS = 4
EMBED_SHARE = 0.1
TIMEOUT_SECONDS = 600.0
MIB = 2**20

MAX_GROWTH = 0.03
"""Growth of memory between the ends of the first and the last quarter."""
MAX_IDLE_SHARE = 0.02
"""Share of one processor."""
SETTLE_SECONDS = 4.0
"""Pause between a quarter's last answer and the memory measurement."""


@dataclass(frozen=True)
class SoakResult:
    """Measurements of one soak."""

    resident_bytes: tuple[int, ...]
    """After each quarter."""
    idle_share: float
    """Share of one processor used after the last request."""

    @property
    def growth(self) -> float:
        """Growth from the end of the first quarter to that of the last, relative to the first."""
        return self.resident_bytes[-1] / self.resident_bytes[0] - 1

    def faults(self) -> list[str]:
        """Messages for the bounds that were exceeded."""
        found = []
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth:.1%}, at most {MAX_GROWTH:.0%} allowed")
        if self.idle_share >= MAX_IDLE_SHARE:
            found.append(
                f"the idle server uses {self.idle_share:.1%} of a processor, must be below {MAX_IDLE_SHARE:.0%}"
            )
        return found


def mixed_texts(words: Sequence[str], longest: int, count: int, rng: random.Random) -> list[str]:
    """Texts of 1 to `longest` words: the logarithm of the length is uniform."""
    texts = []
    for _ in range(count):
        size = int(math.exp(rng.uniform(0, math.log(longest + 1))))
        start = rng.randrange(max(1, len(words) - size))
        texts.append(" ".join(words[start : start + size]))
    return texts


async def quarter(address: str, texts: Sequence[str], clients: int, rng: random.Random, bar: "tqdm[NoReturn]") -> None:
    """Send each text in a call of its own."""
    left = iter(texts)

    async def client() -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            for text in left:
                if rng.random() < EMBED_SHARE:
                    await connection.embed([text], truncate=True)
                else:
                    await connection.translate([text], truncate=True)
                bar.update()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


def idle_share(server: ServerProcess, seconds: float) -> float:
    """Share of one processor that an idle server uses over `seconds`."""
    before, started = server.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.monotonic() - started)


def soak(
    server: ServerProcess, words: Sequence[str], longest: int, requests: int, clients: int, idle_seconds: float
) -> SoakResult:
    """Run all quarters, then measure the idle server."""
    rng = random.Random(0)
    resident = []
    with tqdm(total=QUARTERS * (requests // QUARTERS), unit="request", disable=None) as bar:
        for number in range(1, QUARTERS + 1):
            texts = mixed_texts(words, longest, requests // QUARTERS, rng)
            asyncio.run(quarter(server.address, texts, clients, rng, bar))
            time.sleep(SETTLE_SECONDS)
            resident.append(server.resident_bytes())
            click.echo(f"after {number * len(texts)} requests: {resident[-1] / MIB:.1f} MiB")
    return SoakResult(tuple(resident), idle_share(server, idle_seconds))


@click.command()
@bundle_argument
@click.option("--requests", type=click.IntRange(QUARTERS), default=20_000, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Computing threads of the server."
)
@click.option("--idle-seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@data_option
def main(bundle: Path, requests: int, clients: int, threads: int, idle_seconds: float, data: Path) -> None:
    """Soak a server of BUNDLE. 20,000 requests take about 10 minutes with the shipped model in int8."""
    opened = open_bundle(bundle)
    words = [word for sentence in sentences_of(data) for word in sentence.split()]
    tokens = len(open_tokenizer(opened.path(TOKENIZER_FOLDER)).encode(" ".join(words)))
    # About the model's maximum in tokens; the server truncates longer texts.
    longest = max(1, opened.manifest.decoding.max_source_tokens * len(words) // tokens)
    with server_process(bundle, "--threads-per-lane", str(threads)) as server:
        result = soak(server, words, longest, requests, clients, idle_seconds)
    click.echo(f"growth from the first quarter's end to the last's: {result.growth:+.1%}")
    click.echo(f"idle: {result.idle_share:.2%} of one processor")
    finish(result.faults())


if __name__ == "__main__":
    main()
