"""Failed calls and memory growth while one of two models is replaced repeatedly under load.

    python -m benchmarks.reliability.replacement FIRST SECOND OTHER --replacements 20 --clients 64

A real server process serves a symbolic link, which points to FIRST and SECOND in turn (two versions of one translation
model), and OTHER, a model of another name. Clients in a closed loop send one text per call; every fourth call embeds it
with OTHER. Each translation is compared with that of the version named in the reply, made without load. The exit
status is 1 if a call failed, an answer was of another version, or memory grew by more than 5 % from the earlier rounds
to the later.
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

from benchmarks.reliability.scenario import FOLDER, data_option, finish, sentences_of
from benchmarks.server_process import ServerProcess, server_process
from dragoman.bundle.manifest import open_bundle
from dragoman.client import AsyncClient, Client, ClientError

TEXTS = 200
"""Distinct texts, which each client sends in turn."""

TIMEOUT_SECONDS = 300.0
LOAD_SECONDS = 2.0
"""Load on a new version before its memory is measured."""
REST_SECONDS = 4.0
"""Pause before that measurement, in which the server releases the memory of a burst."""

MAX_GROWTH = 0.05
MIB = 2**20

Answers = Mapping[str, Mapping[str, str]]
"""Translations by version and text."""


@dataclass
class Outcome:
    """Outcomes of the calls, and resident memory after each replacement."""

    calls: Counter[str] = field(default_factory=Counter)
    """Calls by the version that answered."""
    failures: list[str] = field(default_factory=list)
    wrong: int = 0
    """Answers that differ from those of the version they name."""
    resident_bytes: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Growth of memory with the first version: median of the later half of the rounds over that of the earlier."""
        rounds = self.resident_bytes[1::2]
        middle = len(rounds) // 2
        return median(rounds[middle:]) / median(rounds[:middle] or rounds) - 1

    def faults(self) -> list[str]:
        """Messages for the bounds that were exceeded."""
        found = []
        if self.failures:
            found.append(f"{len(self.failures)} calls failed, the first with: {self.failures[0]}")
        if self.wrong:
            found.append(f"{self.wrong} answers differ from those of the version they name")
        if self.growth > MAX_GROWTH:
            found.append(f"memory grew by {self.growth:.1%}, at most {MAX_GROWTH:.0%} allowed")
        return found


def point(link: Path, bundle: Path) -> None:
    """Point `link` to `bundle` atomically."""
    new = link.with_name("new")
    new.symlink_to(bundle.resolve())
    new.replace(link)


def replace(server: ServerProcess, link: Path, bundle: Path, name: str) -> None:
    """Replace the served bundle with `bundle`, and wait for it. Raises TimeoutError if it is not served in time."""
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
    """Wait until no row is active."""
    while server.metric("dragoman_active_rows"):
        time.sleep(0.1)


def reference_answers(server: ServerProcess, name: str, texts: Sequence[str]) -> dict[str, str]:
    """Translation by text of the version that is served now, without load."""
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        return dict(zip(texts, client.translate(texts, model=name, truncate=True).texts, strict=True))


async def load(
    address: str,
    names: tuple[str, str],
    texts: Sequence[str],
    known: Answers,
    clients: int,
    outcome: Outcome,
    gate: asyncio.Event,
    over: asyncio.Event,
) -> None:
    """Send calls until `over`, while the gate is set."""

    async def client(place: int) -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            while not over.is_set():
                await gate.wait()
                place += 1
                text = texts[place % len(texts)]
                try:
                    if place % 4 == 0:
                        vectors = await connection.embed([text], model=names[1], truncate=True)
                        outcome.calls[vectors.model_version] += 1
                        continue
                    result = await connection.translate([text], model=names[0], truncate=True)
                    outcome.calls[result.model_version] += 1
                    outcome.wrong += known[result.model_version][text] != result.texts[0]
                except ClientError as error:
                    outcome.failures.append(str(error))

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
) -> Outcome:
    """Replace the model `replacements` times under load; the first of `bundles` is served at the start."""
    outcome, gate, over = Outcome(), asyncio.Event(), asyncio.Event()
    gate.set()
    loading = asyncio.create_task(load(server.address, names, texts, known, clients, outcome, gate, over))
    try:
        for number in range(1, replacements + 1):
            await asyncio.to_thread(replace, server, link, bundles[number % 2], names[0])
            await asyncio.sleep(LOAD_SECONDS)
            gate.clear()
            await asyncio.to_thread(idle, server)
            await asyncio.sleep(REST_SECONDS)
            outcome.resident_bytes.append(server.resident_bytes())
            gate.set()
            click.echo(
                f"replacement {number}: {sum(outcome.calls.values())} calls so far, {len(outcome.failures)} failed, "
                f"{outcome.wrong} wrong; {outcome.resident_bytes[-1] / MIB:.1f} MiB"
            )
    finally:
        gate.set()
        over.set()
    await loading
    return outcome


@click.command()
@click.argument("bundles", nargs=3, type=FOLDER)
@click.option("--replacements", type=click.IntRange(2), default=20, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=64, show_default=True)
@data_option
def main(bundles: tuple[Path, Path, Path], replacements: int, clients: int, data: Path) -> None:
    """Replace FIRST by SECOND and back under load, beside OTHER. 20 replacements take about 3 minutes on two cores."""
    first, second, other = bundles
    names = (open_bundle(first).manifest.name, open_bundle(other).manifest.name)
    texts = sentences_of(data)[:TEXTS]
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "served"
        point(link, first)
        with server_process(link, str(other), "--verify") as server:
            known: dict[str, dict[str, str]] = {
                open_bundle(first).manifest.version: reference_answers(server, names[0], texts)
            }
            replace(server, link, second, names[0])
            known[open_bundle(second).manifest.version] = reference_answers(server, names[0], texts)
            replace(server, link, first, names[0])
            running = replaced_under_load(server, link, (first, second), names, texts, known, replacements, clients)
            outcome = asyncio.run(running)
    click.echo(f"calls by version: {dict(outcome.calls)}; growth of memory: {outcome.growth:+.1%}")
    finish(outcome.faults())


if __name__ == "__main__":
    main()
