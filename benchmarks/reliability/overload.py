"""Goodput, refusal time and recovery of a server under five times its capacity.

    python -m benchmarks.reliability.overload BUNDLE

The server has one processor and one thread, the generator the other. A closed loop of clients measures
capacity, which sets the rate of the waves. Each wave is an open loop of calls with a deadline of two seconds. Single
calls follow until latency is normal again, and capacity is measured once more. Goodput is the rate of answers in time,
as a share of the mean capacity before and after: the speed of a machine varies within a minute by more than the bounds
allow. The exit status is 1 if a bound is exceeded.
"""

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.reliability.scenario import bundle_argument, data_option, finish, isolated_server, texts_of
from benchmarks.server_process import ServerProcess
from dragoman.client import AsyncClient, ClientError, OverloadedError

TIMEOUT_SECONDS = 60.0
DEADLINE_SECONDS = 2.0
TIMES_CAPACITY = 5
SETTLING_SECONDS = 2.0
"""Warm-up of the closed loop before the measurement."""
SAMPLE_SECONDS = 0.25
"""Interval between two samples of resident memory."""
NORMAL_LATENCY_FACTOR = 2
"""Normal latency, as a multiple of the latency before the first wave."""

MIN_GOODPUT = 0.9
"""Share of capacity, in each wave."""
MIN_CAPACITY = 0.8
"""Capacity after the last wave, as a share of capacity before the first; machines vary by less."""
MAX_REFUSAL_SECONDS = 0.05
"""99th percentile of the refusal time, as the caller sees it."""
MAX_RECOVERY_SECONDS = 2.0
"""Seconds from the end of a wave to normal latency."""
MAX_GROWTH = 0.05
"""Growth of resident memory between the first wave and the last."""
MIB = 2**20


@dataclass
class Wave:
    """Outcome of the calls of one wave."""

    seconds: float = 0.0
    """Seconds from the first call to the last answer in time."""
    answered: int = 0
    refusals: list[float] = field(default_factory=list)
    """Seconds from each refused call to its refusal."""
    others: Counter[str] = field(default_factory=Counter)
    """Calls with any other error, by status."""
    recovery_seconds: float = 0.0
    """Seconds from the end of the wave to normal latency."""
    processor_share: float = 0.0
    """Share of its processor that the server used; clearly below 1, other processes disturbed the measurement."""

    @property
    def goodput(self) -> float:
        """Answers in time per second."""
        return self.answered / self.seconds

    @property
    def refusal_seconds(self) -> float:
        """99th percentile of the refusal time, in seconds."""
        return statistics.quantiles(self.refusals, n=100)[-1] if len(self.refusals) > 1 else 0.0


@dataclass(frozen=True)
class Baseline:
    """Capacity and memory of the server without overload."""

    capacity: float
    """Throughput of a closed loop of clients, in calls per second."""
    resident_bytes: int
    """Minimum during the measurement: large batches take memory for a moment."""


async def measure_baseline(
    server: ServerProcess, client: AsyncClient, texts: Iterator[str], clients: int, seconds: float
) -> Baseline:
    """Measure the baseline for `seconds`, after a warm-up."""
    answered, until = 0, time.monotonic() + SETTLING_SECONDS + seconds

    async def one() -> None:
        nonlocal answered
        while time.monotonic() < until:
            await client.translate([next(texts)], truncate=True)
            answered += 1

    loop = asyncio.gather(*(one() for _ in range(clients)))
    await asyncio.sleep(SETTLING_SECONDS)
    before, started, resident = answered, time.monotonic(), list[int]()
    while time.monotonic() < until:
        await asyncio.sleep(SAMPLE_SECONDS)
        resident.append(server.resident_bytes())
    found = Baseline((answered - before) / (time.monotonic() - started), min(resident))
    await loop
    return found


async def latency(client: AsyncClient, texts: Iterator[str]) -> float:
    """Seconds of one call."""
    started = time.monotonic()
    await client.translate([next(texts)], truncate=True)
    return time.monotonic() - started


async def overload(client: AsyncClient, texts: Iterator[str], rate: float, seconds: float) -> Wave:
    """Open loop of `rate` calls per second for `seconds`."""
    wave, started = Wave(), time.monotonic()

    async def call(text: str) -> None:
        begun = time.monotonic()
        try:
            await client.translate([text], truncate=True, timeout_seconds=DEADLINE_SECONDS)
        except OverloadedError:
            wave.refusals.append(time.monotonic() - begun)
        except ClientError as error:
            wave.others[error.code.name] += 1
        else:
            wave.answered += 1
            wave.seconds = time.monotonic() - started

    calls = []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        calls.append(asyncio.create_task(call(next(texts))))
    await asyncio.gather(*calls)
    return wave


