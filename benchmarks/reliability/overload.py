"""What a server does with five times the calls that it can answer, and after it.

    python -m benchmarks.reliability.overload BUNDLE

The server has one processor and one thread, the generator the other. Capacity is measured with a closed loop of
clients, which is also what gives the waves their rate. Each wave is an open loop of calls with a deadline of two
seconds; after it come single calls until one takes no longer than before, and capacity is measured anew. Goodput is
what was answered in time, and is held against the mean of capacity before and after: the speed of a machine changes
within a minute by more than what is asked here. Ends with status 1 where a bound is not kept.
"""

import asyncio
import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from benchmarks.server_process import ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from dragoman.client import AsyncClient, ClientError, OverloadedError
from dragoman.model.training.corpus import read_pairs

TIMEOUT_SECONDS = 60.0
DEADLINE_SECONDS = 2.0
TIMES_CAPACITY = 5
SETTLING_SECONDS = 2.0
"""Of a closed loop, before it is measured."""
LOOK_SECONDS = 0.25
"""From one look at the server's memory to the next."""
CALM_TIMES = 2
"""A latency of so many times the one before the first wave is normal again."""

MIN_GOODPUT = 0.9
"""Of capacity, in each wave."""
MIN_CAPACITY = 0.8
"""Of capacity before the first wave, after the last: waves must not wear the server out, and machines waver by less."""
MAX_REFUSAL_SECONDS = 0.05
"""Of 99 of 100 refusals, as the caller sees them."""
MAX_CALM_SECONDS = 2.0
"""From the end of a wave to normal latency."""
MAX_GROWTH = 0.05
"""Of resident memory, from after the first wave to after the last."""
MIB = 2**20


@dataclass
class Wave:
    """What became of the calls of one wave."""

    seconds: float = 0.0
    """From the first call to the last answer that came in time."""
    answered: int = 0
    refusals: list[float] = field(default_factory=list)
    """How long each took, in seconds."""
    others: Counter[str] = field(default_factory=Counter)
    """By status."""
    calm_seconds: float = 0.0
    """From the end of the wave to normal latency."""
    processor_share: float = 0.0
    """Of its processor that the server had; what lacks of 1 had others, and the wave was not measured in peace."""

    @property
    def goodput(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds

    @property
    def refusal_seconds(self) -> float:
        """Of 99 of 100."""
        return statistics.quantiles(self.refusals, n=100)[-1] if len(self.refusals) > 1 else 0.0


@dataclass(frozen=True)
class Able:
    """What the server does where nobody overloads it."""

    capacity: float
    """Calls a second that are answered where each of some clients waits for its answer."""
    resident_bytes: int
    """The least meanwhile: what large batches take is given back and taken again."""


async def able(server: ServerProcess, client: AsyncClient, texts: Iterator[str], clients: int, seconds: float) -> Able:
    """Measured for so many seconds, after two to get there."""
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
        await asyncio.sleep(LOOK_SECONDS)
        resident.append(server.resident_bytes())
    found = Able((answered - before) / (time.monotonic() - started), min(resident))
    await loop
    return found


async def latency(client: AsyncClient, texts: Iterator[str]) -> float:
    """Seconds of one call."""
    started = time.monotonic()
    await client.translate([next(texts)], truncate=True)
    return time.monotonic() - started


async def overload(client: AsyncClient, texts: Iterator[str], rate: float, seconds: float) -> Wave:
    """So many calls a second for so many seconds."""
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


async def calm(client: AsyncClient, texts: Iterator[str], normal: float) -> float:
    """Seconds until a call takes as long as is normal."""
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
) -> tuple[list[Able], list[Wave]]:
    """What the server is able to before the first wave and after each, and the waves."""
    texts = itertools.cycle(sentences)
    async with AsyncClient(server.address, timeout_seconds=TIMEOUT_SECONDS, retries=None) as client:
        lulls, seen = [await able(server, client, texts, clients, seconds)], list[Wave]()
        alone = max([await latency(client, texts) for _ in range(20)])
        click.echo(f"{_told(lulls[0])}; alone a call takes at most {1000 * alone:.0f} ms")
        for number in range(1, waves + 1):
            used, began = server.cpu_seconds(), time.monotonic()
            wave = await overload(client, texts, TIMES_CAPACITY * lulls[-1].capacity, seconds)
            wave.processor_share = (server.cpu_seconds() - used) / (time.monotonic() - began)
            wave.calm_seconds = await calm(client, texts, CALM_TIMES * alone)
            lulls.append(await able(server, client, texts, clients, seconds / 2))
            seen.append(wave)
            click.echo(
                f"wave {number}: goodput {wave.goodput:.1f} a second ({share(wave, *lulls[-2:]):.1%} of capacity), "
                f"{len(wave.refusals)} refused, 99 % of them within {1000 * wave.refusal_seconds:.0f} ms, "
                f"others {dict(wave.others)}, calm after {wave.calm_seconds:.2f} s, "
                f"{wave.processor_share:.0%} of the processor; then {_told(lulls[-1])}"
            )
    return lulls, seen


def share(wave: Wave, before: Able, after: Able) -> float:
    """Of capacity that was goodput."""
    return wave.goodput / statistics.mean((before.capacity, after.capacity))


def faults(able: Sequence[Able], waves: Sequence[Wave]) -> list[str]:
    """What is beyond its bound, in words."""
    found = []
    for number, (wave, before, after) in enumerate(zip(waves, able, able[1:], strict=False), start=1):
        if (goodput := share(wave, before, after)) < MIN_GOODPUT:
            found.append(f"goodput of wave {number} is {goodput:.1%}, must be {MIN_GOODPUT:.0%}")
        if wave.refusal_seconds > MAX_REFUSAL_SECONDS:
            found.append(f"refusals of wave {number} took {1000 * wave.refusal_seconds:.0f} ms")
        if wave.calm_seconds > MAX_CALM_SECONDS:
            found.append(f"after wave {number} latency was normal after {wave.calm_seconds:.1f} s")
    if able[-1].capacity < MIN_CAPACITY * able[0].capacity:
        found.append(f"capacity is {able[-1].capacity / able[0].capacity:.0%} of what it was before the waves")
    growth = able[-1].resident_bytes / able[1].resident_bytes - 1
    if growth > MAX_GROWTH:
        found.append(f"memory grew by {growth:.1%}, may by {MAX_GROWTH:.0%}")
    return found


def _told(able: Able) -> str:
    return f"capacity {able.capacity:.1f} calls a second, {able.resident_bytes / MIB:.1f} MiB"


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--sentences", type=click.IntRange(1), default=4, show_default=True, help="Of which a text is made.")
@click.option("--clients", type=click.IntRange(1), default=64, show_default=True, help="Of the closed loop.")
@click.option("--waves", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Of each wave.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, sentences: int, clients: int, waves: int, seconds: float, data: Path) -> None:
    """Overload a server of BUNDLE; needs two processors."""
    own, other = sorted(os.sched_getaffinity(0))[:2]
    pairs = [pair.source for pair in read_pairs(data)]
    texts = [" ".join(pairs[start : start + sentences]) for start in range(0, len(pairs) - sentences, sentences)]
    with server_process(bundle, "--threads-per-lane", "1", cpus={own}) as server, pinned({other}):
        found = asyncio.run(measure(server, texts, clients, waves, seconds))
    if told := faults(*found):
        raise click.ClickException("; ".join(told))


if __name__ == "__main__":
    main()
