"""Does a server wear out? Four fifths of what it can do for half an hour, with calls of all kinds.

    python -m benchmarks.reliability.endurance BUNDLE --minutes 30

The server has one processor and one thread, the generator the other. Capacity is measured with a closed loop; then
calls come at random moments, at 80 % of that rate: good ones, and one in ten each that is bad, cancelled, or too late
from the start. Latency of good calls, resident memory, open files and threads are looked at every few seconds; of
memory the least since the look before, because large batches take some for a moment. Through what is seen after the
first part, which warms the server up, a line is laid: its slope an hour is printed, and what it comes to over the time
of the looks must stay within bounds. Memory at rest is printed as well, from before the run, when the server is not
warm yet, and after it. Answers and counts are checked as in `benchmarks.reliability.crosstalk`. The exit status is 1
if any check fails.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click
import grpc

from benchmarks.reliability.mixture import (
    CALM_SECONDS,
    Caller,
    Counted,
    Kind,
    Known,
    Tally,
    differences,
    pick_texts,
    plan,
    told,
)
from benchmarks.server_process import GAUGES, ServerProcess, pinned, server_process
from benchmarks.speed.sentences import DATA
from dragoman.model.training.corpus import read_pairs

LOAD = 0.8
"""Of capacity."""
CAPACITY_SECONDS = 10.0
TEXTS = 300
WARMING = 0.2
"""The first part of the run, which is not looked at."""
SAMPLE_SECONDS = 0.25
"""From one reading of resident memory to the next."""
REST_SECONDS = 15.0
"""After which a server at rest has given back what it does not need."""
MIB = 2**20
HOUR = 3600.0


@dataclass(frozen=True)
class Look:
    """What a server was at one moment."""

    seconds: float
    """Since the run began."""
    latency_ms: float
    """Median of the good calls since the look before."""
    resident_mib: float
    """The least since the look before."""
    files: float
    threads: float


@dataclass(frozen=True)
class Bound:
    """By how much a line may rise from the first look to the last."""

    what: str
    unit: str
    share: float
    """Of the line's own beginning."""
    least: float
    """So much is let pass whatever the beginning."""


BOUNDS = (
    Bound("latency_ms", "ms", share=0.2, least=5.0),
    Bound("resident_mib", "MiB", share=0.05, least=0.0),
    Bound("files", "", share=0.0, least=2.0),
    Bound("threads", "", share=0.0, least=2.0),
)


@dataclass(frozen=True)
class Line:
    """A straight line through what was seen."""

    begin: float
    slope: float
    """A second."""
    seconds: float

    @classmethod
    def through(cls, seconds: Sequence[float], values: Sequence[float]) -> "Line":
        """The line of least squares; it needs two looks."""
        fitted = statistics.linear_regression(seconds, values)
        begin = fitted.intercept + fitted.slope * seconds[0]
        return cls(begin, fitted.slope, seconds[-1] - seconds[0])

    @property
    def rise(self) -> float:
        """From the first look to the last."""
        return self.slope * self.seconds

    def flat(self, bound: Bound) -> bool:
        """Whether it rises no more than it may."""
        return self.rise <= max(bound.least, bound.share * self.begin)


def lines(looks: Sequence[Look]) -> dict[Bound, Line]:
    """One for each thing that is bounded, through all looks but those of the beginning."""
    kept = [look for look in looks if look.seconds >= WARMING * looks[-1].seconds]
    seconds = [look.seconds for look in kept]
    return {bound: Line.through(seconds, [getattr(look, bound.what) for look in kept]) for bound in BOUNDS}


async def capacity(caller: Caller, known: Known, short: Sequence[str], long: Sequence[str], callers: int) -> float:
    """Calls of the mixture that end in a second where each caller waits for its own."""
    rng, tally = random.Random(1), Tally()
    until = time.monotonic() + CAPACITY_SECONDS

    async def loop() -> None:
        while time.monotonic() < until:
            await caller.make(plan(rng, short, long), known, tally)

    await asyncio.gather(*(loop() for _ in range(callers)))
    return tally.sent.total() / CAPACITY_SECONDS


