"""Peak memory of a server, its breakdown, its return to the system, and memory budgets.

    build/peers/bin/python -m benchmarks.memory.parts BUNDLE

Four parts, each with its bounds:

- `shape`: the OPUS shape in int8 at 32 rows, against its weights and CTranslate2, each side in a process of its own;
- `outlier`: a served model before, during and 30 s after a batch of 32 texts at its limits, under steady small calls;
- `parts`: the parts reported by GetInfo against the kernel's figure at each of these moments, with one and two models;
- `budget`: a server with a memory budget, which must stay below it under texts at the limits.

Exits with status 1 if a bound is broken.
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
"""Bytes above the weights, at 32 rows."""
MAX_GROWTH = 0.10
"""Growth 30 s after an outlier, as a share of the memory before it."""
MAX_UNEXPLAINED = 0.10
"""Difference between the sum of the parts and the kernel's figure, as a share of the latter."""

ROWS = 32
LONG_WORDS = 400
"""More words than any limit: the server truncates the text."""
SMALL_CLIENTS = 2
SMALL_SECONDS = 25.0
AFTER_SECONDS = 30.0
REST_SECONDS = 4.0
"""Time without calls after which the server has returned its memory."""
SAMPLE_SECONDS = 0.01
TIMEOUT_SECONDS = 600.0
BUDGET_CLIENTS = 64
BUDGET_CALLS = 128


@dataclass(frozen=True)
class Reading:
    """Memory of a server in bytes, measured by the kernel and explained by the reported parts."""

    name: str
    resident: int
    explained: int

    @property
    def unexplained(self) -> float:
        """Unexplained share of the kernel's figure; negative if the parts exceed it."""
        return 1 - self.explained / self.resident

    def __str__(self) -> str:
        """Line of the table."""
        return (
            f"{self.name:34} {self.resident / MIB:8.1f} MiB, parts {self.explained / MIB:8.1f} MiB "
            f"({self.unexplained:+.1%} unexplained)"
        )


@dataclass
class PeakMemory:
    """Peak resident memory of a process, by sampling."""

    resident_bytes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def sample(self, server: ServerProcess) -> Iterator["PeakMemory"]:
        """Sample every SAMPLE_SECONDS until exit."""

        def update_peak() -> None:
            while not self._over.wait(SAMPLE_SECONDS):
                self.resident_bytes = max(self.resident_bytes, server.resident_bytes())

        thread = threading.Thread(target=update_peak)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()


def read_memory(server: ServerProcess, name: str) -> Reading:
    """Read and print the memory of `server`."""
    with Client(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
        info = client.info()
    reading = Reading(name, info.resident_memory_bytes, info.explained_memory_bytes)
    click.echo(reading)
    return reading


async def small_calls(address: str, texts: Sequence[str], models: Sequence[str], over: asyncio.Event) -> None:
    """Translate one sentence per call in closed loops, until `over` is set."""

    async def client(place: int) -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS) as connection:
            for text in islice(cycle(texts), place, None):
                if over.is_set():
                    return
                await connection.translate([text], model=models[place % len(models)], truncate=True)

    await asyncio.gather(*(client(place) for place in range(SMALL_CLIENTS * len(models))))


async def outlier(server: ServerProcess, texts: Sequence[str], models: Sequence[str]) -> list[Reading]:
    """Send each model one batch at the limits under steady small calls; read memory before, during and after it."""
    over = asyncio.Event()
    background = asyncio.create_task(small_calls(server.address, texts, models, over))
    await asyncio.sleep(SMALL_SECONDS)
    readings = [await asyncio.to_thread(read_memory, server, "before, under small calls")]
    with PeakMemory().sample(server) as peak:
        async with AsyncClient(server.address, timeout_seconds=TIMEOUT_SECONDS) as client:
            sent = [
                asyncio.create_task(client.translate(long_texts(texts, ROWS), model=model, truncate=True))
                for model in models
            ]
            while not any(task.done() for task in sent):
                await asyncio.sleep(1.0)
                during = await asyncio.to_thread(read_memory, server, "during the batch at the limits")
            readings.append(during)
            await asyncio.gather(*sent)
    click.echo(f"{'peak':34} {peak.resident_bytes / MIB:8.1f} MiB")
    await asyncio.sleep(AFTER_SECONDS)
    readings.append(await asyncio.to_thread(read_memory, server, f"{AFTER_SECONDS:.0f} s after, under small calls"))
    over.set()
    await background
    return readings


def long_texts(texts: Sequence[str], count: int) -> list[str]:
    """`count` different texts, each longer than the model's limit."""
    words = [word for text in texts for word in text.split()]
    return [" ".join(islice(cycle(words), start * 7, start * 7 + LONG_WORDS)) for start in range(count)]