async def recovery(client: AsyncClient, texts: Iterator[str], normal: float) -> float:
    """Seconds until a call takes at most `normal` seconds."""
    started = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            if await latency(client, texts) <= normal:
                return began - started
        except OverloadedError:
            await asyncio.sleep(0.01)


async def measure(
    server: ServerProcess, sentences: Sequence[str], clients: int, waves: int, seconds: float
) -> tuple[list[Baseline], list[Wave]]:
    """The baselines before the first wave and after each wave, and the waves."""
    texts = itertools.cycle(sentences)
    async with AsyncClient(server.address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as client:
        baselines, seen = [await measure_baseline(server, client, texts, clients, seconds)], list[Wave]()
        alone = max([await latency(client, texts) for _ in range(20)])
        click.echo(f"{_summary(baselines[0])}; slowest single call {1000 * alone:.0f} ms")
        for number in range(1, waves + 1):
            used, began = server.cpu_seconds(), time.monotonic()
            wave = await overload(client, texts, TIMES_CAPACITY * baselines[-1].capacity, seconds)
            wave.processor_share = (server.cpu_seconds() - used) / (time.monotonic() - began)
            wave.recovery_seconds = await recovery(client, texts, NORMAL_LATENCY_FACTOR * alone)
            baselines.append(await measure_baseline(server, client, texts, clients, seconds / 2))
            seen.append(wave)
            click.echo(
                f"wave {number}: goodput {wave.goodput:.1f} calls/s ({share(wave, *baselines[-2:]):.1%} of capacity), "
                f"{len(wave.refusals)} refused, 99 % of them within {1000 * wave.refusal_seconds:.0f} ms, "
                f"other errors {dict(wave.others)}, normal latency after {wave.recovery_seconds:.2f} s, "
                f"{wave.processor_share:.0%} of the processor used; then {_summary(baselines[-1])}"
            )
    return baselines, seen


def share(wave: Wave, before: Baseline, after: Baseline) -> float:
    """Goodput of a wave as a share of the mean capacity before and after."""
    return wave.goodput / statistics.mean((before.capacity, after.capacity))


def faults(baselines: Sequence[Baseline], waves: Sequence[Wave]) -> list[str]:
    """Messages for the bounds that were exceeded."""
    found = []
    for number, (wave, before, after) in enumerate(zip(waves, baselines, baselines[1:], strict=False), start=1):
        if (goodput := share(wave, before, after)) < MIN_GOODPUT:
            found.append(f"goodput of wave {number} is {goodput:.1%}, must be at least {MIN_GOODPUT:.0%}")
        if wave.refusal_seconds > MAX_REFUSAL_SECONDS:
            found.append(f"refusals of wave {number} took {1000 * wave.refusal_seconds:.0f} ms (99th percentile)")
        if wave.recovery_seconds > MAX_RECOVERY_SECONDS:
            found.append(f"latency took {wave.recovery_seconds:.1f} s to recover after wave {number}")
    if baselines[-1].capacity < MIN_CAPACITY * baselines[0].capacity:
        found.append(
            f"capacity is {baselines[-1].capacity / baselines[0].capacity:.0%} of the capacity before the waves"
        )
    growth = baselines[-1].resident_bytes / baselines[1].resident_bytes - 1
    if growth > MAX_GROWTH:
        found.append(f"memory grew by {growth:.1%}, at most {MAX_GROWTH:.0%} allowed")
    return found


def _summary(baseline: Baseline) -> str:
    return f"capacity {baseline.capacity:.1f} calls/s, {baseline.resident_bytes / MIB:.1f} MiB"


@click.command()
@bundle_argument
@click.option("--sentences", type=click.IntRange(1), default=4, show_default=True, help="Sentences per text.")
@click.option("--clients", type=click.IntRange(1), default=64, show_default=True, help="Clients of the closed loop.")
@click.option("--waves", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Duration of each wave.")
@data_option
def main(bundle: Path, sentences: int, clients: int, waves: int, seconds: float, data: Path) -> None:
    """Overload a server of BUNDLE; requires two processors."""
    with isolated_server(bundle) as server:
        measured = asyncio.run(measure(server, texts_of(data, sentences), clients, waves, seconds))
    finish(faults(*measured))


if __name__ == "__main__":
    main()
