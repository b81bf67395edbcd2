"""Light mixed traffic that fills the dashboards.

    python deploy/traffic.py HOST:PORT

Most calls are valid. Some request an unknown language, some are cancelled by the caller, and some have too short a
deadline. The profile `load` of docker-compose.yml runs this file inside the server's image; it may import nothing that
the image lacks.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import click

from dragoman.client import AsyncClient, ClientError, InvalidArgumentError, TimedOutError, UnavailableError

Kind = Literal["translate", "embed", "bad", "cancelled", "late"]

WEIGHTS: dict[Kind, int] = {"translate": 70, "embed": 20, "bad": 4, "cancelled": 3, "late": 3}
"""Relative frequency of each kind of call."""

SENTENCES = (
    "The cat sat on the mat.",
    "Good morning!",
    "Where is the nearest railway station?",
    "Open the file and save it under another name.",
    "I have never seen so many stars in my life.",
    "This package contains the documentation of the library.",
    "She asked him whether he would come back the next day.",
    "The program ends with an error if the disk is full.",
    "We walked along the river until it was too dark to see the path.",
    "If you want to change the settings, choose the second entry of the menu and press the button below.",
)
LONG = " ".join(SENTENCES)

MAX_TEXTS = 4
"""Per valid call."""
HEAVY_TEXTS = 4
"""Per cancelled or late call; no server finishes it within HEAVY_SECONDS."""
HEAVY_SECONDS = 0.05
RECONNECT_SECONDS = 1.0
"""Pause after a call that reached no server."""


async def call(client: AsyncClient, kind: Kind, rng: random.Random) -> bool:
    """Make one call; True if it ended as its kind should. Raises UnavailableError if no server is reachable."""
    if kind == "translate":
        await client.translate(rng.choices(SENTENCES, k=rng.randint(1, MAX_TEXTS)))
        return True
    if kind == "embed":
        await client.embed(rng.choices(SENTENCES, k=rng.randint(1, MAX_TEXTS)))
        return True
    if kind == "bad":
        return await _fails(client.translate(["kite"], to="x-none"), InvalidArgumentError)
    if kind == "late":
        return await _fails(client.translate([LONG] * HEAVY_TEXTS, timeout_seconds=HEAVY_SECONDS), TimedOutError)
    task = asyncio.ensure_future(client.translate([LONG] * HEAVY_TEXTS))
    await asyncio.wait({task}, timeout=HEAVY_SECONDS)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


async def _fails(answer: Awaitable[object], error: type[ClientError]) -> bool:
    try:
        await answer
    except error:
        return True
    return False


async def send(address: str, rate: float, seconds: float | None, seed: int = 0) -> Counter[tuple[Kind, bool]]:
    """Make about `rate` calls per second for `seconds`, or without end if None.

    Returns the number of calls by kind and by whether they ended as their kind should. A call that reaches no server
    counts as a failure, and a pause follows it.
    """
    rng = random.Random(seed)
    counts: Counter[tuple[Kind, bool]] = Counter()
    clock: Callable[[], float] = asyncio.get_running_loop().time
    end = None if seconds is None else clock() + seconds
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())

    async def one(kind: Kind) -> None:
        try:
            counts[kind, await call(client, kind, rng)] += 1
        except ClientError as error:
            counts[kind, False] += 1
            click.echo(f"{kind}: {error}", err=True)
            if isinstance(error, UnavailableError):
                reachable.clear()

    async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
        reachable = asyncio.Event()
        while end is None or clock() < end:
            reachable.set()
            group.create_task(one(rng.choices(kinds, weights)[0]))
            await asyncio.sleep(rng.expovariate(rate))
            if not reachable.is_set():
                await asyncio.sleep(RECONNECT_SECONDS)
    return counts


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True, help="Calls per second."
)
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Duration; default: without end.")
def main(address: str, rate: float, seconds: float | None) -> None:
    """Send light mixed traffic to the server at HOST:PORT."""
    for (kind, as_expected), count in sorted(asyncio.run(send(address, rate, seconds)).items()):
        click.echo(f"{kind}: {count} {'as expected' if as_expected else 'unexpected'}")


if __name__ == "__main__":
    main()
