"""What callers see of restarts and of a server that is killed: nothing, is the aim.

    python -m benchmarks.reliability.restarts BUNDLE

Callers in a closed loop share one client, which makes calls again as it does by default. First one server is ended with
SIGTERM and started anew, again and again. Then of two servers behind the client one is killed with SIGKILL and started
anew, in turns. Each answer is held against the one that its text had before. Ends with status 1 where a call failed or
was answered otherwise.
"""

import asyncio
import os
import signal
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import click

from benchmarks.server_process import ServerProcess, server_process
from benchmarks.speed.sentences import DATA
from dragoman.client import AsyncClient, ClientError
from dragoman.model.training.corpus import read_pairs

TEXTS = 100
HEADWAY = 50
"""Calls that must be answered between one restart and the next."""
POLL_SECONDS = 0.05

Disturb = Callable[[], Awaitable[None]]


async def answers(client: AsyncClient, texts: Sequence[str]) -> dict[str, str]:
    """Each text's translation."""
    return dict(zip(texts, (await client.translate(texts, truncate=True)).texts, strict=True))


async def calls_through(address: str, texts: Sequence[str], callers: int, times: int, disturb: Disturb) -> Counter[str]:
    """How calls ended while `disturb` was done so many times."""
    found, over = Counter[str](), False
    async with AsyncClient(address) as client:
        right = await answers(client, texts)

        async def call(number: int) -> None:
            while not over:
                text = texts[number % len(texts)]
                number += callers
                try:
                    translated = (await client.translate([text], truncate=True)).texts[0]
                except ClientError as error:
                    found[f"failed: {error.code.name} {error}"] += 1
                else:
                    found["answered" if translated == right[text] else "answered otherwise"] += 1

        tasks = [asyncio.create_task(call(number)) for number in range(callers)]
        for _ in range(times):
            enough = found.total() + HEADWAY
            while found.total() < enough:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            await disturb()
        over = True
        await asyncio.gather(*tasks)
    return found


def restarts(bundle: Path, texts: Sequence[str], callers: int, times: int) -> Counter[str]:
    """One server, ended in order and started anew."""
    port = free_port()
    with ExitStack() as running:
        running.enter_context(start(bundle, port))

        async def restart() -> None:
            await asyncio.to_thread(running.close)
            await asyncio.to_thread(running.enter_context, start(bundle, port))

        return asyncio.run(calls_through(f"127.0.0.1:{port}", texts, callers, times, restart))


def kills(bundle: Path, texts: Sequence[str], callers: int, times: int) -> Counter[str]:
    """Two servers, of which one is killed and started anew, in turns."""
    ports = [free_port(), free_port()]
    with ExitStack() as first, ExitStack() as second:
        stacks = [first, second]
        servers: list[ServerProcess] = [
            stack.enter_context(start(bundle, port)) for stack, port in zip(stacks, ports, strict=True)
        ]

        async def kill() -> None:
            os.kill(servers[0].pid, signal.SIGKILL)
            await asyncio.to_thread(stacks[0].close)
            servers[0] = await asyncio.to_thread(stacks[0].enter_context, start(bundle, ports[0]))
            for each in (servers, stacks, ports):
                each.reverse()

        address = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
        return asyncio.run(calls_through(address, texts, callers, times, kill))


def start(bundle: Path, port: int) -> AbstractContextManager[ServerProcess]:
    """A server on that port."""
    return server_process(bundle, "--port", str(port), "--threads-per-lane", "1")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--times", type=click.IntRange(1), default=100, show_default=True, help="Restarts, and kills.")
@click.option("--callers", type=click.IntRange(1), default=8, show_default=True)
@click.option("--data", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=DATA, show_default=True)
def main(bundle: Path, times: int, callers: int, data: Path) -> None:
    """Restart and kill servers of BUNDLE under load."""
    texts = list(dict.fromkeys(pair.source for pair in read_pairs(data)))[:TEXTS]
    bad = 0
    for what, run in (("restarts by SIGTERM", restarts), ("kills, of one of two servers", kills)):
        found = run(bundle, texts, callers, times)
        bad += found.total() - found["answered"]
        click.echo(f"{times} {what}: {', '.join(f'{count} {how}' for how, count in found.most_common())}")
    if bad:
        raise click.ClickException(f"{bad} calls were not answered as they must be")


if __name__ == "__main__":
    main()
