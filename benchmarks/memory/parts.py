"""Where memory goes, how much of it there is, and whether it comes back.

    build/peers/bin/python -m benchmarks.memory.parts BUNDLE

Four parts: `shape`, the OPUS shape in int8 at 32 rows beside its weights and beside CTranslate2, each in a process of
its own; `outlier`, a served model before, during and 30 seconds after a batch of 32 texts at its limits, while small
calls go on; `parts`, whether the parts that GetInfo tells add up to the kernel's figure at each of these moments, with
one model and with two; `budget`, whether a server that has a budget stays below it under texts at the limits. Ends with
status 1 where a bound is broken.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path

import click

from benchmarks.server_process import ServerProcess, server_process
from benchmarks.speed.sentences import DATA
from dragoman.bundle.manifest import WEIGHTS_FILE, list_files, open_bundle, write_manifest
from dragoman.client import AsyncClient, Client
from dragoman.model.training.corpus import read_pairs

MIB = 2**20
PARTS = ("shape", "outlier", "parts", "budget")

MAX_ABOVE_WEIGHTS = 200 * 10**6
"""Bytes, at 32 rows."""
MAX_LEFT = 0.10
"""Of an outlier, 30 seconds later, as a part of what there was before."""
MAX_UNEXPLAINED = 0.10
"""Between the sum of the parts and the kernel's figure."""

ROWS = 32
LONG_WORDS = 400
"""More than any limit: the server cuts the text."""
SMALL_CLIENTS = 2
SMALL_SECONDS = 25.0
AFTER_SECONDS = 30.0
REST_SECONDS = 4.0
"""Of nobody asking, until memory has been given back."""
SAMPLE_SECONDS = 0.01
TIMEOUT_SECONDS = 600.0
BUDGET_CLIENTS = 64
BUDGET_CALLS = 128


@dataclass(frozen=True)
class Moment:
    """A server's memory, as the kernel and as the server itself tell it, in bytes."""

    name: str
    resident: int
    explained: int

    @property
    def unexplained(self) -> float:
        """The difference, as a part of the kernel's figure."""
        return 1 - self.explained / self.resident

    def __str__(self) -> str:
        """A line of the table."""
        return (
            f"{self.name:34} {self.resident / MIB:8.1f} MiB, parts {self.explained / MIB:8.1f} MiB "
            f"({self.unexplained:+.1%} unexplained)"
        )


@dataclass
class Watch:
    """The most memory that a process had while it was watched."""

    most: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def on(self, server: ServerProcess) -> Iterator["Watch"]:
        """Watch inside."""

        def sample() -> None:
            while not self._over.wait(SAMPLE_SECONDS):
                self.most = max(self.most, server.resident_bytes())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()


def look(server: ServerProcess, name: str) -> Moment:
    """The memory of `server` now."""
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        info = client.info()
    found = Moment(name, info.resident_memory_bytes, info.explained_memory_bytes)
    click.echo(found)
    return found


async def small_calls(address: str, texts: Sequence[str], models: Sequence[str], over: asyncio.Event) -> None:
    """A sentence a call, in closed loops, until `over`."""

    async def client(place: int) -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS) as connection:
            for text in islice(cycle(texts), place, None):
                if over.is_set():
                    return
                await connection.translate([text], model=models[place % len(models)], truncate=True)

    await asyncio.gather(*(client(place) for place in range(SMALL_CLIENTS * len(models))))