async def stream(
    caller: Caller,
    known: Known,
    tally: Tally,
    short: Sequence[str],
    long: Sequence[str],
    rate: float,
    seconds: float,
) -> None:
    """Calls at random moments, `rate` a second on average, whatever becomes of them."""
    rng, at = random.Random(2), time.monotonic()
    until = at + seconds
    async with asyncio.TaskGroup() as group:
        while at < until:
            at += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            group.create_task(caller.make(plan(rng, short, long), known, tally))


async def watch(server: ServerProcess, tally: Tally, every: float, looks: list[Look]) -> None:
    """Look at the server again and again."""
    started = time.monotonic()
    while True:
        seen, until, resident = len(tally.latencies), time.monotonic() + every, list[int]()
        while time.monotonic() < until:
            await asyncio.sleep(SAMPLE_SECONDS)
            resident.append(server.resident_bytes())
        latencies = tally.latencies[seen:]
        if not latencies:
            continue
        look = Look(
            time.monotonic() - started,
            1000 * statistics.median(latencies),
            min(resident) / MIB,
            server.open_files(),
            server.threads(),
        )
        looks.append(look)


async def endure(server: ServerProcess, sentences: list[str], callers: int, minutes: float, every: float) -> list[str]:
    """All of it; what is not as it must be, in words."""
    short, long = pick_texts(sentences, TEXTS)
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        caller = Caller(channel)
        known = await caller.know([*short, *long])
        able = await capacity(caller, known, short, long, callers)
        click.echo(f"capacity {able:.1f} calls a second of the mixture; {LOAD:.0%} of it for {minutes:g} minutes")
        await asyncio.to_thread(server.at_rest, CALM_SECONDS)
        await asyncio.sleep(REST_SECONDS)
        rest = server.resident_bytes()
        before, tally, looks = Counted.by(server), Tally(), list[Look]()
        watching = asyncio.create_task(watch(server, tally, every, looks))
        await stream(caller, known, tally, short, long, LOAD * able, 60 * minutes)
        watching.cancel()
        calm = await asyncio.to_thread(server.at_rest, CALM_SECONDS)
        # What was cancelled last may be counted a moment later, too.
        await asyncio.sleep(REST_SECONDS)
        growth = server.resident_bytes() / rest - 1
    counted = Counted.by(server).since(before)
    click.echo(told(tally, counted))
    found = [*islice(tally.wrong, 5), *differences(tally, counted), *slopes(tally, looks)]
    click.echo(f"resident at rest: {rest / MIB:.1f} MiB before, {growth:+.1%} after")
    return found if calm else [*found, f"not all of {', '.join(GAUGES)} are at 0"]


def slopes(tally: Tally, looks: Sequence[Look]) -> list[str]:
    """Print what was seen; what rises that must not, in words."""
    found = []
    click.echo(
        f"{tally.sent[Kind.GOOD]} good calls: median {1000 * statistics.median(tally.latencies):.0f} ms, "
        f"99 % within {1000 * statistics.quantiles(tally.latencies, n=100)[-1]:.0f} ms; {len(looks)} looks"
    )
    for bound, line in lines(looks).items():
        verdict = "flat" if line.flat(bound) else "NOT FLAT"
        name = bound.what.partition("_")[0]
        click.echo(
            f"{name}: {line.begin:.1f} {bound.unit}, {line.slope * HOUR:+.2f} {bound.unit} an hour, "
            f"{line.rise:+.2f} over the looks: {verdict}"
        )
        if not line.flat(bound):
            found.append(f"{name} rose by {line.rise:.2f} {bound.unit} from {line.begin:.1f}")
    return found


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--minutes", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True, help="Of the closed loop.")
@click.option("--every", type=click.FloatRange(0.5), default=10.0, show_default=True, help="Seconds from look to look.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, minutes: float, callers: int, every: float, data: Path) -> None:
    """Keep a server of BUNDLE busy, and see whether it wears out; needs two processors."""
    own, other = sorted(os.sched_getaffinity(0))[:2]
    sentences = [pair.source for pair in read_pairs(data)]
    with server_process(bundle, "--threads-per-lane", "1", cpus={own}) as server, pinned({other}):
        found = asyncio.run(endure(server, sentences, callers, minutes, every))
    if found:
        raise click.ClickException("\n".join(found))


if __name__ == "__main__":
    main()
