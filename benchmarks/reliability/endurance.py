"""Trends of latency, memory, files and threads over half an hour at 80 % of capacity.

    python -m benchmarks.reliability.endurance BUNDLE --minutes 30

The server has one processor and one thread, the generator the other. A closed loop measures capacity. Then calls
arrive at random (a Poisson process) at 80 % of that rate. 10 % of them are invalid, 10 % cancelled, and 10 % have a
deadline that cannot be met. Every few seconds the latency of good calls, resident memory, open files and threads are
observed. For memory the minimum since the previous observation counts, because large batches take some for a moment.
A least-squares line is fitted to the observations after the warm-up. Its slope per hour is printed, and its rise over
the observed time must stay within bounds. Memory at rest is printed too, before the run, when the server is not warm
yet, and after it. Answers and counters are checked as in `benchmarks.reliability.crosstalk`. The exit status is 1 if
any check fails.
"""

import asyncio
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
    summary,
)
from benchmarks.reliability.scenario import bundle_argument, data_option, finish, isolated_server, sentences_of
from benchmarks.server_process import GAUGES, ServerProcess

LOAD = 0.8
"""Share of capacity."""
CAPACITY_SECONDS = 10.0
TEXTS = 300
WARMING = 0.2
"""Share of the run that is excluded from the trends."""
SAMPLE_SECONDS = 0.25
"""Interval between two samples of resident memory."""
REST_SECONDS = 15.0
"""Time in which an idle server releases unused memory."""
MIB = 2**20
HOUR = 3600.0


@dataclass(frozen=True)
class Observation:
    """State of a server at one moment."""

    seconds: float
    """Time since the start of the run."""
    latency_ms: float
    """Median latency of the good calls since the previous observation."""
    resident_mib: float
    """Minimum since the previous observation."""
    files: float
    threads: float


@dataclass(frozen=True)
class Bound:
    """Largest allowed rise of a metric from the first observation to the last."""

    metric: str
    unit: str
    share: float
    """Allowed rise as a share of the initial value."""
    tolerance: float
    """Rise that is allowed for any initial value."""


BOUNDS = (
    Bound("latency_ms", "ms", share=0.2, tolerance=5.0),
    Bound("resident_mib", "MiB", share=0.05, tolerance=0.0),
    Bound("files", "", share=0.0, tolerance=2.0),
    Bound("threads", "", share=0.0, tolerance=2.0),
)


@dataclass(frozen=True)
class Trend:
    """Straight line fitted to the observations of one metric."""

    begin: float
    slope: float
    """Change per second."""
    seconds: float

    @classmethod
    def through(cls, seconds: Sequence[float], values: Sequence[float]) -> "Trend":
        """Least-squares line; requires two observations."""
        fitted = statistics.linear_regression(seconds, values)
        begin = fitted.intercept + fitted.slope * seconds[0]
        return cls(begin, fitted.slope, seconds[-1] - seconds[0])

    @property
    def rise(self) -> float:
        """Change from the first observation to the last."""
        return self.slope * self.seconds

    def flat(self, bound: Bound) -> bool:
        """Whether the rise stays within `bound`."""
        return self.rise <= max(bound.tolerance, bound.share * self.begin)


def trends_of(observations: Sequence[Observation]) -> dict[Bound, Trend]:
    """The trend of each bounded metric, without the warm-up."""
    kept = [observation for observation in observations if observation.seconds >= WARMING * observations[-1].seconds]
    seconds = [observation.seconds for observation in kept]
    return {
        bound: Trend.through(seconds, [getattr(observation, bound.metric) for observation in kept]) for bound in BOUNDS
    }


async def capacity(caller: Caller, known: Known, short: Sequence[str], long: Sequence[str], callers: int) -> float:
    """Throughput of a closed loop with the mixture, in calls per second."""
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
    """Open loop of calls at random moments, `rate` per second on average."""
    rng, at = random.Random(2), time.monotonic()
    until = at + seconds
    async with asyncio.TaskGroup() as group:
        while at < until:
            at += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            group.create_task(caller.make(plan(rng, short, long), known, tally))


