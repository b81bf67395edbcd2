"""One model replaced again and again under load, beside another that is left alone: does a call fail, or memory grow?

    python -m benchmarks.reliability.replacement FIRST SECOND OTHER --replacements 20 --clients 64

A real server process serves a symbolic link, which points to FIRST and SECOND in turn (two versions of one translating
model), and OTHER, of another name. Clients in a closed loop translate one text a call, with every fourth of them asking
OTHER for vectors. Each translation is held against what the version that its reply names said alone. Ends with status 1
where a call failed, an answer was of another version, or memory grew by more than 5 % from the earlier rounds to the
later.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from benchmarks.server_process import ServerProcess, server_process
from benchmarks.speed.sentences import DATA
from dragoman.bundle.manifest import open_bundle
from dragoman.client import AsyncClient, Client, ClientError
from dragoman.model.training.corpus import read_pairs

TEXTS = 200
"""Different ones; each client goes through all of them."""

TIMEOUT_SECONDS = 300.0
LOAD_SECONDS = 2.0
"""How long a new version is asked before its memory is looked at."""
REST_SECONDS = 4.0
"""Without a call before that look: the server gives back by then what a burst has taken."""

MAX_GROWTH = 0.05
MIB = 2**20

Answers = Mapping[str, Mapping[str, str]]
"""By version and text."""


@dataclass
class Seen:
    """What came of the calls, and the memory after each replacement."""

    calls: Counter[str] = field(default_factory=Counter)
    """By the version that answered."""
    failures: list[str] = field(default_factory=list)
    wrong: int = 0
    """Answers that the named version does not give."""
    resident_bytes: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Of memory, with the first version: the median of the later half of the rounds against that of the others."""
        rounds = self.resident_bytes[1::2]
        middle = len(rounds) // 2
        return median(rounds[middle:]) / median(rounds[:middle] or rounds) - 1

    def faults(self) -> list[str]:
        """What is not as it should be, in words."""
        found = []
        if self.failures:
            found.append(f"{len(self.failures)} calls failed, the first with: {self.failures[0]}")
        if self.wrong:
            found.append(f"{self.wrong} answers are not those of the version that they name")
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth:.1%}, may by {MAX_GROWTH:.0%}")
        return found


def point(link: Path, bundle: Path) -> None:
    """Let `link` point to `bundle`, in one step."""
    new = link.with_name("new")
    new.symlink_to(bundle.resolve())
    new.replace(link)


def replace(server: ServerProcess, link: Path, bundle: Path, name: str) -> None:
    """Put `bundle` in the place of what is served, and wait until it is. Raises TimeoutError where it is not."""
    version = open_bundle(bundle).manifest.version
    point(link, bundle)
    os.kill(server.pid, signal.SIGHUP)
    end = time.monotonic() + TIMEOUT_SECONDS
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        while time.monotonic() < end:
            if version in {model.version for model in client.info().models if model.name == name}:
                return
            time.sleep(0.1)
    raise TimeoutError(f"version {version} was not served within {TIMEOUT_SECONDS:.0f} seconds")


def idle(server: ServerProcess) -> None:
    """Wait until nothing is being decoded."""
    while server.metric("dragoman_active_rows"):
        time.sleep(0.1)


def alone(server: ServerProcess, name: str, texts: Sequence[str]) -> dict[str, str]:
    """What the version that is served now says to each text."""
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        return dict(zip(texts, client.translate(texts, model=name, truncate=True).texts, strict=True))


async def load(
    address: str,
    names: tuple[str, str],
    texts: Sequence[str],
    known: Answers,
    clients: int,
    seen: Seen,
    gate: asyncio.Event,
    over: asyncio.Event,
) -> None:
    """Ask until `over`, while the gate is set."""

    async def client(place: int) -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            while not over.is_set():
                await gate.wait()
                place += 1
                text = texts[place % len(texts)]
                try:
                    if place % 4 == 0:
                        vectors = await connection.embed([text], model=names[1], truncate=True)
                        seen.calls[vectors.model_version] += 1
                        continue
                    result = await connection.translate([text], model=names[0], truncate=True)
                    seen.calls[result.model_version] += 1
                    seen.wrong += known[result.model_version][text] != result.texts[0]
                except ClientError as error:
                    seen.failures.append(str(error))

    async with asyncio.TaskGroup() as group:
        for place in range(clients):
            group.create_task(client(place * 7))


async def replaced_under_load(
    server: ServerProcess,
    link: Path,
    bundles: tuple[Path, Path],
    names: tuple[str, str],
    texts: Sequence[str],
    known: Answers,
    replacements: int,
    clients: int,
) -> Seen:
    """Everything but what the versions say alone; the first of `bundles` is served at the start."""
    seen, gate, over = Seen(), asyncio.Event(), asyncio.Event()
    gate.set()
    asking = asyncio.create_task(load(server.address, names, texts, known, clients, seen, gate, over))
    try:
        for number in range(1, replacements + 1):
            await asyncio.to_thread(replace, server, link, bundles[number % 2], names[0])
            await asyncio.sleep(LOAD_SECONDS)
            gate.clear()
            await asyncio.to_thread(idle, server)
            await asyncio.sleep(REST_SECONDS)
            seen.resident_bytes.append(server.resident_bytes())
            gate.set()
            click.echo(
                f"replacement {number}: {sum(seen.calls.values())} calls so far, {len(seen.failures)} failed, "
                f"{seen.wrong} wrong; {seen.resident_bytes[-1] / MIB:.1f} MiB"
            )
    finally:
        gate.set()
        over.set()
    await asking
    return seen


@click.command()
@click.argument("bundles", nargs=3, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--replacements", type=click.IntRange(2), default=20, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=64, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundles: tuple[Path, Path, Path], replacements: int, clients: int, data: Path) -> None:
    """Replace FIRST by SECOND and back under load, beside OTHER. 20 times take about 3 minutes on two cores."""
    first, second, other = bundles
    names = (open_bundle(first).manifest.name, open_bundle(other).manifest.name)
    texts = [pair.source for pair in read_pairs(data)][:TEXTS]
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "served"
        point(link, first)
        with server_process(link, str(other), "--verify") as server:
            known: dict[str, dict[str, str]] = {open_bundle(first).manifest.version: alone(server, names[0], texts)}
            replace(server, link, second, names[0])
            known[open_bundle(second).manifest.version] = alone(server, names[0], texts)
            replace(server, link, first, names[0])
            running = replaced_under_load(server, link, (first, second), names, texts, known, replacements, clients)
            seen = asyncio.run(running)
    click.echo(f"calls by version: {dict(seen.calls)}; growth of memory: {seen.growth:+.1%}")
    if faults := seen.faults():
        raise click.ClickException("; ".join(faults))


if __name__ == "__main__":
    main()