async def outlier(server: ServerProcess, texts: Sequence[str], models: Sequence[str]) -> list[Moment]:
    """Small calls all the time, and once a batch of texts at the limits to each model; memory before and after."""
    over = asyncio.Event()
    asking = asyncio.create_task(small_calls(server.address, texts, models, over))
    await asyncio.sleep(SMALL_SECONDS)
    moments = [await asyncio.to_thread(look, server, "before, under small calls")]
    with Watch().on(server) as watch:
        async with AsyncClient(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
            sent = [
                asyncio.create_task(client.translate(long_texts(texts, ROWS), model=model, truncate=True))
                for model in models
            ]
            while not any(task.done() for task in sent):
                await asyncio.sleep(1.0)
                held = await asyncio.to_thread(look, server, "during the batch at the limits")
            moments.append(held)
            await asyncio.gather(*sent)
    click.echo(f"{'the most meanwhile':34} {watch.most / MIB:8.1f} MiB")
    await asyncio.sleep(AFTER_SECONDS)
    moments.append(await asyncio.to_thread(look, server, f"{AFTER_SECONDS:.0f} s after, under small calls"))
    over.set()
    await asking
    return moments


def long_texts(texts: Sequence[str], count: int) -> list[str]:
    """Different texts, each longer than the model's limit."""
    words = [word for text in texts for word in text.split()]
    return [" ".join(islice(cycle(words), start * 7, start * 7 + LONG_WORDS)) for start in range(count)]


def measure_shape(work: Path) -> list[str]:
    """Print the table of the OPUS shape, and return what is broken."""
    from benchmarks.measured_models import opus_shape, write_bundle
    from benchmarks.speed.contenders import prepare_peers

    measured = opus_shape()
    bundle = write_bundle(work / "int8", measured.model, measured.endless, "int8")
    write_manifest(bundle.folder, bundle.manifest)
    weights = bundle.path(WEIGHTS_FILE).stat().st_size
    sides = {"dragoman": bundle.folder}
    if prepare_peers(["ctranslate2"], work, measured.model, measured.endless):
        sides["ctranslate2"] = work / "ctranslate2"
    click.echo(f"OPUS shape, int8, {ROWS} rows, one thread; weights.bin has {weights / 10**6:.1f} MB")
    resident = {side: _side(side, folder) for side, folder in sides.items()}
    for side, found in resident.items():
        click.echo(f"{side:12} {found / 10**6:8.1f} MB resident at most, {(found - weights) / 10**6:+.1f} MB")
    above = resident["dragoman"] - weights
    return [f"{above / 10**6:.1f} MB above weights.bin"] if above > MAX_ABOVE_WEIGHTS else []


def _side(side: str, folder: Path) -> int:
    command = [sys.executable, "-m", "benchmarks.memory.one_side", side, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    found: int = json.loads(done.stdout.splitlines()[-1])["resident_bytes"]
    return found


def renamed(bundle: Path, name: str, work: Path) -> Path:
    """A copy of `bundle` that is called `name`."""
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundle, folder)
    write_manifest(folder, replace(open_bundle(bundle).manifest, name=name, files=list_files(folder)))
    return folder


def measure_served(bundles: Sequence[Path], texts: Sequence[str], threads: int) -> list[str]:
    """Serve `bundles`, print their memory at each moment, and return what is broken."""
    names = [open_bundle(bundle).manifest.name for bundle in bundles]
    click.echo(f"{len(bundles)} served: {', '.join(names)}")
    options = (*map(str, bundles[1:]), "--threads-per-lane", str(threads), "--max-rows", str(ROWS))
    with server_process(bundles[0], *options) as server:
        time.sleep(REST_SECONDS)
        moments = [look(server, "at rest, after warm-up")]
        moments += asyncio.run(outlier(server, texts, names))
        time.sleep(REST_SECONDS)
        moments.append(look(server, "at rest again"))
    _, before, _, after, _ = moments
    broken = [f"{each.name}: {each.unexplained:+.1%}" for each in moments if abs(each.unexplained) > MAX_UNEXPLAINED]
    left = after.resident / before.resident - 1
    click.echo(f"{left:+.1%} left of the batch")
    return broken + ([f"{left:.1%} left of the batch"] if left > MAX_LEFT else [])


def measure_budget(bundle: Path, texts: Sequence[str], threads: int, budget: int) -> list[str]:
    """Serve `bundle` with and without `budget`, under nothing but texts at the limits; return what is broken."""
    most = {}
    for bound in (0, budget):
        options = ("--threads-per-lane", str(threads), "--memory-budget-bytes", str(bound))
        with server_process(bundle, *options) as server, Watch().on(server) as watch:
            started = time.monotonic()
            asyncio.run(_all_long(server.address, long_texts(texts, BUDGET_CALLS)))
            seconds = time.monotonic() - started
        most[bound] = watch.most
        told = f"budget {bound / MIB:.0f} MiB" if bound else "no budget"
        click.echo(f"{told:34} {watch.most / MIB:8.1f} MiB at most, {BUDGET_CALLS} long texts in {seconds:.0f} s")
    if most[0] <= budget:
        return [f"a budget of {budget / MIB:.0f} MiB bounds nothing"]
    return [f"{most[budget] / MIB:.1f} MiB with a budget of {budget / MIB:.0f}"] if most[budget] > budget else []


async def _all_long(address: str, texts: Sequence[str]) -> None:
    left = iter(texts)

    async def client() -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            for text in left:
                await connection.translate([text], truncate=True)

    await asyncio.gather(*(client() for _ in range(BUDGET_CLIENTS)))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="The server's.")
@click.option("--budget-mib", type=click.IntRange(1), default=208, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench/memory"), show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, parts: Sequence[str], threads: int, budget_mib: int, work: Path, data: Path) -> None:
    """Serve BUNDLE, and look at memory. About 5 minutes with the shipped model in int8."""
    texts = [pair.source for pair in read_pairs(data)]
    broken = []
    if "shape" in parts:
        broken += measure_shape(work)
    if "outlier" in parts:
        broken += measure_served([bundle], texts, threads)
    if "parts" in parts:
        broken += measure_served([bundle, renamed(bundle, "another", work)], texts, threads)
    if "budget" in parts:
        broken += measure_budget(bundle, texts, threads, budget_mib * MIB)
    if broken:
        raise click.ClickException("; ".join(broken))


if __name__ == "__main__":
    main()