async def observe(server: ServerProcess, tally: Tally, every: float, observations: list[Observation]) -> None:
    """Append an observation every `every` seconds, until cancelled."""
    started = time.monotonic()
    while True:
        seen, until, resident = len(tally.latencies), time.monotonic() + every, list[int]()
        while time.monotonic() < until:
            await asyncio.sleep(SAMPLE_SECONDS)
            resident.append(server.resident_bytes())
        latencies = tally.latencies[seen:]
        if not latencies:
            continue
        observation = Observation(
            time.monotonic() - started,
            1000 * statistics.median(latencies),
            min(resident) / MIB,
            server.open_files(),
            server.threads(),
        )
        observations.append(observation)


async def endure(server: ServerProcess, sentences: list[str], callers: int, minutes: float, every: float) -> list[str]:
    """Run the whole scenario. Returns messages for the violations."""
    short, long = pick_texts(sentences, TEXTS)
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        caller = Caller(channel)
        known = await caller.know([*short, *long])
        rate = await capacity(caller, known, short, long, callers)
        click.echo(f"capacity {rate:.1f} calls/s of the mixture; {LOAD:.0%} of it for {minutes:g} minutes")
        await asyncio.to_thread(server.at_rest, CALM_SECONDS)
        await asyncio.sleep(REST_SECONDS)
        rest = server.resident_bytes()
        before, tally, observations = Counted.by(server), Tally(), list[Observation]()
        observing = asyncio.create_task(observe(server, tally, every, observations))
        await stream(caller, known, tally, short, long, LOAD * rate, 60 * minutes)
        observing.cancel()
        calm = await asyncio.to_thread(server.at_rest, CALM_SECONDS)
        # The server may also count the last cancelled calls a moment later.
        await asyncio.sleep(REST_SECONDS)
        growth = server.resident_bytes() / rest - 1
    counted = Counted.by(server).since(before)
    click.echo(summary(tally, counted))
    found = [*islice(tally.wrong, 5), *differences(tally, counted), *report_trends(tally, observations)]
    click.echo(f"resident at rest: {rest / MIB:.1f} MiB before, {growth:+.1%} after")
    return found if calm else [*found, f"not all of {', '.join(GAUGES)} are at 0"]


def report_trends(tally: Tally, observations: Sequence[Observation]) -> list[str]:
    """Print latency and trends. Returns messages for the trends beyond their bounds."""
    found = []
    click.echo(
        f"{tally.sent[Kind.GOOD]} good calls: median {1000 * statistics.median(tally.latencies):.0f} ms, "
        f"99 % within {1000 * statistics.quantiles(tally.latencies, n=100)[-1]:.0f} ms; {len(observations)} samples"
    )
    for bound, trend in trends_of(observations).items():
        verdict = "flat" if trend.flat(bound) else "NOT FLAT"
        name = bound.metric.partition("_")[0]
        click.echo(
            f"{name}: {trend.begin:.1f} {bound.unit}, {trend.slope * HOUR:+.2f} {bound.unit}/h, "
            f"{trend.rise:+.2f} over the run: {verdict}"
        )
        if not trend.flat(bound):
            found.append(f"{name} rose by {trend.rise:.2f} {bound.unit} from {trend.begin:.1f}")
    return found


@click.command()
@bundle_argument
@click.option("--minutes", type=click.FloatRange(0.5), default=30.0, show_default=True)
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True, help="Callers of the closed loop.")
@click.option("--every", type=click.FloatRange(0.5), default=10.0, show_default=True, help="Observation interval, s.")
@data_option
def main(bundle: Path, minutes: float, callers: int, every: float, data: Path) -> None:
    """Keep a server of BUNDLE busy and watch its trends; requires two processors."""
    with isolated_server(bundle) as server:
        faults = asyncio.run(endure(server, sentences_of(data), callers, minutes, every))
    finish(faults)


if __name__ == "__main__":
    main()
