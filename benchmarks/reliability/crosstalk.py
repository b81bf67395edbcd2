"""Does anybody get what is another's, and is every call counted once?

    python -m benchmarks.reliability.crosstalk BUNDLE --calls 10000

A real server process, and a closed loop of callers. Of the calls one in ten is bad, one cancelled, and one has a
deadline that cannot be met. Each good answer, with its tokens and score, must be that of its texts alone; each bad call
must get its status; what the server counted must be what was sent; and every gauge must come back to 0. Ends with
status 1 otherwise.
"""

import asyncio
import random
from itertools import islice
from pathlib import Path

import click
import grpc

from benchmarks.reliability.mixture import CALM_SECONDS, Caller, Counted, Tally, differences, pick_texts, plan, told
from benchmarks.server_process import GAUGES, ServerProcess, server_process
from benchmarks.speed.sentences import DATA
from dragoman.model.training.corpus import read_pairs


async def mixed(server: ServerProcess, sentences: list[str], texts: int, calls: int, callers: int) -> list[str]:
    """Make all calls; what is not as it must be, in words."""
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
        # What was cancelled last may be counted a moment later.
        await asyncio.sleep(1)
    counted = Counted.by(server).since(before)
    click.echo(told(tally, counted))
    click.echo(f"{len(tally.wrong)} answers that are not what they must be; gauges {'all' if calm else 'not all'} at 0")
    found = [*islice(tally.wrong, 5), *differences(tally, counted)]
    return found if calm else [*found, f"not all of {', '.join(GAUGES)} are at 0"]


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--calls", type=click.IntRange(1), default=10_000, show_default=True)
@click.option("--callers", type=click.IntRange(1), default=64, show_default=True)
@click.option("--texts", type=click.IntRange(1), default=300, show_default=True, help="Different ones, of good calls.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, calls: int, callers: int, texts: int, data: Path) -> None:
    """Mix good, bad, cancelled and late calls on a server of BUNDLE."""
    sentences = [pair.source for pair in read_pairs(data)]
    with server_process(bundle, "--threads-per-lane", "1") as server:
        found = asyncio.run(mixed(server, sentences, texts, calls, callers))
    if found:
        raise click.ClickException("\n".join(found))


if __name__ == "__main__":
    main()
