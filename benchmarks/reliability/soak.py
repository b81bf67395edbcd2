"""Does a server's memory grow? Many requests of all lengths, and its resident memory after each quarter of them.

    python -m benchmarks.reliability.soak BUNDLE --requests 20000

A real server process; clients in a closed loop ask for translations of texts from one word to the longest that the
model takes, and now and then for vectors. Ends with status 1 where memory after the last quarter is more than 3 %
above that after the first, or where the server, idle again, uses 2 % of a processor or more.
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

from benchmarks.server_process import ServerProcess, server_process
from benchmarks.speed.sentences import DATA
from dragoman.bundle.manifest import TOKENIZER_FOLDER, open_bundle
from dragoman.bundle.tokenizers import open_tokenizer
from dragoman.client import AsyncClient
from dragoman.model.training.corpus import read_pairs

QUARTERS = 4
EMBED_SHARE = 0.1
TIMEOUT_SECONDS = 600.0
MIB = 2**20

MAX_GROWTH = 0.03
"""From the first quarter's end to the last's."""
MAX_IDLE_SHARE = 0.02
"""Of one processor."""
SETTLE_SECONDS = 4.0
"""Between a quarter's last answer and the look at its memory."""


@dataclass(frozen=True)
class Soaked:
    """What was seen."""

    resident_bytes: tuple[int, ...]
    """After each quarter."""
    idle_share: float
    """Of one processor, once all was done."""

    @property
    def growth(self) -> float:
        """From the first quarter's end to the last's, as a part of the first."""
        return self.resident_bytes[-1] / self.resident_bytes[0] - 1

    def faults(self) -> list[str]:
        """What is beyond its bound, in words."""
        found = []
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth:.1%}, may by {MAX_GROWTH:.0%}")
        if self.idle_share >= MAX_IDLE_SHARE:
            found.append(f"idle, it uses {self.idle_share:.1%} of a processor, may use {MAX_IDLE_SHARE:.0%}")
        return found


def mixed_texts(words: Sequence[str], longest: int, count: int, rng: random.Random) -> list[str]:
    """Texts of 1 to `longest` words: as many from 1 to 2 words as from 2 to 4, from 4 to 8, and so on."""
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
    """The part of one processor that a server uses of which nobody asks anything."""
    before, started = server.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (server.cpu_seconds() - before) / (time.monotonic() - started)


def soak(
    server: ServerProcess, words: Sequence[str], longest: int, requests: int, clients: int, idle_seconds: float
) -> Soaked:
    """All quarters, then the rest."""
    rng = random.Random(0)
    resident = []
    with tqdm(total=QUARTERS * (requests // QUARTERS), unit="request", disable=None) as bar:
        for number in range(1, QUARTERS + 1):
            texts = mixed_texts(words, longest, requests // QUARTERS, rng)
            asyncio.run(quarter(server.address, texts, clients, rng, bar))
            time.sleep(SETTLE_SECONDS)
            resident.append(server.resident_bytes())
            click.echo(f"after {number * len(texts)} requests: {resident[-1] / MIB:.1f} MiB")
    return Soaked(tuple(resident), idle_share(server, idle_seconds))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--requests", type=click.IntRange(QUARTERS), default=20_000, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=16, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="The server's.")
@click.option("--idle-seconds", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, requests: int, clients: int, threads: int, idle_seconds: float, data: Path) -> None:
    """Soak a server of BUNDLE. 20,000 requests take about 10 minutes with the shipped model in int8."""
    opened = open_bundle(bundle)
    words = [word for pair in read_pairs(data) for word in pair.source.split()]
    tokens = len(open_tokenizer(opened.path(TOKENIZER_FOLDER)).encode(" ".join(words)))
    # So many words have about as many tokens as the model takes; what comes out longer is cut by the server.
    longest = max(1, opened.manifest.decoding.max_source_tokens * len(words) // tokens)
    with server_process(bundle, "--threads-per-lane", str(threads)) as server:
        soaked = soak(server, words, longest, requests, clients, idle_seconds)
    click.echo(f"growth from the first quarter's end to the last's: {soaked.growth:+.1%}")
    click.echo(f"idle: {soaked.idle_share:.2%} of one processor")
    if faults := soaked.faults():
        raise click.ClickException("; ".join(faults))


if __name__ == "__main__":
    main()