def measure_shape(work: Path) -> list[str]:
    """Print the table of the OPUS shape; returns the broken bounds."""
    from benchmarks.measured_models import opus_shape, write_bundle
    from benchmarks.speed.contenders import prepare_peers

    measured = opus_shape()
    bundle = write_bundle(work / "int8", measured.model, measured.endless, "int8")
    write_manifest(bundle.folder, bundle.manifest)
    weights = bundle.path(WEIGHTS_FILE).stat().st_size
    sides = {"dragoman": bundle.folder}
    if prepare_peers(["ctranslate2"], work, measured.model, measured.endless):
        sides["ctranslate2"] = work / "ctranslate2"
    click.echo(f"OPUS shape, int8, {ROWS} rows, one thread; weights.bin: {weights / 10**6:.1f} MB")
    resident = {side: _side(side, folder) for side, folder in sides.items()}
    for side, peak in resident.items():
        click.echo(f"{side:12} {peak / 10**6:8.1f} MB peak, {(peak - weights) / 10**6:+.1f} MB above weights.bin")
    above = resident["dragoman"] - weights
    return [f"{above / 10**6:.1f} MB above weights.bin"] if above > MAX_ABOVE_WEIGHTS else []


def _side(side: str, folder: Path) -> int:
    command = [sys.executable, "-m", "benchmarks.memory.one_side", side, str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS, check=True)
    peak: int = json.loads(done.stdout.splitlines()[-1])["resident_bytes"]
    return peak


def renamed(bundle: Path, name: str, work: Path) -> Path:
    """Copy of `bundle` under another model name."""
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundle, folder)
    write_manifest(folder, replace(open_bundle(bundle).manifest, name=name, files=list_files(folder)))
    return folder


def measure_served(bundles: Sequence[Path], texts: Sequence[str], threads: int) -> list[str]:
    """Serve `bundles` and print memory before, during and after an outlier; returns the broken bounds."""
    names = [open_bundle(bundle).manifest.name for bundle in bundles]
    click.echo(f"{len(bundles)} models served: {', '.join(names)}")
    options = (*map(str, bundles[1:]), "--threads-per-lane", str(threads), "--max-rows", str(ROWS))
    with server_process(bundles[0], *options) as server:
        time.sleep(REST_SECONDS)
        readings = [read_memory(server, "at rest, after warm-up")]
        readings += asyncio.run(outlier(server, texts, names))
        time.sleep(REST_SECONDS)
        readings.append(read_memory(server, "at rest again"))
    _, before, _, after, _ = readings
    broken = [f"{each.name}: {each.unexplained:+.1%}" for each in readings if abs(each.unexplained) > MAX_UNEXPLAINED]
    growth = after.resident / before.resident - 1
    click.echo(f"growth after the batch: {growth:+.1%}")
    return broken + ([f"memory grew by {growth:.1%} after the batch"] if growth > MAX_GROWTH else [])


def measure_budget(bundle: Path, texts: Sequence[str], threads: int, budget: int) -> list[str]:
    """Serve `bundle` with and without `budget`, under texts at the limits only; returns the broken bounds."""
    peaks = {}
    for bound in (0, budget):
        options = ("--threads-per-lane", str(threads), "--memory-budget-bytes", str(bound))
        with server_process(bundle, *options) as server, PeakMemory().sample(server) as peak:
            started = time.monotonic()
            asyncio.run(_all_long(server.address, long_texts(texts, BUDGET_CALLS)))
            seconds = time.monotonic() - started
        peaks[bound] = peak.resident_bytes
        label = f"budget {bound / MIB:.0f} MiB" if bound else "no budget"
        click.echo(
            f"{label:34} {peak.resident_bytes / MIB:8.1f} MiB peak, {BUDGET_CALLS} long texts in {seconds:.0f} s"
        )
    if peaks[0] <= budget:
        return [f"a budget of {budget / MIB:.0f} MiB has no effect: the peak without it is lower"]
    return [f"{peaks[budget] / MIB:.1f} MiB with a budget of {budget / MIB:.0f}"] if peaks[budget] > budget else []


async def _all_long(address: str, texts: Sequence[str]) -> None:
    pending = iter(texts)

    async def client() -> None:
        async with AsyncClient(address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as connection:
            for text in pending:
                await connection.translate([text], truncate=True)

    await asyncio.gather(*(client() for _ in range(BUDGET_CLIENTS)))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads of the server.")
@click.option("--budget-mib", type=click.IntRange(1), default=208, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/bench/memory"), show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, parts: Sequence[str], threads: int, budget_mib: int, work: Path, data: Path) -> None:
    """Measure the memory of servers of BUNDLE. About 5 minutes with the shipped model in int8."""
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
