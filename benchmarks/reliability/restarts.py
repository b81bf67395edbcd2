"""Failures visible to callers during restarts and kills of servers.

    python -m benchmarks.reliability.restarts BUNDLE

Callers in a closed loop share one client with its default retries. First, one server is restarted repeatedly with
SIGTERM. Then two servers stand behind the client, and they are killed with SIGKILL and restarted in turns. Each answer
is compared with the answer to the same text before the disturbances. The exit status is 1 if a call failed or got a
different answer.
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

from benchmarks.reliability.scenario import ONE_THREAD, bundle_argument, data_option, finish, sentences_of
from benchmarks.server_process import ServerProcess, server_process
from dragoman.client import AsyncClient, ClientError

TEXTS = 100
MIN_CALLS_BETWEEN = 50
"""Calls that must end between two restarts."""
POLL_SECONDS = 0.05

Disturb = Callable[[], Awaitable[None]]


async def answers(client: AsyncClient, texts: Sequence[str]) -> dict[str, str]:
    """Translation by text."""
    return dict(zip(texts, (await client.translate(texts, truncate=True)).texts, strict=True))


async def calls_through(address: str, texts: Sequence[str], callers: int, times: int, disturb: Disturb) -> Counter[str]:
    """Outcomes of the calls, while `disturb` runs `times` times."""
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
                    found["answered" if translated == right[text] else "different answer"] += 1

        tasks = [asyncio.create_task(call(number)) for number in range(callers)]
        for _ in range(times):
            enough = found.total() + MIN_CALLS_BETWEEN
            while found.total() < enough:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            await disturb()
        over = True
        await asyncio.gather(*tasks)
    return found


def restarts(bundle: Path, texts: Sequence[str], callers: int, times: int) -> Counter[str]:
    """Outcomes of the calls to one server that is restarted with SIGTERM."""
    port = free_port()
    with ExitStack() as running:
        running.enter_context(start(bundle, port))

        async def restart() -> None:
            await asyncio.to_thread(running.close)
            await asyncio.to_thread(running.enter_context, start(bundle, port))

        return asyncio.run(calls_through(f"127.0.0.1:{port}", texts, callers, times, restart))


def kills(bundle: Path, texts: Sequence[str], callers: int, times: int) -> Counter[str]:
    """Outcomes of the calls to two servers that are killed and restarted in turns."""
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
    """Server process on `port`."""
    return server_process(bundle, "--port", str(port), *ONE_THREAD)


def free_port() -> int:
    """TCP port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


@click.command()
@bundle_argument
@click.option(
    "--times", type=click.IntRange(1), default=100, show_default=True, help="Number of restarts, and of kills."
)
@click.option("--callers", type=click.IntRange(1), default=8, show_default=True)
@data_option
def main(bundle: Path, times: int, callers: int, data: Path) -> None:
    """Restart and kill servers of BUNDLE under load."""
    texts = list(dict.fromkeys(sentences_of(data)))[:TEXTS]
    bad = 0
    for disturbance, run in (("restarts by SIGTERM", restarts), ("kills of one of two servers", kills)):
        found = run(bundle, texts, callers, times)
        bad += found.total() - found["answered"]
        click.echo(f"{times} {disturbance}: {', '.join(f'{count} {how}' for how, count in found.most_common())}")
    finish([f"{bad} calls failed or got a different answer"] if bad else [])


if __name__ == "__main__":
    main()
