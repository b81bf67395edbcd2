"""Gentle mixed traffic, so that dashboards have something to show.

    python deploy/traffic.py HOST:PORT

Most calls are good ones. Some ask for a language that there is none of, some are cancelled by their caller, and some
are not given enough time. The profile `load` of docker-compose.yml runs this file inside the server's image; it
imports nothing but what is there.
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
"""How often each kind of call comes up."""

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
"""Of one good call."""
HEAVY_TEXTS = 4
"""Of a call that is cancelled or late: none can be done within HEAVY_SECONDS."""
HEAVY_SECONDS = 0.05
WITHOUT_SERVER_SECONDS = 1.0


async def call(client: AsyncClient, kind: Kind, rng: random.Random) -> bool:
    """Make one call; whether it ended as its kind should. Raises UnavailableError where there is no server."""
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
    """Make about `rate` calls a second for `seconds`, or for ever; how many of each kind ended as they should or not.

    Any call that cannot reach a server counts as one that did not, and is followed by a pause.
    """
    rng = random.Random(seed)
    ended: Counter[tuple[Kind, bool]] = Counter()
    clock: Callable[[], float] = asyncio.get_running_loop().time
    end = None if seconds is None else clock() + seconds
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())

    async def one(kind: Kind) -> None:
        try:
            ended[kind, await call(client, kind, rng)] += 1
        except ClientError as error:
            ended[kind, False] += 1
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
                await asyncio.sleep(WITHOUT_SERVER_SECONDS)
    return ended


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--rate", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True, help="Calls a second.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="How long; left out: for ever.")
def main(address: str, rate: float, seconds: float | None) -> None:
    """Send gentle mixed traffic to the server at HOST:PORT."""
    for (kind, well), count in sorted(asyncio.run(send(address, rate, seconds)).items()):
        click.echo(f"{kind}: {count} {'as they should' if well else 'otherwise'}")


if __name__ == "__main__":
    main()
