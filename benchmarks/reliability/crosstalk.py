"""Isolation of concurrent calls, and exactness of the call counters.

    python -m benchmarks.reliability.crosstalk BUNDLE --calls 10000

A closed loop of callers against a real server process. 10 % of the calls are invalid, 10 % are cancelled, and 10 %
have a deadline that cannot be met. Each good answer, with its tokens and score, must equal the answer to the same texts
alone. Each invalid call must get its status. The server's counters must match the calls sent, and every gauge must
return to 0. The exit status is 1 otherwise.
"""

import asyncio
import random
from itertools import islice
from pathlib import Path

import click
import grpc

from benchmarks.reliability.mixture import CALM_SECONDS, Caller, Counted, Tally, differences, pick_texts, plan, summary
from benchmarks.reliability.scenario import ONE_THREAD, bundle_argument, data_option, finish, sentences_of
from benchmarks.server_process import GAUGES, ServerProcess, server_process


async def mixed(server: ServerProcess, sentences: list[str], texts: int, calls: int, callers: int) -> list[str]:
    """Make all calls. Returns messages for the violations."""
    rng, tally = random.Random(0), Tally()
    short, long = pick_texts(sentences, texts)
    async with grpc.aio.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        caller = Caller(channel)
        known = await caller.know([*short, *long])
        before = Counted.by(server)
        left = iter(range(calls))

        async def loop() -> None:
            for _ in left:
                await caller.make(plan(rng, short, long), known, tally)

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(loop())
        calm = await asyncio.to_thread(server.at_rest, CALM_SECONDS)
        # The server may count the last cancelled calls a moment later.
        await asyncio.sleep(1)
    counted = Counted.by(server).since(before)
    click.echo(summary(tally, counted))
    click.echo(f"{len(tally.wrong)} wrong answers; gauges {'all' if calm else 'not all'} at 0")
    found = [*islice(tally.wrong, 5), *differences(tally, counted)]
    return found if calm else [*found, f"not all of {', '.join(GAUGES)} are at 0"]


@click.command()
@bundle_argument
@click.option("--calls", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option(
    "--texts", type=click.IntRange(1), default=300, show_default=True, help="Distinct texts of the good calls."
)
@data_option
def main(bundle: Path, calls: int, callers: int, texts: int, data: Path) -> None:
    """Mix good, bad, cancelled and late calls on a server of BUNDLE."""
    with server_process(bundle, *ONE_THREAD) as server:
        faults = asyncio.run(mixed(server, sentences_of(data), texts, calls, callers))
    finish(faults)


if __name__ == "__main__":
    main()
